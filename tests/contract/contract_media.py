"""Samples for the contract tests: every role in every modality, drawn, of several sizes and lengths.

The media of a sample depend on its modality, role and index alone. One prediction of each set is damaged and one is
missing.
"""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genmeter.registry import list_metrics

MODALITIES = ("image", "audio", "video", "text")
TASKS = {"image": "image-to-image", "audio": "text-to-audio", "video": "text-to-video", "text": "short-answer"}
SUFFIX = {"image": "png", "audio": "wav", "video": "mp4"}
# Networks for video are the slow ones. Several predictions share a reference, but for images.
COUNT = {"image": 20, "audio": 12, "video": 7, "text": 12}
REFERENCES = {"image": 20, "audio": 6, "video": 3, "text": 12}
DAMAGED, MISSING = 3, 4
FEW = range(2, 6)
FAULTS = {
    "image": ({"decode_failed"}, {"not_found"}),
    "audio": ({"decode_failed", "unsupported_media"}, {"not_found"}),
    "video": ({"decode_failed", "unsupported_media"}, {"not_found"}),
    "text": ({"no_prediction"}, {"no_prediction"}),
}
"""Codes that the damaged and the missing prediction may have."""
FPS = 8
_ROLES = ("out", "ref", "in")


def draw(modality: str, role: str, index: int) -> Any:
    """The content of one asset.

    Returns:
        ``image``: (H, W, 3) uint8. ``audio``: (n, channels) int16 and its rate in Hz. ``video``: (t, H, W, 3) uint8.
    """
    source = index % REFERENCES[modality] if role == "ref" else index
    shape = index % REFERENCES[modality] % 2  # an asset is as large as its reference
    rng = np.random.default_rng([MODALITIES.index(modality), _ROLES.index(role), source])
    if modality == "image":
        return _picture(rng, (48, 64) if shape else (56, 56), source, role)
    if modality == "audio":
        return _sound(rng, shape, source)
    return _clip(rng, shape, source)


def _picture(rng: np.random.Generator, size: tuple[int, int], index: int, role: str) -> np.ndarray:
    clean = np.random.default_rng([99, index]).integers(0, 256, (*size, 3), dtype=np.uint8)
    if role == "ref":
        return clean
    if role == "in":
        return np.ascontiguousarray(clean[::-1])
    return np.clip(clean.astype(int) + rng.integers(-60, 60, clean.shape), 0, 255).astype(np.uint8)


def _sound(rng: np.random.Generator, shape: int, index: int) -> tuple[np.ndarray, int]:
    """A chirp with noise; one of them is longer than the ten seconds that a network hears at once."""
    rate = (48000, 16000, 44100, 8000)[index % 4]
    seconds = 12.5 if index == 1 else (0.7, 1.3)[shape]
    time = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * (200 + 150 * (index % 7) + 300 * time / seconds) * time)
    mono = 0.4 * tone + 0.1 * rng.standard_normal(len(time))
    channels = 1 + index % 2
    samples = np.stack([mono, 0.5 * mono][:channels], axis=1)
    return (np.clip(samples, -1, 1) * 32767).astype(np.int16), rate


def _clip(rng: np.random.Generator, shape: int, index: int) -> np.ndarray:
    """Coarse noise that moves across the picture and fades; 18 or 19 frames, as many as its reference has."""
    height, width = (48, 64) if shape else (56, 56)
    coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    still = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
    step = 1 + index % 3
    fading = 0.01 * (1 + index % 4)
    frames = [np.roll(still, step * number, axis=1) * (1 - fading * number) for number in range(18 + shape)]
    return np.stack(frames).astype(np.uint8)


# --- files ----------------------------------------------------------------------------------------------------------


def write(path: Path, modality: str, content: Any) -> Path:
    """Write one asset as its suffix says: PNG, BMP, TIFF, WebP; WAV, FLAC; MP4, or MKV and AVI without loss."""
    if modality == "image":
        Image.fromarray(content).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))
    elif modality == "audio":
        _write_sound(path, *content)
    else:
        codec, pixels = {".mp4": ("mpeg4", "yuv420p"), ".mkv": ("ffv1", "bgr0"), ".avi": ("rawvideo", "bgr24")}[
            path.suffix
        ]
        _write_clip(path, content, codec, pixels)
    return path


def _write_sound(path: Path, samples: np.ndarray, rate: int) -> None:
    if path.suffix == ".wav":
        with wave.open(str(path), "wb") as file:
            file.setnchannels(samples.shape[1])
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.astype("<i2").tobytes())
        return
    import av

    layout = "mono" if samples.shape[1] == 1 else "stereo"
    with av.open(str(path), "w") as container:
        stream = container.add_stream({".flac": "flac", ".aiff": "pcm_s16be"}[path.suffix], rate=rate, layout=layout)
        for start in range(0, len(samples), 1024):
            part = np.ascontiguousarray(samples[start : start + 1024]).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _write_clip(path: Path, frames: np.ndarray, codec: str, pixels: str) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixels
        stream.codec_context.thread_count = 1
        for pixels_of_frame in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels_of_frame), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


# --- samples --------------------------------------------------------------------------------------------------------


def name(modality: str, role: str, index: int) -> str:
    """The file name of an asset; predictions that share a reference name one file."""
    return f"{role}{index % REFERENCES[modality] if role == 'ref' else index}.{SUFFIX[modality]}"


def media(modality: str, url: Any) -> dict[str, Any]:
    """A content fragment that names an asset."""
    return {"type": f"{modality}_url", f"{modality}_url": {"url": url}}


def sample(
    modality: str,
    index: int,
    *,
    identity: str | None = None,
    outputs: list[Any] | None = None,
    references: list[Any] | None = None,
) -> dict[str, Any]:
    """One sample of the standard that offers every role.

    Args:
        modality: What it makes.
        index: Which one.
        identity: Its id; by default the index.
        outputs: The candidates instead of its own prediction: URLs, objects or, for text, texts.
        references: The same for references.
    """
    told = f"a {('red', 'green', 'blue')[index % 3]} thing and {index} more " + "of the same " * (index % 4)
    if modality == "text":
        told_content: list[Any] = [{"type": "text", "text": told}]
        fragments = [[{"type": "text", "text": text}] for text in outputs or [f"{index} things"]]
        answers = [[{"type": "text", "text": text}] for text in references or [f"{index - index % 2} things"]]
    else:
        told_content = [media(modality, name(modality, "in", index)), {"type": "text", "text": told}]
        fragments = [[media(modality, url)] for url in outputs or [name(modality, "out", index)]]
        answers = [[media(modality, url)] for url in references or [name(modality, "ref", index)]]
        answers[0].append({"type": "text", "text": f"{index} things"})
    built: dict[str, Any] = {
        "schema_version": "v1",
        "id": identity or f"s{index}",
        "task_type": TASKS[modality],
        "messages": [{"role": "user", "content": told_content}],
        "references": [{"answer": answer} for answer in answers],
        "predict_result": [
            {"index": i, "message": {"role": "assistant", "content": content}} for i, content in enumerate(fragments)
        ],
    }
    if modality == "text":
        built["golden_trajectories"] = [[_calling(answer[0]["text"])] for answer in answers]
        for entry, content in zip(built["predict_result"], fragments, strict=True):
            entry["message"] |= _calling(content[0]["text"])
    for path in _text_fields():
        _put(built, path, f"{path.rpartition('.')[2].replace('_', ' ')} of {told}")
    return built


def _calling(text: str) -> dict[str, Any]:
    """A message that calls a tool with this text."""
    function = {"name": "count", "arguments": json.dumps({"what": text})}
    return {"role": "assistant", "tool_calls": [{"id": "call", "type": "function", "function": function}]}


def make(folder: Path, modality: str) -> Path:
    """Write the samples of one modality with their media. Returns ``samples.jsonl``."""
    folder.mkdir(parents=True)
    lines = []
    for index in range(COUNT[modality]):
        line = sample(modality, index)
        if modality == "text":
            if index in (DAMAGED, MISSING):
                line["predict_result"] = line["predict_result"][1:]
        else:
            for role in _ROLES:
                path = folder / name(modality, role, index)
                if not path.exists():
                    write(path, modality, draw(modality, role, index))
        lines.append(line)
    if modality != "text":
        damaged = folder / name(modality, "out", DAMAGED)
        damaged.write_bytes(damage(damaged.read_bytes()))
        (folder / name(modality, "out", MISSING)).unlink()
    return write_lines(folder / "samples.jsonl", lines)


def damage(data: bytes) -> bytes:
    """A file's first bytes, so that it is known for what it was, and then noise."""
    return data[:20] + np.random.default_rng(5).bytes(400)


def write_lines(path: Path, lines: list[Any]) -> Path:
    """JSON lines; a string is written as it is."""
    text = "".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def _text_fields() -> list[str]:
    """Fields that metrics read texts from, besides the prompt."""
    found = {need.text_of for spec in list_metrics() for need in spec.needs.values() if "." in need.text_of}
    return sorted(found | {"metadata.target_prompt"})


def _put(sample: dict[str, Any], path: str, value: str) -> None:
    *outer, last = path.split(".")
    for key in outer:
        sample = sample.setdefault(key, {})
    sample[last] = value
