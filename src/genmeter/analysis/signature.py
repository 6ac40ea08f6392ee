"""The line that makes two printed numbers comparable or not, in the manner of sacrebleu's signatures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from genmeter.analysis.columns import mapping


def signature(name: str, entry: Mapping[str, Any], run: Mapping[str, Any], n: int) -> str:
    """``genmeter:lpips|m:alex-v0.1|c:none|p:exact|n:4987|w:40d36571|s:ab12cd34|v:0.1.0``.

    Fields: metric id, model, convention, precision, number of scored samples, weights, evaluation set (snapshot),
    stored reference set (``r``, where there is one), version. The variant label holds every setting that affects the
    score and is not the default, so it is in ``m`` or ``c``. Two signatures that are equal but for ``n`` stand for the
    same measurement.

    Args:
        name: The metric as it was asked for (``lpips@vgg/input``).
        entry: The metric's entry in run.json (``variant``, ``convention``, ``encoders``).
        run: The content of run.json (``precision``, ``snapshot``, ``version``).
        n: How many samples the value is over.
    """
    model, convention = split_variant(entry)
    reference = mapping(entry.get("reference_set")).get("digest")
    fields: list[tuple[str, Any]] = [
        ("genmeter", metric_id(name, entry)),
        ("m", model or "none"),
        ("c", convention or "none"),
        ("p", run.get("precision") or "exact"),
        ("n", n),
        ("w", _weights(entry)),
        ("s", _short(run.get("snapshot")) or "none"),
        *([("r", _short(reference))] if reference else []),
        ("v", run_version(run)),
    ]
    return "|".join(f"{key}:{_clean(value)}" for key, value in fields)


def metric_id(name: str, entry: Mapping[str, Any]) -> str:
    """The id of the metric folder behind a name as asked for: ``lpips`` for ``lpips@vgg/input``."""
    return str(entry.get("id") or name.split("@")[0].split("/")[0])


def split_variant(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Model and convention of a run.json metric entry; an empty string where there is none."""
    model, _, convention = str(entry.get("variant") or "").partition("/")
    return model, convention or str(entry.get("convention") or "")


def run_version(run: Mapping[str, Any]) -> str:
    """The genmeter version that made the run; this one where run.json does not say."""
    if run.get("version"):
        return str(run["version"])
    from genmeter import __version__

    return __version__


def _weights(entry: Mapping[str, Any]) -> str:
    """Eight hex digits: of the one network's digest, or of the hash over all of them."""
    digests = sorted({_bare(mapping(e).get("digest")) for e in mapping(entry.get("encoders")).values()} - {""})
    if not digests:
        return "none"
    if len(digests) == 1:
        return digests[0][:8]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:8]


def _bare(digest: Any) -> str:
    return str(digest or "").removeprefix("sha256:")


def _short(digest: Any) -> str:
    return _bare(digest)[:8]


def _clean(value: Any) -> str:
    return "".join(c for c in str(value) if c.isprintable() and c not in "|\\")
