"""Synthetic clips: frames that move as the caption says, damage of a known kind, and files that hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genmeter.contract import Feature, VideoMedia
from genmeter.encoders.registry import create_encoder
from genmeter.engine.catalog import weightless
from genmeter.stats.motion import motion_of
from genmeter.synth import videos
from genmeter.synth.film import write_video
from genmeter.synth.motion import DEGRADATIONS, MOTIONS, caption, degrade_frames, frames, make_clip
from genmeter.synth.scene import make_scene
from genmeter.synth.words import caption as scene_caption

av = pytest.importorskip("av")


def read(path: Path) -> np.ndarray:
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def changes(pixels: np.ndarray) -> Feature:
    encoder = create_encoder("motion", weightless("motion"), lambda: pytest.fail("no weights"))
    [feature] = encoder.encode([encoder.prepare(VideoMedia(pixels, np.arange(len(pixels)) / 8), {"frames": "all"})])
    return feature


def test_a_seed_is_one_clip_and_all_motions_occur() -> None:
    assert make_clip(3) == make_clip(3)
    assert {make_clip(seed).motion for seed in range(30)} == set(MOTIONS)
    assert make_clip(3).scene == make_scene(3)
    assert np.array_equal(frames(make_clip(3), 5), frames(make_clip(3), 9)[:5])


def test_captions_name_scene_and_motion() -> None:
    for seed in range(6):
        clip = make_clip(seed)
        assert caption(clip).startswith(scene_caption(clip.scene))
        words = {"sway": ("side to side", "左右"), "bob": ("up and down", "上下"), "circle": ("circles", "绕圈")}
        english, chinese = words[clip.motion]
        assert english in caption(clip)
        assert chinese in caption(clip, "zh")
    with pytest.raises(ValueError, match="fr"):
        caption(make_clip(0), "fr")


@pytest.mark.parametrize("motion", MOTIONS)
def test_shapes_move_as_the_caption_says(motion: str) -> None:
    clip = make_clip(0)._replace(motion=motion, period=2.0)
    found = frames(clip, 16, 128, 128).astype(int)
    assert found.shape == (16, 128, 128, 3)
    moved = np.abs(found - found[0]).sum(axis=3) > 60
    assert not moved[0].any()
    assert moved[4].any(), "a quarter of a round later"
    rows, columns = (np.abs(found[4].mean(axis=axis) - found[0].mean(axis=axis)).sum() for axis in (1, 0))
    if motion == "sway":
        assert columns > 2 * rows
    elif motion == "bob":
        assert rows > 2 * columns
    background = found[:, 0, 0]
    assert (background == background[0]).all()


def test_damage_is_of_its_kind() -> None:
    clean = frames(make_clip(5), 16)
    for kind in DEGRADATIONS:
        assert np.array_equal(degrade_frames(clean, kind, 0.0), clean)
        damaged = degrade_frames(clean, kind, 0.7, seed=1)
        assert damaged.shape == clean.shape
        assert damaged.dtype == np.uint8
        assert np.array_equal(damaged, degrade_frames(clean, kind, 0.7, seed=1))
        assert not np.array_equal(damaged, clean)
    flicker = degrade_frames(clean, "flicker", 1.0).mean(axis=(1, 2, 3))
    assert flicker.std() > 5 * clean.mean(axis=(1, 2, 3)).std()
    mixed = degrade_frames(clean, "shuffled", 1.0)
    assert sorted(frame.tobytes() for frame in mixed) == sorted(frame.tobytes() for frame in clean)
    for wrong in (("melted", 0.5), ("noise", 1.5), ("noise", -0.1)):
        with pytest.raises(ValueError, match=r"melted|strength"):
            degrade_frames(clean, *wrong)


def test_frozen_clips_stand_still_and_others_move() -> None:
    for seed in range(4):
        clean = frames(make_clip(seed), 16)
        assert motion_of(changes(clean))[1] == ()
        assert motion_of(changes(degrade_frames(clean, "frozen", 1.0))) == (0.0, ("static_video",))


def test_a_file_holds_its_frames_and_equal_ones_have_equal_bytes(tmp_path: Path) -> None:
    pixels = frames(make_clip(7), 12)
    first, again = (write_video(tmp_path / name, pixels, 8) for name in ("a.mp4", "b.mp4"))
    assert first.read_bytes() == again.read_bytes()
    found = read(first)
    assert found.shape == pixels.shape
    assert np.abs(found.astype(int) - pixels).mean() < 6, "but for compression and 4:2:0"
    with av.open(str(first)) as file:
        assert file.streams.video[0].average_rate == 8
    with pytest.raises(ValueError, match="even"):
        write_video(tmp_path / "c.mp4", pixels[:, :95], 8)


def test_a_frozen_file_stays_static_under_compression(tmp_path: Path) -> None:
    for seed in range(4):
        clean = frames(make_clip(seed), 24)
        moving = read(write_video(tmp_path / "m.mp4", clean, 8))
        frozen = read(write_video(tmp_path / "f.mp4", degrade_frames(clean, "frozen", 1.0), 8))
        assert motion_of(changes(moving))[1] == ()
        assert motion_of(changes(frozen))[1] == ("static_video",)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, list(videos.write(folder, len(videos.CASES), 0))


def test_the_demo_shows_good_degraded_wrong_and_broken(demo: Any) -> None:
    folder, lines = demo
    json.dumps(lines)
    assert len({line["id"] for line in lines}) == len(lines)
    assert {line["task_type"] for line in lines} == {"text-to-video"}
    assert {line["data_tag"]["strength"] for line in lines} == {"good", "mild", "strong", "wrong", "broken"}
    assert {line["data_tag"]["language"] for line in lines} == {"en", "zh"}
    assert {*DEGRADATIONS, "matching", "unrelated", "short", "truncated"} <= {
        line["data_tag"]["match"] for line in lines
    }
    counts = {}
    for line in lines:
        [part] = line["predict_result"][0]["message"]["content"]
        path = folder / part["video_url"]["url"]
        match = line["data_tag"]["match"]
        assert path.exists() == (match != "missing")
        [reference] = line["references"][0]["answer"]
        assert (folder / reference["video_url"]["url"]).is_file()
        if match in ("matching", "short"):
            counts[match, line["id"]] = len(read(path))
    assert set(counts.values()) == {7, videos.FRAMES, 40}
    assert [line for line in lines if line["messages"][0]["content"][0]["text"] == ""]


def test_the_demo_is_the_same_each_time(demo: Any, tmp_path: Path) -> None:
    folder, lines = demo
    again = list(videos.write(tmp_path, 6, 0))
    assert again == lines[:6]
    for name in ("outputs/video-0000.mp4", "references/video-0003.mp4"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    other = list(videos.write(tmp_path / "other", 3, 1))
    assert [line["messages"] for line in other] != [line["messages"] for line in lines[:3]]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tiny_clip_sees_which_clip_belongs_to_which_caption(language: str) -> None:
    from genmeter.weights.lock import get_entry
    from genmeter.weights.manager import ensure

    entry = get_entry("tiny-clip")
    encoder = create_encoder("clip", entry, lambda: ensure(entry))
    encoder.load("cpu", "exact")
    clips = [make_clip(2000 + i) for i in range(8)]
    media = [VideoMedia(frames(clip, 8), np.arange(8) / 8) for clip in clips]
    shown = [f.values for f in encoder.encode([encoder.prepare(m, {"alpha": "white"}) for m in media])]
    texts = [f.values[0] for f in encoder.encode([encoder.prepare(caption(c, language), {}) for c in clips])]
    matching = [float((values @ text).mean()) for values, text in zip(shown, texts, strict=True)]
    others = [float((values @ texts[i - 1]).mean()) for i, values in enumerate(shown)]
    assert min(matching) > 0.3
    assert np.mean(matching) > np.mean(others) + 0.4
