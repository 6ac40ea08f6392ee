"""Frames are those of the file, upright, in the right colours, told apart by what is shown and not by a header."""

from __future__ import annotations

import io
import struct
import tracemalloc

import film_files as films
import numpy as np
import pytest
import sound_files
from PIL import Image

from genmeter.assets.limits import Limits
from genmeter.assets.load import load
from genmeter.assets.picks import pick
from genmeter.assets.resolve import Resolver
from genmeter.assets.video import decode_video
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import VideoMedia
from genmeter.errors import GenmeterError

LIMITS = Limits.of(Policy())
DIGEST = bytes(range(32))


def decoded(data: bytes, *requests, limits: Limits = LIMITS, digest: bytes = DIGEST) -> list:
    return decode_video([memoryview(data)], list(requests) or [{}], limits, digest)


def one(data: bytes, limits: Limits = LIMITS, **request) -> VideoMedia:
    [media] = decoded(data, request, limits=limits)
    if isinstance(media, GenmeterError):
        raise media
    assert media.frames.dtype == np.uint8
    assert len(media.frames) == len(media.times)
    return media


def refused(data: bytes, limits: Limits = LIMITS, **request) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        one(data, limits, **request)
    return caught.value


def levels(media: VideoMedia) -> list[int]:
    return [round(films.level(frame)) for frame in media.frames]


def near(media: VideoMedia, expected, tolerance: float = 3.0) -> None:
    found = np.array([films.level(frame) for frame in media.frames])
    assert len(found) == len(expected)
    assert np.abs(found - np.asarray(expected)).max() <= tolerance, list(zip(found, expected, strict=True))


# --- which frames ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", films.KINDS)
def test_every_container_gives_its_frames_in_order(kind) -> None:
    data = films.film(kind)
    whole, clip, spread, last = decoded(
        data, {}, {"frames": 16, "start": "center", "stride": 2}, {"spread": 8}, {"frames": 1, "stride": 1}
    )
    near(whole, range(60), 5.0)
    near(clip, range(14, 46, 2), 5.0)
    near(spread, [3, 11, 18, 26, 33, 41, 48, 56], 5.0)
    near(last, [0], 5.0)
    for media in (whole, clip, spread, last):
        assert media.detail["frames_total"] == 60
        assert media.detail["fps"] == pytest.approx(30, abs=0.05)
        assert media.detail["duration_s"] == pytest.approx(2.0, abs=0.05)
        assert (media.detail["width"], media.detail["height"]) == films.SIZE
        assert media.flags == ()
    assert clip.detail["first_frame"] == 14
    assert clip.times == pytest.approx(np.arange(14, 46, 2) / 30, abs=2e-3)


@pytest.mark.parametrize("kind", ["mp4", "mp4-mpeg4", "webm", "mpg", "avi-mjpeg"])
def test_one_decoding_and_several_give_the_same_frames(kind) -> None:
    data = films.film(kind)
    asked = [{"frames": 9, "start": "random"}, {"spread": 5}, {}, {"frames": 4, "stride": 3}]
    together = decoded(data, *asked)
    for request, media in zip(asked, together, strict=True):
        [alone] = decoded(data, request)
        assert np.array_equal(alone.frames, media.frames)
        assert np.array_equal(alone.times, media.times)
        assert (alone.flags, alone.detail) == (media.flags, media.detail)


def test_a_long_video_is_read_from_key_frames_and_gives_the_same(monkeypatch) -> None:
    from genmeter.assets import film

    data = films.film("mp4", 200, 20)
    asked = [{"spread": 5}, {"frames": 3, "start": "center"}, {"frames": 4, "stride": 37}]
    plain = decoded(data, *asked)
    monkeypatch.setattr(film, "_LONG", 0)
    for kept in (1 << 30, 0):  # packets kept from the first reading, or read again
        monkeypatch.setattr(film, "_KEPT_BYTES", kept)
        for media, other in zip(decoded(data, *asked), plain, strict=True):
            assert np.array_equal(media.frames, other.frames)
            assert media.detail == other.detail
    fed = []
    decode = film.Film._decoded
    monkeypatch.setattr(film.Film, "_decoded", lambda self, packet: fed.append(1) or decode(self, packet))
    decoded(data, {"spread": 2})
    assert len(fed) < 100, "most packets are not decoded"


def test_b_frames_and_open_groups_are_found_by_when_they_are_shown(monkeypatch) -> None:
    from genmeter.assets import film

    frames = [films.grey(index) for index in range(80)]
    options = {"g": "16", "bf": "3", "x264-params": "open-gop=1:b-pyramid=normal", "crf": "8"}
    data = films.encoded(frames, "mp4", options=options)
    near(one(data), range(80))
    monkeypatch.setattr(film, "_LONG", 0)
    near(one(data, frames=1), [0])
    near(one(data, frames=1, start="center"), [39])
    near(one(data, frames=3, stride=39), [0, 39, 78])
    [media] = decoded(data, {"spread": 27})
    near(media, [(2 * i + 1) * 80 // 54 for i in range(27)])


def test_uneven_times_are_sampled_by_index_or_by_time() -> None:
    stamps = [0.0, 0.1, 0.2, 0.3, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    data = films.encoded([films.grey(i) for i in range(10)], "matroska", stamps=stamps)
    near(one(data, frames=4), [0, 1, 2, 3])
    near(one(data, frames=5, sampling="time", fps=4.0), [0, 2, 3, 3, 4])
    near(one(data, frames=3, sampling="time", fps=10.0, start="center"), [3, 3, 4])
    assert one(data).times == pytest.approx(stamps, abs=2e-3)
    assert one(data).flags == ()


def test_fewer_frames_than_asked_for_are_all_there_are() -> None:
    data = films.film("mp4", 10)
    assert levels(one(data, frames=16)) == pytest.approx(range(10), abs=2)
    assert len(one(data, frames=16, start="center").frames) == 10
    assert len(one(data, frames=4, stride=4).frames) == 3
    assert len(one(data, spread=16).frames) == 10
    assert len(one(films.film("mp4", 1)).frames) == 1
    assert one(films.film("mp4", 1), spread=8).detail["frames_total"] == 1


def test_random_means_the_same_for_one_file() -> None:
    data = films.film("mp4")
    starts = set()
    for seed in range(40):
        digest = seed.to_bytes(32, "big")
        [first], [again] = (decoded(data, {"frames": 16, "start": "random"}, digest=digest) for _ in range(2))
        assert np.array_equal(first.frames, again.frames)
        starts.add(first.detail["first_frame"])
    assert len(starts) > 15
    assert min(starts) >= 0
    assert max(starts) <= 44


def test_picks() -> None:
    times = np.arange(100) / 25

    def picked(digest: bytes = DIGEST, **request) -> list[int]:
        return pick(request, times, 4.0, digest)

    assert picked() == picked(all=True) == list(range(100))
    assert picked(spread=4) == [12, 37, 62, 87]
    assert picked(spread=1) == [50]
    assert picked(spread=100) == picked(spread=400) == list(range(100))
    assert picked(frames=3, stride=10) == [0, 10, 20]
    assert picked(frames=10, start="center") == list(range(45, 55))
    assert picked(frames=99, start="center") == list(range(99))
    assert picked(frames=5, sampling="time", fps=5) == [0, 5, 10, 15, 20]
    assert picked(frames=5, sampling="time", fps=50) == [0, 0, 1, 1, 2]
    assert picked(frames=1000, sampling="time", fps=25) == list(range(100))
    assert picked(frames=2, sampling="time", fps=1, stride=2) == [0, 50]
    ends = [picked(bytes([i] * 32), frames=100, start="random") for i in range(9)]
    assert ends == [list(range(100))] * 9
    for request in (
        {"frames": 0},
        {"frames": "16"},
        {"spread": -1},
        {"frames": 4, "start": "end"},
        {"frames": 4, "sampling": "time"},
        {"frames": 4, "sampling": "frame"},
        {"frames": 4, "strides": 2},
        {"rate": 48000},
    ):
        with pytest.raises(ValueError):
            picked(**request)


# --- upright, colours, sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "turned", "rotation"),
    [
        ((1, 0, 0, 1), lambda p: p, None),
        ((0, 1, -1, 0), lambda p: np.rot90(p, -1), 90),
        ((-1, 0, 0, -1), lambda p: np.rot90(p, 2), 180),
        ((0, -1, 1, 0), lambda p: np.rot90(p, 1), 270),
        ((-1, 0, 0, 1), lambda p: p[:, ::-1], "mirrored"),
        ((1, 0, 0, -1), lambda p: p[::-1], "mirrored"),
        ((0, 1, 1, 0), lambda p: p.transpose(1, 0, 2), "mirrored"),
    ],
)
def test_the_display_matrix_is_applied(matrix, turned, rotation) -> None:
    """B37: a red bar on the left, turned by the file's matrix."""
    data = films.encoded([films.bar()] * 16, options={"crf": "1", "preset": "veryfast"})
    media = one(films.with_matrix(data, matrix))
    plain = one(data).frames
    assert np.array_equal(media.frames, np.stack([turned(frame) for frame in plain]))
    height, width = media.frames.shape[1:3]
    assert (media.detail["width"], media.detail["height"]) == (width, height)
    assert media.detail.get("rotation") == (rotation if isinstance(rotation, int) else None)
    assert media.detail.get("mirrored", False) == (rotation == "mirrored")
    if rotation == 90:
        assert (width, height) == (48, 64)
        top, bottom = media.frames[0, 4].mean(0), media.frames[0, 60].mean(0)
        assert top[0] > 200 > 50 > top[2]
        assert bottom[2] > 200 > 50 > bottom[0]


def test_an_angle_that_is_no_quarter_turn_is_refused() -> None:
    data = bytearray(films.film("mp4", 10))
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = struct.pack(">9i", 46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30)
    assert refused(bytes(data)).code == "unsupported_media"


@pytest.mark.parametrize("size", [(64, 48), (63, 47), (65, 33), (17, 90), (2, 2), (130, 2)])
@pytest.mark.parametrize(("codec", "pixels"), [("ffv1", "yuv420p"), ("ffv1", "yuv444p"), ("ffv1", "bgr0")])
def test_odd_sizes(size, codec, pixels) -> None:
    flat = np.full((size[1], size[0], 3), (200, 100, 50), np.uint8)
    media = one(films.encoded([flat] * 3, "matroska", codec, pixels))
    assert media.frames.shape == (3, size[1], size[0], 3)
    assert np.abs(media.frames.astype(int) - (200, 100, 50)).max() <= 3


MATRICES = {
    "bt709": (0.2126, 0.0722, 1),
    "smpte170m": (0.299, 0.114, 6),
    "bt2020nc": (0.2627, 0.0593, 9),
    "": (0.299, 0.114, 2),
}


def rgb(y, u, v, bits: int, kr: float, kb: float, full: bool) -> np.ndarray:
    """The closed form of ITU-R BT.601, 709 and 2020 (non-constant luminance), to 8 bits."""
    scale, top = 2 ** (bits - 8), 2**bits - 1
    light = y / top if full else (y - 16 * scale) / (219 * scale)
    blue, red = ((c - 128 * scale) / (top if full else 224 * scale) for c in (u, v))
    r, b = light + 2 * (1 - kr) * red, light + 2 * (1 - kb) * blue
    g = (light - kr * r - kb * b) / (1 - kr - kb)
    return np.clip(np.rint(255 * np.array([r, g, b])), 0, 255)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv444p10le", "yuv420p12le"])
def test_colours_are_those_of_the_closed_form(pixels, matrix, full) -> None:
    """Within one level, of the matrix and range that the file names, in 8, 10 and 12 bits."""
    import av

    bits = int(pixels[7:9]) if pixels[7:] else 8
    kr, kb, number = MATRICES[matrix]
    rng = np.random.default_rng(0)
    colours = [(rng.integers(60, 200), rng.integers(100, 156), rng.integers(100, 156)) for _ in range(12)]
    colours = [tuple(int(c) << (bits - 8) for c in colour) for colour in colours]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream = output.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, pixels
        stream.codec_context.options = {"strict": "-2"}
        context = stream.codec_context
        context.color_range, context.colorspace = (2 if full else 1), number
        for index, colour in enumerate(colours):
            frame = av.VideoFrame(32, 16, pixels)
            for plane, value in zip(frame.planes, colour, strict=True):
                kind = np.uint16 if bits > 8 else np.uint8
                plane.update(np.full(plane.buffer_size // np.dtype(kind).itemsize, value, kind).tobytes())
            frame.pts, frame.colorspace, frame.color_range = index, number, (2 if full else 1)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    media = one(buffer.getvalue())
    for frame, colour in zip(media.frames, colours, strict=True):
        expected = rgb(*colour, bits, kr, kb, full)
        assert np.abs(frame[8, 16] - expected).max() <= 1, (colour, frame[8, 16], expected)
        assert np.abs(frame.astype(int) - frame[8, 16]).max() <= 1


def test_rgb_and_grey_are_exact() -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(3)]
    for container, codec, pixels in (
        ("matroska", "ffv1", "bgr0"),
        ("avi", "rawvideo", "bgr24"),
        ("mov", "png", "rgb24"),
    ):
        assert np.array_equal(one(films.encoded(frames, container, codec, pixels)).frames, np.stack(frames))
    grey = [frame[..., :1] for frame in frames]
    data = films.encoded([g[..., 0] for g in grey], "matroska", "ffv1", "gray", source="gray")
    assert np.array_equal(one(data).frames, np.stack(grey).repeat(3, 3))


def test_transparency_is_composited_on_white_and_flagged() -> None:
    clear = np.zeros((16, 16, 4), np.uint8)
    clear[:, :8] = (10, 20, 30, 255)
    media = one(films.encoded([clear] * 3, "mov", "png", "rgba", source="rgba"))
    assert media.flags == ("alpha_composited",)
    assert np.array_equal(media.frames[1, 0, 0], (10, 20, 30))
    assert np.array_equal(media.frames[1, 0, 15], (255, 255, 255))
    opaque = np.full((16, 16, 4), 255, np.uint8)
    assert one(films.encoded([opaque] * 2, "mov", "png", "rgba", source="rgba")).flags == ()


def test_pixels_that_are_not_square_are_noted() -> None:
    from fractions import Fraction

    def prepare(stream) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)

    media = one(films.encoded([films.grey(0)] * 3, "matroska", prepare=prepare))
    assert media.frames.shape[1:3] == (64, 96)
    assert media.detail["pixel_aspect"] == pytest.approx(4 / 3)


# --- animations, folders and memory ----------------------------------------------------------------------------------


def animation(name: str, frames: list[np.ndarray], **options) -> bytes:
    buffer = io.BytesIO()
    first, *rest = (Image.fromarray(frame) for frame in frames)
    first.save(buffer, name, save_all=True, append_images=rest, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "AVIF"])
def test_animated_pictures_are_videos(name) -> None:
    frames = [np.full((24, 32, 3), 20 + 16 * i, np.uint8) for i in range(12)]
    options = {"lossless": True} if name == "WEBP" else {"quality": 95} if name == "AVIF" else {}
    media, clip = decoded(
        animation(name, frames, duration=[40, 80] * 6, **options), {}, {"frames": 4, "start": "center"}
    )
    assert np.abs(media.frames.astype(int) - np.stack(frames)).max() <= (3 if name == "AVIF" else 0)
    assert np.array_equal(clip.frames, media.frames[4:8])
    assert media.detail["frames_total"] == 12
    assert media.detail["fps"] == pytest.approx(12 / 0.72)
    assert media.times[:3] == pytest.approx([0, 0.04, 0.12])
    assert media.flags == ()


def test_an_animation_with_holes_is_composited() -> None:
    frames = []
    for i in range(3):
        frame = np.zeros((8, 8, 4), np.uint8)
        frame[i] = (255, 0, 0, 255)
        frames.append(frame)
    media = one(animation("PNG", frames, duration=100, disposal=1))
    assert media.flags == ("alpha_composited",)
    assert [np.array_equal(media.frames[i, i, 0], (255, 0, 0)) for i in range(3)] == [True] * 3
    assert np.array_equal(media.frames[2, 7, 7], (255, 255, 255))


@pytest.mark.parametrize("name", ["PNG", "GIF", "WEBP", "JPEG"])
def test_a_picture_that_does_not_move_is_no_video(name) -> None:
    buffer = io.BytesIO()
    Image.fromarray(films.bar()).save(buffer, name)
    error = refused(buffer.getvalue())
    assert error.code == "unsupported_media"
    assert name in error.message


def loaded(value, policy: Policy, roots=()):
    return load(Resolver(policy, roots).resolve(value, folders=True), policy)


def test_a_folder_of_frames_is_a_video(tmp_path) -> None:
    policy = Policy()
    folder = tmp_path / "clip"
    folder.mkdir()
    frames = [films.grey(index) for index in range(12)]
    for index, frame in enumerate(frames):
        Image.fromarray(frame).save(folder / f"frame_{index}.png")  # 10 behind 9, not behind 1
    (folder / "notes.txt").write_text("no frame")
    (folder / ".hidden.png").write_bytes(b"no frame")
    (folder / "sub").mkdir()
    blob = loaded(folder, policy, [tmp_path])
    with DecodePool(policy, 1) as pool:
        whole, spread = pool.decode(blob, "video", [{}, {"spread": 3}])
        assert np.array_equal(whole.frames, np.stack(frames))
        assert np.array_equal(spread.frames, np.stack([frames[i] for i in (2, 6, 10)]))
        assert whole.detail["frames_total"] == 12
        assert "fps" not in whole.detail
        [refusal] = pool.decode(blob, "image", [{}])
        assert refusal.code == "forbidden"
        [refusal] = pool.decode(blob, "audio", [{}])
        assert refusal.code == "forbidden"
        Image.fromarray(films.grey(3, (20, 20))).save(folder / "frame_5.png")
        other = loaded(folder, policy, [tmp_path])
        assert other.digest != blob.digest
        [refusal] = pool.decode(other, "video", [{}])
        assert refusal.code == "unsupported_media"
        assert "20x20" in refusal.message
        (folder / "frame_5.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        [refusal] = pool.decode(loaded(folder, policy, [tmp_path]), "video", [{}])
        assert refusal.code == "decode_failed"
        assert "frame 5" in refusal.message
        [good] = pool.decode(loaded(folder, policy, [tmp_path]), "video", [{"frames": 5}])
        assert len(good.frames) == 5
    assert {stamp.path for stamp in blob.files} == {str(folder), *(str(folder / f"frame_{i}.png") for i in range(12))}


def test_a_folder_may_not_lead_elsewhere(tmp_path) -> None:
    policy = Policy()
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "clip").mkdir(parents=True)
    outside.mkdir()
    Image.fromarray(films.bar()).save(outside / "secret.png")
    (inside / "clip" / "0.png").symlink_to(outside / "secret.png")
    (inside / "link").symlink_to(outside)
    for name in ("clip", "link", "../out"):
        with pytest.raises(GenmeterError) as caught:
            loaded(name, policy, [inside])
        assert caught.value.code == "forbidden", name
    (inside / "empty").mkdir()
    with pytest.raises(GenmeterError) as caught:
        loaded("empty", policy, [inside])
    assert caught.value.code == "empty_media"
    with pytest.raises(GenmeterError) as caught:
        Resolver(policy, [inside]).resolve("clip")
    assert caught.value.code == "forbidden"


def test_a_folder_above_the_limit(tmp_path) -> None:
    for index in range(4):
        Image.fromarray(films.grey(index)).save(tmp_path / f"{index}.png")
    with pytest.raises(GenmeterError) as caught:
        loaded(tmp_path, Policy(max_bytes=5000), [tmp_path])
    assert caught.value.code == "too_large"


def test_frames_in_memory() -> None:
    policy = Policy(max_frames=30)
    frames = np.stack([films.grey(index) for index in range(24)])
    blob = loaded(frames, policy)
    with DecodePool(policy, 1) as pool:
        whole, clip = pool.decode(blob, "video", [{}, {"frames": 4, "stride": 5}])
        assert np.array_equal(whole.frames, frames)
        assert np.array_equal(clip.frames, frames[[0, 5, 10, 15]])
        assert clip.detail["frames_total"] == 24
        frames[0] = 0
        assert whole.frames[0].any(), "what the caller does to its array afterwards is its own business"
        [refusal] = pool.decode(loaded(np.zeros((31, 4, 4, 3), np.uint8), policy), "video", [{}])
        assert refusal.code == "too_large"
        [refusal] = pool.decode(blob, "image", [{}])
        assert refusal.code == "unsupported_media"
    for value, code in (
        (np.zeros((0, 4, 4, 3), np.uint8), "empty_media"),
        (np.zeros((2, 4, 4, 3), np.float32), "unsupported_media"),
        (np.zeros((2, 3, 4, 4), np.uint8), "unsupported_media"),
    ):
        with pytest.raises(GenmeterError) as caught:
            loaded(value, policy)
        assert caught.value.code == code


# --- damage ----------------------------------------------------------------------------------------------------------


def zeroed(data: bytes, start: float = 0.6, end: float = 0.7) -> bytes:
    out = bytearray(data)
    first, last = int(len(out) * start), int(len(out) * end)
    out[first:last] = bytes(last - first)
    return bytes(out)


@pytest.mark.parametrize("kind", ["mp4", "mp4-hevc", "mp4-av1", "mp4-mpeg4", "webm", "mkv", "mkv-ffv1"])
def test_damaged_frames_are_counted_and_never_delivered(kind) -> None:
    """B40: a tenth of a video of 300 frames is overwritten; each frame that comes back is the one it says it is."""
    data = films.film(kind, 300, 25, kind.startswith("mp4"))
    media = one(zeroed(data))
    assert media.flags == ("damaged_frames",)
    assert media.detail["frames_total"] == 300
    good = len(media.frames)
    assert 150 < good < 300
    assert media.detail["damaged_frames"] == 300 - good
    which = np.rint(media.times * films.FPS).astype(int)
    near(media, which % 216, 6.0)
    clean = one(data)
    assert np.abs(media.frames.astype(int) - clean.frames[which]).mean() < 0.5
    lost = sorted(set(range(300)) - set(which.tolist()))
    first = lost[0]
    start = one(zeroed(data), frames=16)
    near(start, range(16), 6.0)
    error = refused(zeroed(data), frames=first + 1)
    assert error.code == "decode_failed"
    assert f"frame {first} of 300" in error.message
    assert refused(zeroed(data), spread=299).code == "decode_failed"


@pytest.mark.parametrize("kind", ["avi-mjpeg", "avi-mpeg4", "avi-raw"])
def test_frames_that_cannot_be_told_apart_any_more_are_refused(kind) -> None:
    assert refused(zeroed(films.film(kind, 100))).code == "decode_failed"


@pytest.mark.parametrize("share", [0.3, 0.55, 0.8])
@pytest.mark.parametrize("kind", ["mp4", "webm", "mkv", "avi-mjpeg", "avi-mpeg4"])
def test_a_cut_file_is_read_up_to_the_cut_and_flagged(kind, share) -> None:
    data = films.film(kind, 100, 10, kind == "mp4")
    cut = data[: int(len(data) * share)]
    media = one(cut)
    assert media.flags == ("damaged_frames",)
    total = media.detail["frames_total"]
    assert 15 < total < 95
    assert total - 2 <= len(media.frames) <= total
    near(media, range(len(media.frames)), 6.0)
    assert media.detail["damaged_frames"] == pytest.approx(100 - total, abs=3)
    clip = one(cut, frames=8)
    assert clip.flags == ("damaged_frames",)
    near(clip, range(8), 6.0)


def test_cut_within_its_header() -> None:
    for kind in ("mp4", "mov", "webm", "mkv", "avi-mjpeg"):
        data = films.film(kind)
        assert refused(data[:200]).code == "decode_failed", kind
    assert "moov" in refused(films.film("mp4")[:-500]).message


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (sound_files.encoded_kind("m4a", sound_files.tone, 0.2), "unsupported_media", "found audio (M4A)"),
        (
            sound_files.encoded("mp4", "aac", sound_files.tone(44100, 0.2), 44100),
            "unsupported_media",
            "no video stream",
        ),
        (sound_files.wav(sound_files.tone(8000, 0.1), 8000), "unsupported_media", "found audio (WAV)"),
        (b"<html>secret-token</html>", "unsupported_media", "an HTML page"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "unsupported_media", "plain text"),
        (bytes(4000), "unsupported_media", ""),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "decode_failed", "moov"),
        (b"\x1aE\xdf\xa3", "decode_failed", "not whole"),
    ],
)
def test_what_is_no_video(data, code, words) -> None:
    error = refused(data)
    assert error.code == code
    assert words in error.message
    assert "secret-token" not in str(error.to_dict())
    assert "passwd" not in str(error.to_dict())


def test_an_empty_file(tmp_path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(GenmeterError) as caught:
        loaded("a.mp4", Policy(), [tmp_path])
    assert caught.value.code == "empty_media"


# --- limits ----------------------------------------------------------------------------------------------------------


def test_more_than_may_be_held() -> None:
    data = films.film("mp4")
    few = LIMITS._replace(max_frames=20)
    assert refused(data, few).code == "too_large"
    assert "60 frames" in refused(data, few).message
    assert len(one(data, few, frames=16).frames) == 16
    assert len(one(data, few, spread=20).frames) == 20
    whole, clip = decoded(data, {}, {"frames": 5}, limits=few)
    assert whole.code == "too_large"
    assert len(clip.frames) == 5, "what one view asks too much of costs no other"
    assert refused(data, LIMITS._replace(max_pixels=96 * 63)).code == "too_large"
    assert refused(data, LIMITS._replace(decode_memory=1_000_000)).code == "too_large"


def test_only_the_frames_that_are_wanted_are_held() -> None:
    """Memory for a clip out of a long video is that of the clip."""

    def peak(count: int) -> int:
        data = memoryview(films.film("mp4", count, 20))
        decode_video([data], [{"spread": 4}], LIMITS, DIGEST)
        tracemalloc.start()
        decode_video([data], [{"frames": 8, "start": "center"}, {"spread": 8}], LIMITS, DIGEST)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(300) < peak(40) + 300_000  # a frame has 18,432 bytes; all of them 4.8 MB more


def test_sizes_that_change_within_a_video_are_refused() -> None:
    import av

    buffer = io.BytesIO()
    small = films.encoded([films.grey(i) for i in range(10)], "h264", options={"g": "1"})
    large = films.encoded([films.grey(i, (128, 96)) for i in range(10)], "h264", options={"g": "1"})
    with av.open(io.BytesIO(small + large), format="h264") as source, av.open(buffer, "w", format="mpegts") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        for index, packet in enumerate(source.demux(source.streams.video[0])):
            if packet.size:
                packet.pts = packet.dts = index * 3000
                packet.time_base = stream.time_base
                packet.stream = stream
                output.mux(packet)
    error = refused(buffer.getvalue())
    assert error.code in ("unsupported_media", "decode_failed")
