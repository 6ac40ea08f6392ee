"""Run configuration: what ``--config run.yaml`` may hold, validated. Unknown keys name the nearest known one."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Policy(BaseModel):
    """What may be read, and how much of it. Every limit is a setting; none is ever switched off in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow_hosts: tuple[str, ...] = ()
    """Hosts that http(s) assets may come from; empty means that no host is contacted."""
    max_pixels: int = Field(default=150_000_000, gt=0)
    """Largest width x height of one image or frame, read from the header before anything is decoded."""
    max_bytes: int = Field(default=2_000_000_000, gt=0)
    """Largest encoded size of one asset in bytes."""
    max_seconds: float = Field(default=3600.0, gt=0)
    """Longest audio in seconds, read from the header where it says so, and enforced while decoding where it lies."""
    max_frames: int = Field(default=2048, gt=0)
    """Most frames of one video that are held at once; a longer video is read in part without limit."""
    decode_timeout_s: float = Field(default=60.0, gt=0)
    """Deadline for fetching or decoding one asset, in seconds."""
    decode_memory: int = Field(default=4_000_000_000, ge=256_000_000)
    """Most memory that one decoding process may take, in bytes, with the file and what is decoded from it."""
    isolate: Literal["media", "all"] = "media"
    """What decodes in worker processes: audio and video (``media``), or images too (``all``)."""


class Threshold(BaseModel):
    """What a score must reach for its sample to pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: float | None = None
    max: float | None = None


class OverallConfig(BaseModel):
    """Which metric, if any, gives ``overall.score``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    metric: str | None = None


class RunConfig(BaseModel):
    """All settings of a run. Command-line flags win over the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    profile: Literal["reference", "tiny"] = "reference"
    device: str = "auto"
    precision: Literal["exact", "fast"] = "exact"
    media_root: tuple[str, ...] | str = ()
    metrics: dict[str, dict[str, Any]] | tuple[str, ...] | None = None
    metrics_from: Literal["config", "sample"] = "config"
    thresholds: dict[str, Threshold] = {}
    overall: OverallConfig = OverallConfig()
    group_by: tuple[str, ...] = ()
    cluster_by: str | None = None
    candidate: Literal["all", "first", "last", "best"] | int = "all"
    partial_candidates: Literal["fail", "mean"] = "fail"
    prompt_field: str | None = None
    references_from: Literal["references", "raw_assets"] = "references"
    reference_set: str | None = None
    policy: Policy = Policy()
    batch_size: int | None = Field(default=None, gt=0)
    workers: int | None = Field(default=None, gt=0)
    offline: bool = False
    cache: bool = True
    rows: Literal["short", "full"] = "short"
    max_failed: str | int | None = None
    retry_failed: tuple[str, ...] = ()
    name: str | None = None


def nearest(word: str, known: list[str]) -> str:
    """``; did you mean 'x'?`` when a known word is close, else an empty string."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def load_config(data: dict[str, Any], *, where: str = "configuration") -> RunConfig:
    """Validate a mapping.

    Args:
        data: The parsed YAML, or keyword arguments of the Python API.
        where: What the message calls the source.

    Raises:
        ValueError: Naming the field, what it may hold, and for an unknown key the nearest known one.
    """
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {_describe(error)}") from None


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file into a mapping (not yet validated). Raises ``ValueError`` with the file's name."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML: {error}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a mapping at the top level, found {type(data).__name__}")
    return data


def _describe(error: ValidationError) -> str:
    parts = []
    for item in error.errors():
        field = ".".join(str(p) for p in item["loc"])
        if item["type"] == "extra_forbidden":
            parts.append(f"unknown key {field!r}{nearest(str(item['loc'][-1]), _known_keys(item['loc'][:-1]))}")
        else:
            parts.append(f"{field}: {item['msg']}")
    return "; ".join(parts)


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    model: Any = RunConfig
    for part in loc:
        known = getattr(model, "model_fields", {}).get(part)
        if known is None:
            return list(Threshold.model_fields) if loc[0] == "thresholds" else []
        model = known.annotation
    return list(getattr(model, "model_fields", {}))
