"""Comparison of tool calls: arguments as JSON, one list of calls with another."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One tool call; ``arguments`` is the parsed JSON, or None where it could not be read."""

    name: str
    arguments: dict[str, Any] | None


def same(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, true is not 1, the order of keys does not count."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, str) and isinstance(expected, str):
        return unicodedata.normalize("NFC", found) == unicodedata.normalize("NFC", expected)
    return bool(found == expected)


def fits(found: Call, golden: Call, arguments: str) -> bool:
    """Whether a call meets a golden one; ``arguments`` is exact, subset or names."""
    if found.name != golden.name:
        return False
    if arguments == "names":
        return True
    if found.arguments is None or golden.arguments is None:
        return False
    if arguments == "exact":
        return same(found.arguments, golden.arguments)
    return all(key in found.arguments and same(found.arguments[key], value) for key, value in golden.arguments.items())


def matched(found: Sequence[Call], golden: Sequence[Call], *, order: str, arguments: str) -> int:
    """How many golden calls are met by a call of their own: the greatest number, in order (strict) or in any."""
    table = [[fits(call, wanted, arguments) for call in found] for wanted in golden]
    return _in_order(table, len(found)) if order == "strict" else _in_any_order(table, len(found))


def _in_order(table: list[list[bool]], width: int) -> int:
    best = [0] * (width + 1)
    for row in table:
        last, best = best, [0] * (width + 1)
        for column, fit in enumerate(row, 1):
            best[column] = max(last[column], best[column - 1], last[column - 1] + 1 if fit else 0)
    return best[width]


def _in_any_order(table: list[list[bool]], width: int) -> int:
    # With subsets one call may meet several golden ones, so the first fit may block a later one: augmenting paths.
    owner: list[int | None] = [None] * width

    def place(row: int, seen: set[int]) -> bool:
        for column in range(width):
            if table[row][column] and column not in seen:
                seen.add(column)
                holder = owner[column]
                if holder is None or place(holder, seen):
                    owner[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(table)))
