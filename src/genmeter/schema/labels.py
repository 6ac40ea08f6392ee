"""Values of fields as names of groups: one name for one value, in every process and every part of genmeter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

ABSENT = "(none)"
"""The group of samples that do not hold the field."""

_LONGEST = 120


def lookup(sample: Any, path: str) -> Any:
    """The value at a dotted path; ``None`` when a step is missing. A key that itself holds dots is found too."""
    if not isinstance(sample, Mapping):
        return None
    if path in sample:
        return sample[path]
    head, dot, rest = path.partition(".")
    while dot:
        if head in sample and (found := lookup(sample[head], rest)) is not None:
            return found
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None


def labels(value: Any) -> Iterator[str]:
    """The groups that a field's value puts its sample into: one, or one for each item of a list; none for ``None``."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if item is None:
            continue
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, sort_keys=True, default=str)
        if len(text) > _LONGEST:
            # Two long values must not fall into one bucket because they begin alike.
            text = f"{text[: _LONGEST - 10]}…{stable_hash(text) & 0xFFFFFFFF:08x}"
        yield text


def stable_hash(*parts: str) -> int:
    """64 bits that are the same in every process; lists of different parts differ."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")
