"""The LPIPS encoder: pairs in, distances out, whoever shares the batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lpips_nets
import numpy as np
import pytest

from genmeter.contract import AudioMedia, EncoderSpec, ImageMedia, PairEncoder, Prepared, VideoMedia
from genmeter.encoders.lpips import LpipsEncoder
from genmeter.encoders.lpips.encoder import net_of
from genmeter.encoders.registry import create_encoder, encoder_spec, list_encoders
from genmeter.errors import GenmeterError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

HERE = Path(__file__).parent
VIEW = {"resize": "none", "alpha": "white"}


def noise(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pair(encoder: Any, first: np.ndarray, second: np.ndarray, view: Any = VIEW) -> Prepared:
    halves = [encoder.prepare(ImageMedia(pixels), view) for pixels in (first, second)]
    return encoder.join(halves, view)


def values(encoder: Any, batch: Sequence[Prepared]) -> np.ndarray:
    return np.array([float(feature.values[0, 0]) for feature in encoder.encode(batch)])


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LpipsEncoder]:
    folder = tmp_path_factory.mktemp("weights")
    made: dict[str, LpipsEncoder] = {}

    def get(net: str) -> LpipsEncoder:
        if net not in made:
            path = lpips_nets.save(folder, net)
            made[net] = LpipsEncoder(lpips_nets.entry(net), lambda: path)
            made[net].load("cpu", "exact")
        return made[net]

    return get


@pytest.fixture
def alex(encoders: Callable[[str], LpipsEncoder]) -> LpipsEncoder:
    return encoders("alex")


# --- what it returns ---------------------------------------------------------------------------------------------


def test_feature_has_the_shape_the_contract_states(alex: LpipsEncoder) -> None:
    [feature] = alex.encode([pair(alex, noise(40, 50), noise(40, 50, 1))])
    assert feature.values.shape == (1, 1)
    assert feature.values.dtype == np.float32
    assert feature.weights.tolist() == [1.0]
    assert feature.detail == {"size": "50x40"}
    assert feature.flags == ()
    assert isinstance(alex, PairEncoder)


@pytest.mark.parametrize("net", ["alex", "vgg", "squeeze"])
def test_equal_images_are_exactly_zero_apart_and_order_does_not_matter(encoders: Any, net: str) -> None:
    encoder = encoders(net)
    a, b = noise(48, 40), noise(48, 40, 1)
    same, forth, back = values(encoder, [pair(encoder, a, a.copy()), pair(encoder, a, b), pair(encoder, b, a)])
    assert same == 0.0
    assert forth > 0.01
    assert back == pytest.approx(forth, abs=1e-6)


def test_distance_grows_with_the_damage(alex: LpipsEncoder) -> None:
    base = noise(64, 64)
    steps = [np.clip(base.astype(int) + noise(64, 64, 7).astype(int) // k, 0, 255).astype(np.uint8) for k in (32, 8, 2)]
    found = values(alex, [pair(alex, step, base) for step in steps])
    assert (np.diff(found) > 0).all()


def test_bytes_are_scaled_once(alex: LpipsEncoder) -> None:
    """One channel 64 levels apart: a second scaling, or none, would shrink or blow up the input."""
    from genmeter.encoders.lpips.network import MEAN, STD, LpipsNetwork

    a = np.full((64, 64, 3), 100, np.uint8)
    b = a.copy()
    b[..., 0] += 64
    network = LpipsNetwork("alex", lpips_nets.random_tensors("alex"))
    [found] = values(alex, [pair(alex, a, b)])
    assert found == pytest.approx(float(network.distances(np.stack([a, b]), [0], [1])), abs=1e-7)
    half = [m - s for m, s in zip(MEAN, STD, strict=True)]
    other = LpipsNetwork("alex", lpips_nets.random_tensors("alex"), mean=half)
    assert abs(found - float(other.distances(np.stack([a, b]), [0], [1]))) > 1e-4


# --- batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["alex", "vgg", "squeeze"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (45, 37)])
def test_neighbours_order_and_batch_size_do_not_move_a_score(encoders: Any, net: str, height: int, width: int) -> None:
    encoder = encoders(net)
    items = [pair(encoder, noise(height, width, 2 * i), noise(height, width, 2 * i + 1)) for i in range(7)]
    alone = np.array([values(encoder, [item])[0] for item in items])
    assert np.abs(values(encoder, items) - alone).max() <= 1e-6
    assert np.abs(values(encoder, items[::-1])[::-1] - alone).max() <= 1e-6
    assert np.abs(values(encoder, items[2:5]) - alone[2:5]).max() <= 1e-6


def test_a_batch_cut_into_passes_is_the_batch(alex: LpipsEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [pair(alex, noise(40, 40, i), noise(40, 40, i + 50)) for i in range(5)]
    whole = values(alex, items)
    monkeypatch.setattr(LpipsEncoder, "_pairs_at_once", lambda self, height, width, count: 2)
    assert np.abs(values(alex, items) - whole).max() <= 1e-6


def test_equal_batches_give_equal_bytes(alex: LpipsEncoder) -> None:
    items = [pair(alex, noise(40, 40, i), noise(40, 40, i + 50)) for i in range(4)]
    first, again = alex.encode(items), alex.encode(items)
    assert [f.values.tobytes() for f in first] == [f.values.tobytes() for f in again]


def test_an_image_shared_by_pairs_runs_once(alex: LpipsEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [alex.prepare(ImageMedia(noise(40, 40, i)), VIEW) for i in range(4)]
    shared = [alex.join([half, halves[3]], VIEW) for half in halves[:3]]
    apart = [pair(alex, noise(40, 40, i), noise(40, 40, 3)) for i in range(3)]
    expected = values(alex, apart)
    rows = []
    network = alex._network
    assert network is not None
    inner = network.distances
    monkeypatch.setattr(
        network, "distances", lambda images, *sides: (rows.append(len(images)), inner(images, *sides))[1]
    )
    assert np.abs(values(alex, shared) - expected).max() <= 1e-6
    assert rows == [4]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak that Linux keeps")
@pytest.mark.parametrize(("net", "side"), [("alex", 1024), ("squeeze", 640), ("vgg", 320)])
def test_memory_estimate_holds_and_is_not_wasteful(net: str, side: int) -> None:
    """Peak of a fresh process around one encode; the estimate sizes first batches and refuses giants."""
    code = """
import sys
import numpy as np, torch, lpips_nets
from genmeter.contract import Prepared
from genmeter.encoders.lpips import LpipsEncoder
from genmeter.encoders.lpips.network import LpipsNetwork
torch.set_num_threads(1)
net, side = sys.argv[1], int(sys.argv[2])
encoder = LpipsEncoder(lpips_nets.entry(net), None)
encoder._network = LpipsNetwork(net, lpips_nets.random_tensors(net))
def item(n):
    return Prepared(tuple(np.random.default_rng(i).integers(0, 256, (1, n, n, 3), dtype=np.uint8) for i in (0, 1)),
                    np.ones(1, np.float32))
encoder.encode([item(64)])
big = item(side)
def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
open("/proc/self/clear_refs", "w").write("5")
before = peak()
encoder.encode([big])
print(peak() - before, encoder.bytes_per_item((side, side, 3)))
"""
    run = subprocess.run([sys.executable, "-c", code, net, str(side)], capture_output=True, text=True, cwd=HERE)
    assert run.returncode == 0, run.stderr
    used, estimate = map(int, run.stdout.split())
    assert used <= estimate
    assert used >= estimate / 3


# --- sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("net", "least"), [("alex", 31), ("vgg", 16), ("squeeze", 17)])
def test_the_smallest_side_works_and_one_less_is_refused(encoders: Any, net: str, least: int) -> None:
    encoder = encoders(net)
    for height, width in ((least, least), (least, 64), (64, least)):
        [value] = values(encoder, [pair(encoder, noise(height, width), noise(height, width, 1))])
        assert np.isfinite(value)
        assert value > 0
    for height, width in ((least - 1, 64), (64, least - 1), (1, 1)):
        with pytest.raises(GenmeterError, match=f"{width}x{height}.*at least {least} pixels") as caught:
            pair(encoder, noise(height, width), noise(height, width, 1))
        assert caught.value.code == "too_small"


@pytest.mark.parametrize(
    ("first", "second"), [((64, 64), (128, 128)), ((68, 68), (67, 68)), ((64, 1), (64, 64)), ((1, 64), (64, 64))]
)
def test_other_sizes_are_refused_by_name_and_never_broadcast(alex: LpipsEncoder, first: Any, second: Any) -> None:
    with pytest.raises(GenmeterError) as caught:
        pair(alex, noise(*first), noise(*second))
    assert caught.value.code == "size_mismatch"
    assert f"prediction {first[1]}x{first[0]}, reference {second[1]}x{second[0]}" in caught.value.message
    assert "lpips.resize" in caught.value.message


def test_resize_reference_brings_the_prediction_to_the_reference(alex: LpipsEncoder) -> None:
    from PIL import Image

    small, large = noise(40, 50), noise(80, 96, 1)
    found = pair(alex, small, large, {"resize": "reference", "alpha": "white"})
    resized = np.asarray(Image.fromarray(small).resize((96, 80), Image.Resampling.BICUBIC))
    assert np.array_equal(found.arrays[0][0], resized)
    assert np.array_equal(found.arrays[1][0], large)
    assert found.detail == {"size": "96x80", "prediction_size": "50x40"}
    equal = pair(alex, large, large, {"resize": "reference", "alpha": "white"})
    assert equal.detail == {"size": "96x80"}


def test_resize_to_a_side_squashes_both(alex: LpipsEncoder) -> None:
    found = pair(alex, noise(40, 50), noise(80, 64, 1), {"resize": 64, "alpha": "white"})
    assert [a.shape for a in found.arrays] == [(1, 64, 64, 3)] * 2
    assert found.detail == {"size": "64x64", "prediction_size": "50x40", "reference_size": "64x80"}
    untouched = noise(64, 64)
    assert np.array_equal(pair(alex, untouched, untouched, {"resize": 64}).arrays[0][0], untouched)


def test_resize_can_lift_small_images_over_the_least_side(alex: LpipsEncoder) -> None:
    found = pair(alex, noise(20, 20), noise(20, 20, 1), {"resize": 64, "alpha": "white"})
    assert values(alex, [found])[0] > 0
    with pytest.raises(GenmeterError, match="20x20"):
        pair(alex, noise(20, 20), noise(20, 20, 1), {"resize": 20, "alpha": "white"})


def test_downscaling_is_antialiased(alex: LpipsEncoder) -> None:
    """A one-pixel checkerboard must come out grey, not as moire."""
    y, x = np.mgrid[0:256, 0:256]
    board = np.repeat((((x + y) % 2) * 255).astype(np.uint8)[..., None], 3, axis=2)
    half = alex.prepare(ImageMedia(board), {"resize": 64, "alpha": "white"}).arrays[0]
    assert np.abs(half[0, 4:-4, 4:-4].astype(int) - 127).max() <= 8


# --- alpha and other media ---------------------------------------------------------------------------------------


def test_transparency_is_composited_on_white_or_dropped(alex: LpipsEncoder) -> None:
    pixels = np.zeros((40, 40, 4), np.uint8)
    pixels[:, :20, 3] = 255
    white = alex.prepare(ImageMedia(pixels, flags=("animated_first_frame",)), VIEW)
    assert white.flags == ("animated_first_frame", "alpha_composited")
    assert (white.arrays[0][0, :, 20:] == 255).all()
    assert (white.arrays[0][0, :, :20] == 0).all()
    dropped = alex.prepare(ImageMedia(pixels), {"resize": "none", "alpha": "drop"})
    assert dropped.flags == ()
    assert (dropped.arrays[0] == 0).all()
    opaque = np.full((40, 40, 4), 255, np.uint8)
    assert alex.prepare(ImageMedia(opaque), VIEW).flags == ()


def test_flags_of_both_halves_are_kept_once(alex: LpipsEncoder) -> None:
    half = alex.prepare(ImageMedia(noise(40, 40), flags=("animated_first_frame",)), VIEW)
    assert alex.join([half, half], VIEW).flags == ("animated_first_frame",)


def test_frames_of_a_clip_are_rows_and_memory_does_not_follow_their_number(alex: LpipsEncoder) -> None:
    frames = [np.stack([noise(40, 40, 10 * side + i) for i in range(9)]) for side in (0, 1)]
    halves = [alex.prepare(VideoMedia(f, np.arange(9) / 8), VIEW) for f in frames]
    [feature] = alex.encode([alex.join(halves, VIEW)])
    single = values(alex, [pair(alex, a, b) for a, b in zip(*frames, strict=True)])
    assert feature.values.shape == (9, 1)
    assert np.abs(feature.values[:, 0] - single).max() <= 1e-6
    assert alex._pairs_at_once(256, 256, 1) < 9
    with pytest.raises(GenmeterError, match="9 frames, reference 8") as caught:
        alex.join([halves[0], alex.prepare(VideoMedia(frames[1][:8], np.arange(8)), VIEW)], VIEW)
    assert caught.value.code == "length_mismatch"


@pytest.mark.parametrize(
    ("media", "code"),
    [
        ("a text", "unsupported_media"),
        (AudioMedia(np.zeros(9, np.float32), 16000), "unsupported_media"),
        (ImageMedia(np.zeros((0, 8, 3), np.uint8)), "empty_media"),
    ],
)
def test_what_is_no_image_is_refused(alex: LpipsEncoder, media: Any, code: str) -> None:
    with pytest.raises(GenmeterError) as caught:
        alex.prepare(media, VIEW)
    assert caught.value.code == code


# --- loading -----------------------------------------------------------------------------------------------------


def load(net: str, tensors: dict[str, np.ndarray], folder: Any, **kwargs: Any) -> None:
    from safetensors.numpy import save_file

    path = folder / "weights.safetensors"
    save_file(tensors, path)
    LpipsEncoder(lpips_nets.entry(net, **kwargs), lambda: path).load("cpu", "exact")


def test_the_probe_catches_weights_that_are_not_the_stated_ones(tmp_path: Any) -> None:
    from genmeter.encoders.lpips.network import LpipsNetwork
    from genmeter.encoders.lpips.probe import PAIR

    tensors = lpips_nets.random_tensors("alex")
    images = np.stack([PAIR["prediction"], PAIR["reference"]])
    answer = float(LpipsNetwork("alex", tensors).distances(images, [0], [1]))
    load("alex", tensors, tmp_path, extra={"probe": {"value": answer}})
    with pytest.raises(GenmeterError, match="between the probe's images") as caught:
        load("alex", tensors, tmp_path, extra={"probe": {"value": answer + 0.01}})
    assert caught.value.code == "model_probe_failed"
    swapped = dict(tensors)
    swapped["features.0.weight"] = np.ascontiguousarray(tensors["features.0.weight"][:, ::-1])
    with pytest.raises(GenmeterError) as caught:
        load("alex", swapped, tmp_path, extra={"probe": {"value": answer}})
    assert caught.value.code == "model_probe_failed"


@pytest.mark.parametrize("damage", ["zero", "nan"])
def test_the_probe_needs_no_stored_value_to_see_a_dead_network(tmp_path: Any, damage: str) -> None:
    tensors = lpips_nets.random_tensors("alex")
    tensors["features.0.weight"][:] = 0 if damage == "zero" else np.nan
    with pytest.raises(GenmeterError) as caught:
        load("alex", tensors, tmp_path)
    assert caught.value.code == "model_probe_failed"


@pytest.mark.parametrize("name", ["features.8.bias", "lin.4.weight", "features.6.weight"])
def test_tensors_of_another_network_are_named(tmp_path: Any, name: str) -> None:
    tensors = lpips_nets.random_tensors("alex")
    kept = tensors.pop(name)
    with pytest.raises(GenmeterError, match=name.replace(".", r"\.")) as caught:
        load("alex", tensors, tmp_path)
    assert caught.value.code == "weights_mismatch"
    tensors[name] = np.ascontiguousarray(kept.reshape(-1)[: kept.size // 2])
    with pytest.raises(GenmeterError, match=r"features|lin") as caught:
        load("alex", tensors, tmp_path)
    assert caught.value.code == "weights_mismatch"


def test_encode_before_load_is_a_programming_error() -> None:
    encoder = LpipsEncoder(lpips_nets.entry("alex"), lambda: pytest.fail("fetched"))
    with pytest.raises(RuntimeError, match="load"):
        encoder.encode([pair(encoder, noise(40, 40), noise(40, 40))])


def test_the_caller_keeps_its_gradients_and_nothing_holds_a_graph(alex: LpipsEncoder) -> None:
    import torch

    alex.encode([pair(alex, noise(40, 40), noise(40, 40, 1))])
    assert torch.is_grad_enabled()
    assert not any(t.requires_grad for weights in alex._network._convs.values() for t in weights)  # type: ignore[union-attr]


# --- registry ----------------------------------------------------------------------------------------------------


def test_spec_says_what_makes_a_number() -> None:
    spec = encoder_spec("lpips", lpips_nets.entry("vgg"))
    assert isinstance(spec, EncoderSpec)
    assert (spec.name, spec.model, spec.digest, spec.pair) == ("lpips", "test-vgg", "0" * 64, True)
    other = encoder_spec("lpips", lpips_nets.entry("vgg", preprocessing={"mean": [0.0, 0.0, 0.0]}))
    assert spec.preprocessing != other.preprocessing
    assert spec.preprocessing.startswith("lpips-rgb8-1-")


def test_unknown_encoders_and_networks_are_named() -> None:
    assert "lpips" in list_encoders()
    with pytest.raises(GenmeterError, match="did you mean 'lpips'") as caught:
        create_encoder("lipps", lpips_nets.entry("alex"), lambda: pytest.fail("fetched"))
    assert caught.value.code == "unknown_metric"
    assert (net_of("alexnet"), net_of("VGG16"), net_of("squeezenet1_1")) == ("alex", "vgg", "squeeze")
    with pytest.raises(GenmeterError, match="resnet50"):
        net_of("resnet50")


def test_describing_and_preparing_import_no_torch() -> None:
    code = (
        "import sys, numpy as np, lpips_nets\n"
        "from genmeter.contract import ImageMedia\n"
        "from genmeter.encoders.registry import create_encoder\n"
        "from genmeter.registry import list_metrics, make_scorer, parse_variant\n"
        "list_metrics(); make_scorer(parse_variant('lpips'))\n"
        "e = create_encoder('lpips', lpips_nets.entry('alex'), None)\n"
        "h = e.prepare(ImageMedia(np.zeros((40, 40, 3), np.uint8)), {'resize': 64})\n"
        "e.join([h, h], {'resize': 64}); e.bytes_per_item((40, 40, 3)); e.spec\n"
        "assert 'torch' not in sys.modules and 'scipy' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE)
    assert run.returncode == 0, run.stderr
