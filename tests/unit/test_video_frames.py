"""CLIP and LPIPS over the frames of videos: which frames they ask for, what a row says of them, one mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lpips_nets
import numpy as np
import pytest

from genmeter.contract import ImageMedia, MediaEncoder, Score, VideoMedia
from genmeter.encoders.frames import facts, partial, spread
from genmeter.encoders.lpips import LpipsEncoder
from genmeter.encoders.registry import create_encoder
from genmeter.errors import GenmeterError
from genmeter.registry import make_scorer, parse_variant
from genmeter.synth.motion import caption, frames, make_clip

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WHITE = {"alpha": "white"}


@pytest.fixture(scope="module")
def clip() -> Any:
    """The tiny CLIP, which ships with the package."""
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("tiny-clip")
    encoder = create_encoder("clip", entry, lambda: ensure(entry))
    encoder.load("cpu", "exact")
    return encoder


@pytest.fixture(scope="module")
def lpips(tmp_path_factory: pytest.TempPathFactory) -> LpipsEncoder:
    path = lpips_nets.save(tmp_path_factory.mktemp("weights"), "alex")
    encoder = LpipsEncoder(lpips_nets.entry("alex"), lambda: Path(path))
    encoder.load("cpu", "exact")
    return encoder


def video(pixels: np.ndarray, **detail: Any) -> VideoMedia:
    return VideoMedia(pixels, np.arange(len(pixels)) / 8, (), detail)


def noise(count: int, height: int = 40, width: int = 56, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_views_say_which_frames_to_decode() -> None:
    assert spread({"frames": 8, "alpha": "white"}) == {"spread": 8}
    assert spread({"frames": "all"}) == spread({}) == {}
    assert facts(video(noise(3), frames_total=30, fps=12.5)) == {
        "frames_used": 3, "frames_total": 30, "size": "56x40", "fps": 12.5,
    }  # fmt: skip
    assert facts(video(noise(3))) == {"frames_used": 3, "size": "56x40"}
    assert partial(video(noise(3), frames_total=30)) == ("partial_video",)
    assert partial(video(noise(3), frames_total=3)) == partial(video(noise(3))) == ()


def test_encoders_of_images_say_what_they_want_of_videos(clip: Any, lpips: LpipsEncoder) -> None:
    for encoder in (clip, lpips):
        assert isinstance(encoder, MediaEncoder)
    for name, wanted in (("clipscore", {"spread": 8}), ("clipscore/clipsim", {}), ("clip_temporal", {})):
        view = parse_variant(name).needs[0]
        assert clip.decoding(view.also_view or view.view) == wanted
    assert lpips.decoding(parse_variant("lpips").needs[0].also_view) == {}


def test_clip_says_how_much_of_a_video_it_saw(clip: Any) -> None:
    prepared = clip.prepare(video(noise(8), frames_total=121, fps=24.0), {**WHITE, "frames": 8})
    assert prepared.detail == {"frames_used": 8, "frames_total": 121, "size": "56x40", "fps": 24.0}
    assert prepared.flags == ("partial_video",)
    [feature] = clip.encode([prepared])
    assert feature.values.shape[0] == 8
    assert feature.detail == prepared.detail
    assert "partial_video" in feature.flags
    assert clip.prepare(ImageMedia(noise(1)[0]), WHITE).detail == {}


@pytest.mark.parametrize("name", ["clipscore@tiny-clip", "clipscore@tiny-clip/clipsim", "clipscore@tiny-clip/cosine"])
def test_clipscore_of_a_video_is_the_mean_over_its_frames(clip: Any, name: str) -> None:
    variant = parse_variant(name)
    image, text, plain = variant.needs
    made = make_clip(4)
    pixels = frames(made, 6)
    words = [clip.encode([clip.prepare(caption(made), need.view)])[0] for need in (text, plain)]

    def score(media: Any, view: Any) -> Score:
        [shown] = clip.encode([clip.prepare(media, view)])
        item = {"image": shown, "text": words[0], "plain": words[1]}
        [result] = make_scorer(variant).score([item], variant.params)
        assert isinstance(result, Score)
        return result

    whole = score(video(pixels, frames_total=48), image.also_view)
    each = [score(ImageMedia(frame), image.view).value for frame in pixels]
    assert whole.value == pytest.approx(np.mean(each), abs=1e-6)
    assert whole.detail["frames_used"] == 6
    assert whole.detail["frames_total"] == 48
    assert {"partial_video", "not_comparable"} <= set(whole.flags)


def test_lpips_of_two_videos_is_the_mean_over_pairs_of_frames(lpips: LpipsEncoder) -> None:
    variant = parse_variant("lpips")
    view = variant.needs[0].also_view
    first, second = noise(5), noise(5, seed=1)

    def score(one: Any, other: Any) -> Score:
        halves = [lpips.prepare(media, view) for media in (one, other)]
        [feature] = lpips.encode([lpips.join(halves, view)])
        [result] = make_scorer(variant).score([{"pair": feature}], variant.params)
        assert isinstance(result, Score)
        return result

    whole = score(video(first, fps=8.0), video(second))
    each = [score(ImageMedia(a), ImageMedia(b)).value for a, b in zip(first, second, strict=True)]
    assert whole.value == pytest.approx(np.mean(each), abs=1e-6)
    assert whole.detail == {"frames_used": 5, "size": "56x40"}
    assert "frames_used" not in score(ImageMedia(first[0]), ImageMedia(second[0])).detail
    assert score(video(first), video(first.copy())).value == 0.0


@pytest.mark.parametrize("count", [4, 6])
def test_videos_of_other_lengths_have_no_lpips(lpips: LpipsEncoder, count: int) -> None:
    view = parse_variant("lpips").needs[0].also_view
    halves = [lpips.prepare(video(noise(n)), view) for n in (5, count)]
    with pytest.raises(GenmeterError) as caught:
        lpips.join(halves, view)
    assert caught.value.code == "length_mismatch"
    assert "5 frames" in caught.value.message
    assert str(count) in caught.value.message


def test_what_is_in_work_at_once_does_not_follow_the_length(lpips: LpipsEncoder, clip: Any) -> None:
    """600 frames pass in pieces of the size that 60 frames pass in."""
    view = parse_variant("lpips").needs[0].also_view
    network = lpips._network
    assert network is not None
    most: dict[int, int] = {}
    real = network.distances
    for count in (60, 600):
        seen: list[int] = []

        def watched(images: np.ndarray, first: Any, second: Any, seen: list[int] = seen) -> Any:
            seen.append(len(images))
            import torch

            return torch.zeros(len(first))

        network.distances = watched  # type: ignore[method-assign]
        try:
            halves = [lpips.prepare(video(np.zeros((count, 256, 256, 3), np.uint8) + side), view) for side in (0, 1)]
            [feature] = lpips.encode([lpips.join(halves, view)])
        finally:
            network.distances = real  # type: ignore[method-assign]
        assert feature.values.shape == (count, 1)
        most[count] = max(seen)
    assert most[60] == most[600] <= 16
    rows = [clip._rows_at_once((96, 96, 3), items) for items in (1, 8)]
    assert rows[0] == rows[1] < 600
