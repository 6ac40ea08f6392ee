"""CLAP on a real CUDA device: the CPU's features, whatever the batch; half precision near them. ``make test-cuda``."""

from __future__ import annotations

import clap_nets
import numpy as np
import pytest

from genmeter.contract import AudioMedia
from genmeter.encoders.clap import ClapEncoder
from genmeter.engine.device import torch_settings

pytestmark = pytest.mark.cuda
CAPTIONS = ("a dog barks", "rain falls on a metal roof", "slow piano music, 12 bars of it")


@pytest.fixture(autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def sounds():
    """Noise, and a clean tone, of which most bands hold rounding alone."""
    rng = np.random.default_rng(0)
    tone = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(480_000) / 48000)
    clips = [rng.normal(0, 0.2, 48000 * seconds) for seconds in (3, 10, 24)] + [tone]
    return [AudioMedia(clip.astype(np.float32), 48000) for clip in clips]


def features(encoder, device, precision="exact", together=True):
    with torch_settings(precision):
        encoder.load(device, precision)
        found = []
        for items in ([encoder.prepare(s, {}) for s in sounds()], [encoder.prepare(c, {}) for c in CAPTIONS]):
            batches = [items] if together and len({i.bucket for i in items}) == 1 else [[item] for item in items]
            found += [feature.values for batch in batches for feature in encoder.encode(batch)]
    return np.concatenate(found)


@pytest.mark.parametrize("loader", ["clap", "transformers_clap"])
@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("small", [True, False])
def test_cpu_and_cuda_agree(tmp_path, loader, fusion, small):
    entry = clap_nets.entry(loader, fusion=fusion, small=small)
    path = clap_nets.save(clap_nets.random_tensors(entry), tmp_path / "w.safetensors")
    encoder = ClapEncoder(entry, lambda: path)
    cpu = features(encoder, "cpu")
    cuda = features(encoder, "cuda")
    alone = features(encoder, "cuda", together=False)
    np.testing.assert_allclose(cuda, cpu, atol=1e-5)
    np.testing.assert_allclose(alone, cuda, atol=1e-5)


def test_half_precision_stays_near(tmp_path):
    entry = clap_nets.entry()
    path = clap_nets.save(clap_nets.random_tensors(entry), tmp_path / "w.safetensors")
    encoder = ClapEncoder(entry, lambda: path)
    cosines = (features(encoder, "cuda", "fast") * features(encoder, "cuda")).sum(axis=1)
    assert cosines.min() > 0.999
