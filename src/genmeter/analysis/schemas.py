"""JSON Schemas (draft 2020-12) of what genmeter writes; open, since fields are added within a major version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from genmeter.config import nearest
from genmeter.errors import CODES, FLAGS

Schema = dict[str, Any]
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_NUMBER: Schema = {"type": ["number", "null"]}
_STRING: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_COUNTS: Schema = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
_INTERVAL: Schema = {
    "description": "Lower and upper end; null where there is none.",
    "anyOf": [
        {"type": "null"},
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    ],
}
_SPAN: Schema = {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2}
_RANGE: Schema = {
    "description": "Lowest and highest possible value; null where there is no bound.",
    "anyOf": [{"type": "null"}, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}],
}


def schema_names() -> list[str]:
    """The names that :func:`json_schema` knows."""
    return list(_MAKERS)


def json_schema(name: str) -> Schema:
    """The JSON Schema of one format.

    Args:
        name: ``sample``, ``eval_result``, ``summary`` or ``run``.

    Raises:
        ValueError: There is no such schema; names the nearest.
    """
    if name not in _MAKERS:
        known = schema_names()
        raise ValueError(f"no schema {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return _MAKERS[name]()


def _sample() -> Schema:
    from genmeter.schema.models import Sample

    return {"$schema": _DRAFT, **Sample.model_json_schema()}


def _eval_result() -> Schema:
    """What is written into a sample; for a line that could not be read, ``error`` alone."""
    entry = _object(
        {
            "score": {**_NUMBER, "description": "null when there is no score; never 0, -1 or NaN in its place."},
            "variant": _STRING,
            "higher_is_better": {"type": ["boolean", "null"]},
            "scope": {"enum": ["sample", "set"]},
            "set": {"type": "string", "description": "Which set a set metric's value is of."},
            "detail": {"type": "object"},
            "flags": {"type": "array", "items": {"enum": list(FLAGS)}},
            "error": _error(),
            "inputs": {
                "type": "array",
                "items": _object(
                    {
                        "role": {"enum": ["prompt", "prediction", "reference", "input"]},
                        "path": {"type": "string", "description": "The field of the sample it was read from."},
                        "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
                    },
                    ["role", "path"],
                ),
            },
            "previous": {"description": "What stood under this key before, when it was another variant's."},
        },
        ["score"],
    )
    entry["if"] = {"properties": {"score": {"type": "null"}}}
    entry["then"] = {"required": ["error"]}
    return _document(
        "eval_result",
        {
            "overall": _object({"score": _NUMBER, "passed": {"type": ["boolean", "null"]}}),
            "metrics": {
                "type": "object",
                "description": "By metric as asked for. Entries of other tools may stand beside genmeter's.",
                "additionalProperties": {"anyOf": [{"not": {"required": ["variant"]}}, entry]},
            },
            "judge": _object({"model": _STRING, "verdict": _STRING, "reason": _STRING}),
            "provenance": _object({"run_id": _STRING, "genmeter": _STRING, "models": _STRING, "snapshot": _STRING}),
            "error": _error(),
        },
        [],
        anyOf=[{"required": ["metrics"]}, {"required": ["error"]}],
    )


def _summary() -> Schema:
    statistics: Schema = {
        "mean": _NUMBER,
        "mean_unclipped": {"type": "number", "description": "The mean before mean_floor, where that is lower."},
        "sem": {**_NUMBER, "description": "Standard error of the mean; cluster-robust where samples share a prompt."},
        "median": _NUMBER,
        "quantiles": _object({"p05": _NUMBER, "p95": _NUMBER}),
        "interval95": _INTERVAL,
        "interval": _object(
            {"method": {"enum": ["t", "clustered_t"]}, "clusters": _COUNT, "cluster_by": {"type": "string"}},
            ["method", "clusters"],
        ),
        "n": _object(
            {"total": _COUNT, "scored": _COUNT, "failed": _COUNTS, "n_failed": _COUNT, "skipped": _COUNT},
            ["total", "scored", "failed", "n_failed", "skipped"],
        ),
        "coverage": {
            "description": "scored / (total - skipped); null when the metric applies to no sample.",
            "anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "maximum": 1}],
        },
        "flags": _COUNTS,
    }
    sets: Schema = {
        "score": {**_NUMBER, "description": "The value of a set metric; its mean is null."},
        "detail": {"type": "object"},
        "error": {"type": "object", "description": "Why a set has no value."},
    }
    always = ["n", "coverage", "flags"]
    examples = {"type": "array", "items": _object({"line": {"type": "integer", "minimum": 1}}, ["line"])}
    metric = _object(
        {
            **statistics,
            "variant": _STRING,
            "title": {"type": "string"},
            "higher_is_better": {"type": ["boolean", "null"]},
            "scope": {"enum": ["sample", "set"]},
            "range": _RANGE,
            "mean_floor": {"type": "number", "description": "The convention clips the mean here, not the samples."},
            "score": sets["score"],
            "detail": sets["detail"],
            "sets": {"type": "object"},
            "frames": {
                "description": "Of samples flagged partial_video: least and most frames that were read, and there are.",
                **_object({"used": _SPAN, "total": _SPAN}, []),
            },
            "failures": {
                "type": "object",
                "additionalProperties": _object({"n": _COUNT, "examples": examples}, ["n", "examples"]),
            },
            "signature": {"type": "string", "pattern": "^genmeter:"},
            "groups": {
                "description": "Field path, then value of the field.",
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": _object({**statistics, **sets}, ["mean", "interval95", *always]),
                },
            },
        },
        [
            "variant",
            "higher_is_better",
            "scope",
            "signature",
            "mean",
            "sem",
            "median",
            "quantiles",
            "interval95",
            *always,
        ],
    )
    return _document(
        "summary",
        {
            "schema": {"const": "genmeter.summary/1"},
            "run_id": _STRING,
            "name": _STRING,
            "snapshot": _STRING,
            "samples": _object({"total": _COUNT, "failed": _COUNTS}, ["total", "failed"]),
            "metrics": {"type": "object", "additionalProperties": metric},
            "overall": _object({"passed": _COUNT, "failed": _COUNT, "undecided": _COUNT}),
            "thresholds": {"type": "object", "description": "Thresholds on set metrics, and whether they are met."},
            "group_by": {"type": "array", "items": {"type": "string"}},
            "groups_left_out": {"type": "object", "additionalProperties": {"type": "string"}},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
        ["schema", "run_id", "name", "snapshot", "samples", "metrics", "notes"],
    )


def _run() -> Schema:
    encoder = _object({"model": _STRING, "digest": _STRING, "preprocessing": _STRING}, ["model", "digest"])
    metric = _object(
        {
            "variant": {"type": "string"},
            "higher_is_better": {"type": "boolean"},
            "range": _RANGE,
            "convention": _STRING,
            "rules": {"type": "object", "description": "What the convention does: scale, floor ..."},
            "scope": {"enum": ["sample", "set"]},
            "encoders": {"type": "object", "additionalProperties": encoder},
        },
        ["variant", "higher_is_better", "scope"],
    )
    return _document(
        "run",
        {
            "schema": {"type": "string", "pattern": "^genmeter\\.run/1$"},
            "version": {"type": "string"},
            "run_id": {"type": "string"},
            "name": _STRING,
            "snapshot": _STRING,
            "command": {"type": ["string", "array", "null"]},
            "created": {"type": "string"},
            "device": {"type": "string"},
            "precision": {"enum": ["exact", "fast"]},
            "metrics": {"type": "object", "additionalProperties": metric},
            "config": {"type": "object"},
            "libraries": {"type": "object"},
            "counts": {"type": "object"},
        },
        ["version", "run_id", "snapshot", "device", "precision", "metrics", "config"],
    )


def _error() -> Schema:
    fields: dict[str, Schema] = {
        "code": {"enum": list(CODES)},
        "message": {"type": "string"},
        "hint": {"type": "string"},
        "asset": {"type": "string"},
    }
    return _object(fields, ["code", "message"])


def _object(properties: Mapping[str, Schema], required: list[str] | None = None) -> Schema:
    found: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        found["required"] = required
    return found


def _document(title: str, properties: Mapping[str, Schema], required: list[str], **more: Any) -> Schema:
    return {"$schema": _DRAFT, "title": f"genmeter {title}", **_object(properties, required), **more}


_MAKERS: dict[str, Callable[[], Schema]] = {
    "sample": _sample,
    "eval_result": _eval_result,
    "summary": _summary,
    "run": _run,
}
