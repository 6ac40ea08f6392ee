"""What the models find in a sample, in words: the field, what was expected there, and what kind of value was found."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from genmeter.schema.fragments import json_name

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "nothing (a few-shot example may not hold it)",
    "fragment": "a fragment (an object or a string)",
    "content": "a list of fragments or a string",
    "reference": "a string or an object with an answer",
    "option": "an object with id and content, or a string",
}


def describe(data: Any, error: ValidationError) -> list[str]:
    """Say what the models found, in order.

    Args:
        data: What was validated.
        error: What validating it raised.

    Returns:
        One text for each field, with the field's path in front; no text quotes a value.
    """
    wanted: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path, value, missing = _locate(data, item["loc"])
        if missing:
            found[path] = "is missing"
            continue
        found.setdefault(path, json_name(value))
        expected = _EXPECTED.get(item["type"], "another value")
        if expected not in wanted.setdefault(path, []):
            wanted[path].append(expected)
    issues = []
    for path in found:
        # Where a member of a union failed deep inside, the other members fail at its root: only the depth tells.
        if any(other.startswith((f"{path}.", f"{path}[")) for other in found):
            continue
        expected = " or ".join(wanted.get(path, ())).replace("a whole number or a number", "a number")
        issues.append(f"{path}: expected {expected}, found {found[path]}" if expected else f"{path}: is missing")
    return issues


def _locate(data: Any, loc: tuple[int | str, ...]) -> tuple[str, Any, bool]:
    """The field path behind a pydantic location, which also holds the tags of unions: these are left out."""
    path, node = "", data
    for position, step in enumerate(loc):
        if isinstance(step, int) and isinstance(node, list):
            path, node = f"{path}[{step}]", node[step]
        elif isinstance(step, str) and isinstance(node, dict):
            if step in node:
                path, node = f"{path}.{step}" if path else step, node[step]
            elif position == len(loc) - 1:
                return (f"{path}.{step}" if path else step), None, True
    return path or "the sample", node, False
