"""One sample judged: from what GAGE hands over to what it takes back. Needs nothing of the framework."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Mapping
from typing import Any

from genmeter import __version__
from genmeter.engine.session import Engine, Result
from genmeter.errors import SKIPPED, GenmeterError
from genmeter.integrations.gage.engines import engine_for
from genmeter.integrations.gage.settings import JudgeSettings
from genmeter.schema.envelope import append_predict_result


def judge(payload: Mapping[str, Any], settings: JudgeSettings) -> dict[str, Any]:
    """Judge the sample of one call. Waits for a batch, at most ``deadline_s``; never raises.

    Args:
        payload: ``sample``, and ``model_output`` where this run's model has just answered.
        settings: What to score and how.

    Returns:
        The standard's ``eval_result`` with a ``status`` of ``completed`` (something was scored), ``skipped`` (nothing
        applied) or ``failed``. Trouble stands under ``failure`` as code, message and hint, and with each metric: a
        key ``error`` at the top would end the sample, and with it the run.
    """
    try:
        sample = scored_sample(payload)
        return verdict(wait(engine_for(settings), sample, settings.deadline_s).eval_result)
    except GenmeterError as error:
        return failed(error.to_dict())
    except concurrent.futures.TimeoutError:
        return failed(_late(settings.deadline_s))
    except Exception as error:  # a judge that raises ends the whole run
        return failed({"code": "internal", "message": f"{type(error).__name__}: {error}"})


def scored_sample(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The sample with this run's answer among its predictions; what the framework holds is not changed.

    Raises:
        GenmeterError: ``bad_sample``: the call holds no sample.
    """
    sample = payload.get("sample")
    if not isinstance(sample, Mapping):
        raise GenmeterError("bad_sample", f"expected a sample, found {type(sample).__name__}")
    # What an earlier judge said is no business of the scores; and it may be large.
    own = {key: value for key, value in sample.items() if key != "eval_result"}
    if not own.get("predict_result"):
        output = payload.get("model_output")
        if isinstance(output, Mapping):
            own["predict_result"] = []
            append_predict_result(own, dict(output))
    return own


def wait(engine: Engine, sample: Mapping[str, Any], seconds: float) -> Result:
    """The result of a sample, within a time. Raises ``concurrent.futures.TimeoutError``, and gives the sample up."""
    future = engine.submit(sample)
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:
        future.cancel()
        raise


def verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """A judge's answer from an ``eval_result``."""
    if result.get("error"):
        return failed(result["error"])
    metrics = result.get("metrics") or {}
    codes = [entry["error"]["code"] for entry in metrics.values() if entry.get("error")]
    scored = any(entry.get("score") is not None for entry in metrics.values())
    pending = "set_pending" in codes
    answer: dict[str, Any] = {**result, "status": "completed" if scored or pending else "failed"}
    if not scored and not pending and all(code in SKIPPED for code in codes):
        answer["status"] = "skipped"
    score = (result.get("overall") or {}).get("score")
    if score is not None:
        answer["score"] = score
    if answer["status"] == "failed":
        answer["failure"] = next(entry["error"] for entry in metrics.values() if entry.get("error"))
    return answer


def failed(error: Mapping[str, Any]) -> dict[str, Any]:
    """A judge's answer where nothing could be scored at all."""
    return {
        "status": "failed",
        "failure": dict(error),
        "overall": {"score": None, "passed": None},
        "metrics": {},
        "judge": {"model": f"genmeter {__version__}", "verdict": "undecided", "reason": str(error.get("message", ""))},
    }


def values_of(name: str, entry: Mapping[str, Any] | None) -> tuple[dict[str, float], dict[str, Any]]:
    """Values and metadata of a metric from its entry: a float and how to read it, or no value and why.

    Args:
        name: What the value is called.
        entry: The metric's part of an ``eval_result``; None when the sample did not ask for it.
    """
    if entry is None:
        return {}, {"status": "skipped", "reason": "not_in_eval_config"}
    about = {key: entry[key] for key in ("variant", "higher_is_better", "scope", "set", "flags") if key in entry}
    error = entry.get("error")
    if error:
        status = "skipped" if error["code"] in SKIPPED or error["code"] == "set_pending" else "failed"
        return {}, {**about, "status": status, "reason": error["code"], "message": error["message"]}
    score = entry.get("score")
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        return {}, {**about, "status": "failed", "reason": "internal", "message": "the entry holds no number"}
    return {name: float(score)}, {**about, "status": "completed"}


def _late(seconds: float) -> dict[str, Any]:
    return {
        "code": "timed_out",
        "message": f"no score within {seconds:g} s",
        "hint": "raise deadline_s of the judge; the first call also loads the networks",
    }
