"""Sound is decoded to what was written, at the rate that is asked for, or there is a reason why not."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import sound_files as files

from genmeter.assets.audio import Ear, decode_audio, resampled_length
from genmeter.assets.limits import Limits
from genmeter.assets.load import load
from genmeter.assets.resolve import Resolver
from genmeter.assets.workers import DecodePool
from genmeter.config import Policy
from genmeter.contract import AudioMedia
from genmeter.errors import GenmeterError

LIMITS = Limits.of(Policy())
# How far a stored sample may lie from what was stored: half a step, and for the two laws half their largest step.
STEPS = {"u8": 1 / 256, "s16": 2**-16, "s24": 2**-24, "s32": 1e-8, "f32": 1e-8, "f64": 1e-8}
STEPS.update(mulaw=2**-6, alaw=2**-6)


def decoded(data: bytes, limits: Limits = LIMITS, **request) -> AudioMedia:
    [media] = decode_audio(memoryview(data), [request], limits)
    assert media.samples.dtype == np.float32
    assert media.samples.ndim == 1
    return media


def refused(data: bytes, limits: Limits = LIMITS) -> GenmeterError:
    with pytest.raises(GenmeterError) as caught:
        decode_audio(memoryview(data), [{}], limits)
    return caught.value


# --- sample formats, rates and channels -----------------------------------------------------------------------------


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("kind", files.FORMATS)
def test_every_sample_format_is_what_was_written(kind, extensible) -> None:
    sound = files.tone(16000, 0.2, level=0.7)
    media = decoded(files.wav(sound, 16000, kind, extensible=extensible))
    assert media.rate == 16000
    assert len(media.samples) == len(sound)
    assert np.abs(media.samples - sound).max() <= STEPS[kind] + 4e-8
    assert media.flags == ()


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000, 96000])
@pytest.mark.parametrize("kind", files.FORMATS)
def test_one_tone_is_one_tone_at_every_rate_and_format(kind, rate, channels) -> None:
    """B16: 3 s of 1 kHz. Within the files' own steps of the tone itself, the first and last 50 ms apart."""
    sound = files.tone(rate)
    spread = np.repeat(sound[:, None], channels, 1)
    media = decoded(files.wav(spread, rate, kind), rate=48000)
    assert len(media.samples) == 144000
    assert media.rate == 48000
    assert media.detail["source_rate"] == rate
    assert media.detail["channels"] == channels
    assert media.detail["duration_s"] == 3.0
    middle = slice(2400, -2400)
    assert np.abs(media.samples - files.tone(48000))[middle].max() <= STEPS[kind] * 1.5 + 2e-4


def test_channels_are_averaged() -> None:
    loud, quiet = np.full(500, 0.8), np.full(500, -0.2)
    assert decoded(files.wav(np.stack([loud, quiet], 1), kind="f32")).samples == pytest.approx(0.3, abs=1e-7)
    six = np.stack([np.full(500, 0.1 * c) for c in range(6)], 1)
    assert decoded(files.wav(six, kind="f32")).samples == pytest.approx(0.25, abs=1e-7)
    # Beyond full scale in one channel only: nothing is clipped.
    media = decoded(files.wav(np.stack([np.full(500, 1.5), np.full(500, -0.5)], 1), kind="f32"))
    assert media.samples == pytest.approx(0.5)
    assert media.flags == ()


# --- headers --------------------------------------------------------------------------------------------------------


ODD = files.chunk(b"LIST", b"INFOICMT\x05\0\0\0abcde\0"[:17])
UNPADDED = b"junk" + struct.pack("<I", 3) + b"abc"


@pytest.mark.parametrize(
    "options",
    [
        {"after": ODD},
        {"before": ODD},
        {"before": UNPADDED},
        {"kind": "s24", "after": files.chunk(b"id3 ", b"\1" * 33)},
        {"before": files.chunk(b"JUNK", bytes(28)), "after": files.chunk(b"bext", bytes(602))},
        {"size": 0},
        {"size": 0xFFFFFFFF},
        {"size": 0x7FFFFFFF},
        {"size": 0x7FFFF000},
        {"large": True},
        {"large": True, "large_size": 0},
        {"large": True, "large_size": 2**64 - 1},
        {"large": True, "size": 0xFFFFFFFF, "before": ODD},
        {"large": True, "after": files.chunk(b"LIST", bytes(40))},
    ],
)
def test_what_stands_around_the_samples_is_not_heard(options) -> None:
    sound = files.tone(44100, 0.1)[:4409]  # an odd number of 24-bit samples is an odd number of bytes
    media = decoded(files.wav(sound, 44100, **{"kind": "s16", **options}))
    assert len(media.samples) == 4409
    assert np.abs(media.samples - sound).max() < 2e-5


@pytest.mark.parametrize("count", [1, 5, 240])
@pytest.mark.parametrize("rate", [8000, 44100, 48000, 96000, 192000])
def test_shortest_sounds(rate, count) -> None:
    """B18: one sample, and 5 ms of 48 kHz."""
    media = decoded(files.wav(np.full(count, 0.25), rate), rate=48000)
    assert len(media.samples) == resampled_length(count, rate, 48000) >= 1
    assert np.isfinite(media.samples).all()
    if rate == 48000:
        assert media.samples == pytest.approx(0.25)


# --- resampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 44100, 96000, 192000])
def test_resampling_equals_one_call_of_soxr(rate) -> None:
    soxr = pytest.importorskip("soxr")
    sound = np.random.default_rng(rate).uniform(-0.9, 0.9, 3 * rate + 1).astype("f4")
    whole = soxr.resample(sound, rate, 48000, "HQ")
    media = decoded(files.wav(sound, rate, "f32"), rate=48000)
    assert len(media.samples) == int((3 * rate + 1) * 48000 / rate + 0.5)
    shared = min(len(whole), len(media.samples))
    assert np.abs(np.clip(whole, -1, 1)[:shared] - media.samples[:shared]).max() < 1e-6


@pytest.mark.slow  # librosa takes its time to be imported
@pytest.mark.parametrize("rate", [16000, 44100])
def test_resampling_equals_librosa(rate) -> None:
    librosa = pytest.importorskip("librosa")
    sound = np.random.default_rng(rate).uniform(-0.4, 0.4, 2 * rate).astype("f4")
    theirs = librosa.resample(sound, orig_sr=rate, target_sr=48000, res_type="soxr_hq")
    ours = decoded(files.wav(sound, rate, "f32"), rate=48000).samples
    assert len(ours) == 96000 <= len(theirs) <= 96001  # librosa rounds up, here what a float's last digit adds
    assert np.abs(theirs[:96000] - ours).max() < 1e-5


def test_lengths_are_rounded_half_up() -> None:
    for count in (1, 2, 3, 5, 999, 44100, 123457):
        for source, rate in ((44100, 48000), (96000, 48000), (48000, 44100), (8000, 48000), (11025, 16000)):
            exact = count * rate / source
            assert abs(resampled_length(count, source, rate) - exact) <= 0.5 or exact < 0.5
    assert resampled_length(5, 96000, 48000) == 3


def test_several_rates_come_from_one_decoding() -> None:
    data = memoryview(files.wav(files.tone(44100, 0.5), 44100))
    own, low, high = decode_audio(data, [{}, {"rate": 16000}, {"rate": 48000}], LIMITS)
    assert [m.rate for m in (own, low, high)] == [44100, 16000, 48000]
    assert [len(m.samples) for m in (own, low, high)] == [22050, 8000, 24000]
    for media in (low, high):
        assert np.array_equal(media.samples, decoded(bytes(data), rate=media.rate).samples)


def test_working_memory_does_not_grow_with_the_length() -> None:
    """Beside the result, which is 4 bytes a sample."""

    def overhead(seconds: int) -> int:
        tracemalloc.start()
        ear = Ear(44100, [{"rate": 48000}], LIMITS, seconds)
        piece = np.zeros((1, 4410), np.float32)
        for _ in range(10 * seconds):
            ear.add(piece)
        [media] = ear.finish({})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - media.samples.nbytes

    short, long = overhead(10), overhead(600)
    assert long < short + (1 << 20)
    assert long < 8 << 20


# --- compressed and other containers --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", files.LOSSLESS)
def test_lossless_containers_give_back_the_samples(kind) -> None:
    media = decoded(files.encoded_kind(kind))
    sound = files.mixed(44100)
    assert len(media.samples) == len(sound)
    tolerance = 2**-7 if kind == "wavpack" else 2**-15  # FFmpeg's WavPack encoder takes 8 bits by default
    assert np.abs(media.samples - sound).max() < tolerance


@pytest.mark.parametrize("kind", ["mp3", "ogg-opus", "webm", "m4a", "mp4", "mkv", "mp4-opus", "ogg-vorbis"])
def test_padding_of_codecs_is_cut_off(kind) -> None:
    """A tone comes back in place; what the container says about its end is honoured by FFmpeg where it is said."""
    rate = files.ENCODED[kind][2]
    media = decoded(files.encoded_kind(kind, files.tone, 1.0))
    sound = files.tone(rate, 1.0)
    if kind in ("mp3", "ogg-opus", "webm"):
        assert len(media.samples) == len(sound)
    assert len(sound) <= len(media.samples) <= len(sound) + 2048
    middle = slice(rate // 10, -rate // 10)
    assert np.abs(media.samples[: len(sound)] - sound)[middle].max() < 0.05


@pytest.mark.parametrize(
    ("container", "sound"), [("mp4", "aac"), ("webm", "libopus"), ("matroska", "aac"), ("mov", "pcm_s16le")]
)
def test_the_sound_track_of_a_video(container, sound) -> None:
    media = decoded(files.with_pictures(container, sound, 48000, files.tone(48000, 1.0)), rate=48000)
    assert 48000 <= len(media.samples) <= 48000 + 1024
    assert np.abs(media.samples[:48000] - files.tone(48000, 1.0))[4800:-4800].max() < 0.03
    silent = refused(files.with_pictures(container, None, 48000, None))
    assert silent.code == "unsupported_media"
    assert "no audio stream" in silent.message


def test_the_default_stream_is_taken_and_named() -> None:
    import io

    import av

    def file(default: int | None) -> bytes:
        buffer = io.BytesIO()
        with av.open(buffer, "w", format="matroska") as output:
            streams = [output.add_stream("pcm_s16le", rate=16000) for _ in range(2)]
            for index, stream in enumerate(streams):
                stream.layout = "mono"
                if default is not None:
                    stream.disposition = av.stream.Disposition.default if index == default else 0
            for index, stream in enumerate(streams):
                files.write_sound(output, stream, np.full(1600, 0.1 * (index + 1)), 16000)
        return buffer.getvalue()

    first = decoded(file(None))
    assert first.samples[800] == pytest.approx(0.1, abs=1e-4)
    assert (first.detail["audio_streams"], first.detail["audio_stream"]) == (2, 0)
    if hasattr(av.stream, "Disposition"):
        second = decoded(file(1))
        assert second.samples[800] == pytest.approx(0.2, abs=1e-4)
        assert second.detail["audio_stream"] == 1


def test_cover_art_and_tags_are_skipped() -> None:
    art = b"\0image/png\0\x03\0" + b"\x89PNG\r\n\x1a\n" + bytes(2000)
    frame = b"APIC" + struct.pack(">I", len(art)) + b"\0\0" + art
    size = len(frame)
    seven = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    tag = b"ID3\x03\0\0" + seven + frame
    bare = files.encoded_kind("mp3")
    at = 10 + int.from_bytes(bare[6:10], "big") if bare[:3] == b"ID3" else 0
    plain = decoded(bare)
    for data in (tag + bare[at:], bare + b"TAG" + b"\xff\0" * 62 + b"\xff", tag + bare):
        media = decoded(data)
        assert np.array_equal(media.samples, plain.samples)
        assert media.detail["format"] == "MP3"
    flac = files.encoded_kind("flac")
    assert np.array_equal(decoded(tag + flac).samples, decoded(flac).samples)


# --- content --------------------------------------------------------------------------------------------------------


def test_silence_is_delivered_and_flagged() -> None:
    assert decoded(files.wav(np.zeros(144000))).flags == ("silent",)
    noise = np.random.default_rng(0).choice([-1, 0, 1], 4800) / 2**15  # what dithering leaves of silence
    assert decoded(files.wav(noise)).flags == ("silent",)
    assert decoded(files.wav(noise * 2)).flags == ()
    resampled = decoded(files.wav(np.zeros(44100), 44100), rate=48000)
    assert resampled.flags == ("silent",)
    assert not resampled.samples.any()
    assert decoded(files.wav(np.zeros(100), kind="u8")).flags == ("silent",)


def test_what_is_beyond_full_scale_is_clipped_and_flagged() -> None:
    sound = files.tone(48000, 0.5, level=1.5)
    media = decoded(files.wav(sound, kind="f32"))
    assert media.flags == ("clipped",)
    assert np.abs(media.samples - np.clip(sound, -1, 1)).max() < 1e-6
    assert np.abs(media.samples).max() == 1.0
    again = decoded(files.wav(sound, 44100, "f64"), rate=48000)
    assert again.flags == ("clipped",)
    assert np.abs(again.samples).max() <= 1.0


def test_full_scale_alone_is_no_clipping() -> None:
    square = np.sign(files.tone(44100, 0.5)) * (1 - 2**-15)
    media = decoded(files.wav(square, 44100), rate=48000)  # resampling swings beyond it, as of every square wave
    assert media.flags == ()
    assert np.abs(media.samples).max() <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("at", [0, 70000, 143999])
def test_samples_that_are_no_numbers(value, kind, at) -> None:
    sound = files.tone(48000)
    sound[at] = value
    assert refused(files.wav(sound, 48000, kind)).code == "non_finite"


def test_floats_too_large_for_32_bits_are_no_numbers() -> None:
    assert refused(files.wav(np.full(100, 1e300), kind="f64")).code == "non_finite"


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (files.wav(np.zeros(0)), "empty_media", "no samples"),
        (files.wav(np.zeros(0), after=files.chunk(b"LIST", b"INFOabcd")), "empty_media", "no samples"),
        (files.wav(np.zeros(0), large=True), "empty_media", "no samples"),
        (files.wav(np.zeros(4), size=4000), "decode_failed", "4000 bytes of samples, and holds 8"),
        (b"RIFF\0\0\0\0WAVE", "decode_failed", "no chunk of samples"),
        (files.wav(np.zeros(9))[:30], "decode_failed", "within its 'fmt' chunk"),
        (b"RIFF\0\0\0\0WAVEdata\x08\0\0\0" + bytes(8), "decode_failed", "no format"),
        (files.wav(np.zeros(100), rate=0), "decode_failed", "WAV"),
        (files.wav(np.zeros(100), rate=3), "unsupported_media", "3 Hz"),
        (files.wav(np.zeros(100), rate=2_000_000_000), "unsupported_media", "2000000000 Hz"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "unsupported_media", "expected audio, found image (PNG)"),
        (b"<html>secret-token</html>", "unsupported_media", "an HTML page"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "unsupported_media", "plain text"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "unsupported_media", "plain text"),
        (bytes(5000), "unsupported_media", "unknown kind"),
        (b"fLaC" + bytes(20), "decode_failed", "within its header"),
        (b"OggS", "decode_failed", "not whole"),
        (b"ID3\x04\0\0\0\0\0\0", "empty_media", "no samples"),
        (b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42", "decode_failed", "moov"),
    ],
)
def test_what_is_no_sound(data, code, words) -> None:
    error = refused(data)
    assert error.code == code
    assert words in error.message
    assert "secret-token" not in str(error.to_dict())
    assert "passwd" not in str(error.to_dict())


def test_an_audio_file_of_a_known_kind_with_a_codec_of_its_own_is_named() -> None:
    data = bytearray(files.wav(np.zeros(100)))
    data[20:22] = b"\x99\x99"  # a format tag that nobody knows
    error = refused(bytes(data))
    assert error.code in ("unsupported_media", "decode_failed")
    assert "WAV" in error.message


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("kind", files.ENCODED)
def test_a_cut_file_is_no_shorter_clip(kind, share) -> None:
    data = files.encoded_kind(kind)
    error = refused(data[: int(len(data) * share)])
    assert error.code == "decode_failed"
    assert error.hint


@pytest.mark.parametrize("missing", [1, 2, 3, 100, 2000])
def test_a_few_bytes_less_are_noticed(missing) -> None:
    for data in (files.wav(files.tone(44100), 44100, "s16"), files.wav(files.tone(44100), 44100, "s24", large=True)):
        assert refused(data[:-missing]).code == "decode_failed"
    for kind in ("mp3", "ogg-opus", "adts", "webm", "aiff", "caf", "w64", "au", "avi"):
        assert refused(files.encoded_kind(kind)[:-missing]).code == "decode_failed", kind


@pytest.mark.parametrize("kind", sorted(set(files.ENCODED) - {"aiff", "aifc", "caf", "w64", "au", "wav-adpcm"}))
def test_damage_in_the_middle_is_noticed(kind) -> None:
    """A tenth of the file is overwritten with zeros."""
    data = bytearray(files.encoded_kind(kind))
    start, end = int(len(data) * 0.6), int(len(data) * 0.7)
    data[start:end] = bytes(end - start)
    assert refused(bytes(data)).code == "decode_failed"


def test_an_mp3_that_lost_whole_frames_is_known_by_its_own_count() -> None:
    data = files.encoded_kind("mp3")
    from genmeter.assets.streams import mp3_frame

    view = memoryview(data)
    at = 10 + int.from_bytes(data[6:10], "big") if data[:3] == b"ID3" else 0
    ends = []
    while at < len(data):
        at += mp3_frame(view, at)
        ends.append(at)
    assert "frames" in refused(data[: ends[len(ends) // 2]]).message


# --- limits ---------------------------------------------------------------------------------------------------------


SHORT = LIMITS._replace(max_seconds=2.0)


@pytest.mark.parametrize("kind", ["flac", "mp4", "webm", "mp3", "ogg-opus", "adts", "avi", "aiff"])
def test_longer_than_the_limit(kind) -> None:
    error = refused(files.encoded_kind(kind), SHORT)
    assert error.code == "too_large"
    assert "limit is 2 s" in error.message
    assert decoded(files.encoded_kind(kind), LIMITS._replace(max_seconds=3.2)).rate


def test_a_header_that_lies_about_the_length() -> None:
    """A FLAC that says it has no known length, and one that says it is short."""
    data = bytearray(files.encoded_kind("flac"))
    for said in (0, 1000):
        data[21] &= 0xF0
        data[22:26] = struct.pack(">I", said)
        error = refused(bytes(data), SHORT)
        assert error.code == "too_large"
    data[22:26] = bytes(4)
    assert len(decoded(bytes(data)).samples) == 132300
    data[22:26] = struct.pack(">I", 1000)
    assert refused(bytes(data)).code == "decode_failed"


def test_the_limit_is_known_before_anything_is_decoded(monkeypatch) -> None:
    from genmeter.assets import audio

    monkeypatch.setattr(audio, "_frames", lambda *_: pytest.fail("decoded"))
    assert refused(files.wav(np.zeros(48000 * 3)), SHORT).code == "too_large"


# --- in memory ------------------------------------------------------------------------------------------------------


def remembered(value, **request):
    policy = Policy()
    blob = load(Resolver(policy, []).resolve(value), policy)
    with DecodePool(policy, 1) as pool:
        [found] = pool.decode(blob, "audio", [request])
    if isinstance(found, GenmeterError):
        raise found
    return found, blob.digest


def test_samples_in_memory_are_treated_as_a_file() -> None:
    sound = files.tone(44100, 0.5, level=1.2).astype("f4")
    media, _ = remembered((sound, 44100), rate=48000)
    of_file = decoded(files.wav(sound, 44100, "f32"), rate=48000)
    assert np.array_equal(media.samples, of_file.samples)
    assert media.flags == of_file.flags == ("clipped",)
    assert media.detail["source_rate"] == 44100
    silent, _ = remembered((np.zeros(100), 16000))
    assert (silent.rate, silent.flags) == (16000, ("silent",))


def test_shapes_in_memory() -> None:
    left, right = np.full(50, 0.2, "f4"), np.full(50, 0.4, "f4")
    for value in (np.stack([left, right]), np.stack([left, right], 1)):
        media, _ = remembered((value, 8000))
        assert media.samples == pytest.approx(np.full(50, 0.3), abs=1e-6)
        assert media.detail["channels"] == 2
    whole, one = remembered((np.array([8192, -8192], "i2"), 8000.0))
    assert whole.samples.tolist() == [0.25, -0.25]
    assert one == remembered((np.array([0.25, -0.25], "f4"), 8000))[1], "the same sound, the same digest"
    assert one != remembered((np.array([0.25, -0.25], "f4"), 8001))[1]
    assert one != remembered((np.array([[0.25], [-0.25]], "f4").T.repeat(2, 0)[:, :1], 8000))[1]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ((np.zeros(0, "f4"), 8000), "empty_media"),
        ((np.zeros(8, "i4"), 8000), "unsupported_media"),
        ((np.zeros((2, 2), "f4"), 8000), "unsupported_media"),
        ((np.zeros((2, 2, 2), "f4"), 8000), "unsupported_media"),
        ((np.zeros(8, "f4"), 0), "unsupported_media"),
        ((np.zeros(8, "f4"), 44100.5), "unsupported_media"),
        ((np.zeros(8, "f4"), True), "unsupported_media"),
        ((np.zeros(8, "f4"), 3), "unsupported_media"),
        ((np.array([0, np.nan], "f4"), 8000), "non_finite"),
        ((np.array([0, 1e300]), 8000), "non_finite"),
    ],
)
def test_memory_that_is_no_sound(value, code) -> None:
    with pytest.raises(GenmeterError) as caught:
        remembered(value)
    assert caught.value.code == code
