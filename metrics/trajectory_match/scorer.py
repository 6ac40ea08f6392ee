"""Trajectory match: the tool calls of an agent against golden trajectories, of which the best one counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genmeter.contract import Params, Score, Unscored
from genmeter.metrics.trajectory_match.calls import Call, fits, matched


class TrajectoryMatch:
    """1 where the calls of an entry are those of one of the golden trajectories, else 0."""

    def score(self, items: Sequence[Mapping[str, Any]], params: Params) -> list[Score | Unscored]:
        """Score the calls of entries by themselves.

        Args:
            items: Each with ``answer``: ``predict_result``, an entry with ``message``, ``messages`` or
                ``agent_trace``, and ``golden_trajectories``, a list of lists of messages.
            params: ``order``, ``arguments`` and ``extra``.

        Returns:
            One score an item, 0.0 or 1.0, with ``detail.trajectory`` (the golden one that is nearest), ``matched`` of
            ``golden_calls``, ``calls`` and, where the score is 0, ``difference``. ``bad_sample`` where a golden
            trajectory cannot be read.
        """
        return [self._score(item["answer"], params) for item in items]

    def _score(self, answer: Mapping[str, Any], params: Params) -> Score | Unscored:
        try:
            golden = [
                _golden(trajectory, f"golden_trajectories[{index}]")
                for index, trajectory in enumerate(_listed(answer["golden_trajectories"], "golden_trajectories"))
            ]
        except ValueError as error:
            return Unscored("bad_sample", str(error))
        calls = list(_calls_of_entry(answer["predict_result"]))
        results = [self._against(calls, path, params) for path in golden]
        # The first that matches, else the one with the fewest calls that are missing or too many.
        nearest = max(range(len(golden)), key=lambda i: (results[i][0], results[i][1] * 2 - len(golden[i]), -i))
        right, hits = results[nearest]
        detail: dict[str, Any] = {
            "trajectory": nearest,
            "matched": hits,
            "golden_calls": len(golden[nearest]),
            "calls": len(calls),
        }
        if not right:
            detail["difference"] = _difference(calls, golden[nearest], hits, params)
        unreadable = [call.name for call in calls if call.arguments is None]
        if unreadable:
            detail["unreadable_arguments"] = unreadable
        return Score(float(right), detail=detail)

    def _against(self, calls: Sequence[Call], path: Sequence[Call], params: Params) -> tuple[bool, int]:
        hits = matched(calls, path, order=params["order"], arguments=params["arguments"])
        return hits == len(path) and (params["extra"] == "allow" or len(calls) == len(path)), hits


def _golden(trajectory: Any, where: str) -> list[Call]:
    """The calls of a golden trajectory. Raises ``ValueError`` that says what cannot be read."""
    calls: list[Call] = []
    for number, message in enumerate(_listed(trajectory, where)):
        if not isinstance(message, dict):
            raise ValueError(f"{where}[{number}]: expected a message, found {type(message).__name__}")
        listed = f"{where}[{number}].tool_calls"
        for place, raw in enumerate(_listed(message.get("tool_calls") or [], listed)):
            call, at = _call(raw), f"{listed}[{place}]"
            if call is None:
                raise ValueError(f"{at}: expected a function with a name")
            if call.arguments is None:
                raise ValueError(f"{at}.function.arguments: expected a JSON object")
            calls.append(call)
    return calls


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, found {type(value).__name__}")
    return value


def _calls_of_entry(entry: Mapping[str, Any]) -> Iterator[Call]:
    """The calls of one candidate, from the fullest record of it that holds any."""
    message = entry.get("message")
    for messages in (entry.get("messages"), entry.get("agent_trace"), [message]):
        calls = list(_calls(messages))
        if calls:
            yield from calls
            return


def _calls(messages: Any) -> Iterator[Call]:
    for message in messages if isinstance(messages, list) else ():
        raw_calls = message.get("tool_calls") if isinstance(message, dict) else None
        for raw in raw_calls if isinstance(raw_calls, list) else ():
            # A call without a name is a call all the same: it matches nothing and is one too many.
            yield _call(raw) or Call("", None)


def _call(raw: Any) -> Call | None:
    """A call in OpenAI's shape, or with ``name`` and ``arguments`` at its top; None where it has no name."""
    function = raw.get("function", raw) if isinstance(raw, dict) else None
    if not isinstance(function, dict):
        return None
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return None
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        return Call(name, {})  # a function without parameters
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return Call(name, None)
    return Call(name, arguments if isinstance(arguments, dict) else None)


def _difference(calls: Sequence[Call], golden: Sequence[Call], hits: int, params: Params) -> str:
    """The first place where the calls leave the golden trajectory, in words."""
    if hits == len(golden):
        return f"{len(calls)} calls where {len(golden)} are asked for"
    if params["order"] == "any" or params["extra"] == "allow":
        missing = next((call for call in golden if not any(fits(c, call, params["arguments"]) for c in calls)), None)
        return f"no call fits {_text(missing)}" if missing else "all calls are there, but not in this order or number"
    for number, wanted in enumerate(golden):
        if number >= len(calls):
            return f"call {number}: expected {_text(wanted)}, found none"
        if not fits(calls[number], wanted, params["arguments"]):
            return f"call {number}: expected {_text(wanted)}, found {_text(calls[number])}"
    return f"{len(calls)} calls where {len(golden)} are asked for"


def _text(call: Call) -> str:
    written = "unreadable" if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False, sort_keys=True)
    text = f"{call.name or 'a call without a name'}({written})"
    return text if len(text) <= 200 else text[:199] + "…"
