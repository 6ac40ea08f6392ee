"""I3D against the published values of FVD, and against a plain reading of the paper and of TF's rules."""

from __future__ import annotations

import os
from typing import Any

import i3d_nets
import numpy as np
import pytest
from i3d_plain import Plain

from genmeter.contract import Prepared, VideoMedia
from genmeter.encoders.i3d import preprocessing
from genmeter.encoders.i3d.grid import SIDE, Taps, taps
from genmeter.encoders.registry import create_encoder

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("one_torch_thread")

# Black against white at 64x64, squared distance of the logits, as public PyTorch ports print it.
PORTS = {
    10: 569.2296293622766,
    13: 146.36638178542628,
    15: 133.70311962583372,
    16: 152.91750309134142,
    17: 357.7402855012116,
    30: 151.2564750365302,
}
PORTS_WITHIN = 2e-3
TF_HUB_30 = 151.39244
TF_HUB_NOISE = 10.13808536529541
PUBLISHED_WITHIN = 1e-5


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    """The published weights."""
    from genmeter.weights.load import load_tensors
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    return load_tensors(ensure(get_entry("i3d-k400")))


@pytest.fixture(scope="module")
def published() -> Any:
    """The encoder on the published weights."""
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("i3d-k400")
    path = ensure(entry)
    encoder = create_encoder("i3d", entry, lambda: path)
    encoder.load("cpu", "exact")
    return encoder


def network(tensors: dict[str, np.ndarray], **options: Any) -> Any:
    from genmeter.encoders.i3d.network import I3dNetwork

    return I3dNetwork(tensors, **options)


def video(frames: np.ndarray) -> VideoMedia:
    return VideoMedia(frames, np.arange(len(frames)) / 8)


def black_against_white(encoder: Any, frames: int) -> float:
    """Through the encoder as the engine calls it."""
    view = i3d_nets.view(frames=frames)
    items = [encoder.prepare(video(np.full((frames, 64, 64, 3), v, np.uint8)), view) for v in (0, 255)]
    black, white = (feature.values[0].astype(np.float64) for feature in encoder.encode(items))
    return float(np.square(black - white).sum())


# --- published values ------------------------------------------------------------------------------------------------


@pytest.mark.weights
def test_thirty_frames_are_the_originals_value(published: Any) -> None:
    assert black_against_white(published, 30) == pytest.approx(TF_HUB_30, rel=PUBLISHED_WITHIN)


@pytest.mark.weights
@pytest.mark.parametrize("frames", [10, 13, 15, 16, 17])
def test_the_curve_over_frame_counts_is_that_of_the_ports(published: Any, frames: int) -> None:
    """One frame more or less changes the value up to fourfold, so this is a fingerprint of padding and counting."""
    assert black_against_white(published, frames) == pytest.approx(PORTS[frames], rel=PORTS_WITHIN)


@pytest.mark.weights
@pytest.mark.parametrize("frames", [10, 13])
def test_another_eps_would_be_noticed(tensors: dict[str, np.ndarray], frames: int) -> None:
    """Several ports normalise with 1e-5: by the tolerances above they are not this network."""
    inputs = torch.stack([torch.full((frames, SIDE, SIDE, 3), value) for value in (-1.0, 1.0)])
    values = {}
    for eps in (1e-3, 1e-5):
        black, white = network(tensors, eps=eps).logits(inputs).double()
        values[eps] = float((black - white).square().sum())
    assert values[1e-3] == pytest.approx(PORTS[frames], rel=PORTS_WITHIN)
    assert values[1e-5] != pytest.approx(PORTS[frames], rel=PORTS_WITHIN)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_sets_of_noise_are_the_originals_value(tensors: dict[str, np.ndarray]) -> None:
    """128 against 128 videos of noise in [0, 1), fed as they are: 224x224, so nothing is resized or scaled."""
    from genmeter.stats import frechet_distance

    torch.set_num_threads(os.cpu_count() or 1)
    net = network(tensors)
    features = []
    for seed in (1, 2):
        noise = np.random.RandomState(seed).rand(128, 16, SIDE, SIDE, 3)
        features.append(np.concatenate([net.logits(torch.from_numpy(v[None]).float()).numpy() for v in noise]))
    assert frechet_distance(*features) == pytest.approx(TF_HUB_NOISE, rel=PUBLISHED_WITHIN)


# --- the network, against one that is built plainly ------------------------------------------------------------------


@pytest.mark.parametrize("frames", [9, 12, 17])
def test_random_weights_give_what_a_plain_network_gives(frames: int) -> None:
    weights = i3d_nets.random_tensors(frames)
    clip = torch.rand((1, frames, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(frames)) * 2 - 1
    found, expected = network(weights).logits(clip), Plain(weights)(clip)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert expected.std() > 0.1


def test_the_eps_matters_to_these_weights() -> None:
    weights = i3d_nets.random_tensors(9)
    clip = torch.rand((1, 9, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(9)) * 2 - 1
    one, other = (network(weights, eps=eps).logits(clip) for eps in (1e-3, 1e-5))
    assert (other - one).abs().max() > 1e-3 * one.abs().max()


@pytest.mark.weights
def test_published_weights_give_what_a_plain_network_gives(tensors: dict[str, np.ndarray]) -> None:
    clip = torch.rand((1, 10, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(3)) * 2 - 1
    found, expected = network(tensors).logits(clip), Plain(tensors)(clip)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_shortcut_of_cpus_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN is called past torch's own choice of kernels; without it the same convolutions run."""
    weights = i3d_nets.random_tensors(1)
    clip = torch.rand((2, 9, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(1)) * 2 - 1
    direct = network(weights).logits(clip)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert (network(weights).logits(clip) - direct).abs().max() <= 1e-5 * direct.abs().max()


# --- the resize --------------------------------------------------------------------------------------------------


def resized(frames: np.ndarray, grid: str) -> np.ndarray:
    """(T, 224, 224, 3) in [-1, 1], through prepare and the device's half."""
    from genmeter.encoders.i3d.resize import to_input

    prepared: Prepared = preprocessing.prepare(video(frames), i3d_nets.view(frames=len(frames), grid=grid))
    clip, low, share = prepared.arrays
    out = torch.full((len(frames), SIDE, SIDE, 3), float("nan"))
    to_input(clip[0], low[0], share[0], out)
    return np.asarray(out)


def noise(height: int, width: int, frames: int = 9) -> np.ndarray:
    return np.random.default_rng([height, width]).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def naive_tf1(frame: np.ndarray) -> np.ndarray:
    """TF1's resize_bilinear(align_corners=False), pixel by pixel as its kernel is written down."""
    height, width, _ = frame.shape
    out = np.empty((SIDE, SIDE, 3))
    for i in range(SIDE):
        y = np.float32(i) * np.float32(height / SIDE)
        top = int(y)
        bottom, dy = min(top + 1, height - 1), float(y) - top
        for j in range(SIDE):
            x = np.float32(j) * np.float32(width / SIDE)
            left = int(x)
            right, dx = min(left + 1, width - 1), float(x) - left
            a, b, c, d = (
                frame[p, q].astype(float) for p, q in ((top, left), (top, right), (bottom, left), (bottom, right))
            )
            upper, lower = a + (b - a) * dx, c + (d - c) * dx
            out[i, j] = upper + (lower - upper) * dy
    return out / 127.5 - 1


@pytest.mark.parametrize(("height", "width"), [(64, 64), (37, 300), (224, 224), (451, 640)])
def test_tf1_grid_is_that_of_the_naive_loop(height: int, width: int) -> None:
    frames = noise(height, width)
    found = resized(frames, "tf1")
    np.testing.assert_allclose(found[3], naive_tf1(frames[3]), atol=2e-5)


# torch may round positions otherwise, by one part in 2^23 of the size; times the steepest step, 2.
POSITIONS = 2e-4
SIZES = [(64, 64), (224, 224), (225, 223), (300, 100), (31, 449), (450, 447), (720, 1280)]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_half_pixel_grid_is_that_of_torch(height: int, width: int) -> None:
    frames = noise(height, width)
    x = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    expected = torch.nn.functional.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
    expected = (expected / 127.5 - 1).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(resized(frames, "half-pixel"), expected, atol=POSITIONS)


@pytest.mark.parametrize(("height", "width"), [*SIZES, (49, 49)])
def test_short_side_grid_is_scaled_and_cropped_as_videogpt_does(height: int, width: int) -> None:
    import math

    frames = noise(height, width)
    x = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    scale = SIDE / min(height, width)
    size = (SIDE, math.ceil(width * scale)) if height < width else (math.ceil(height * scale), SIDE)
    x = torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
    top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
    expected = (x[:, :, top : top + SIDE, left : left + SIDE] / 127.5 - 1).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(resized(frames, "short-side"), expected, atol=POSITIONS)


def test_the_grids_are_not_one() -> None:
    frames = noise(96, 80)
    found = [resized(frames, grid) for grid in ("tf1", "half-pixel", "short-side")]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert np.abs(found[one] - found[other]).max() > 0.1


@pytest.mark.parametrize("grid", ["tf1", "half-pixel", "short-side"])
def test_ends_of_the_range_are_exact(grid: str) -> None:
    for value, wanted in ((0, -1.0), (255, 1.0)):
        found = resized(np.full((9, 50, 70, 3), value, np.uint8), grid)
        assert (found == wanted).all()


@pytest.mark.parametrize("grid", ["tf1", "half-pixel", "short-side"])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 3000), (448, 449), (1080, 1920)])
def test_taps_stay_inside(grid: str, height: int, width: int) -> None:
    for axis, size in zip(taps(grid, height, width), (height, width), strict=True):
        assert isinstance(axis, Taps)
        assert axis.low.dtype == np.int32
        assert axis.share.dtype == np.float32
        assert axis.low.min() >= 0
        assert axis.low.max() < size
        assert axis.share.min() >= 0
        assert axis.share.max() < 1
