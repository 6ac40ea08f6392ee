"""Field paths (``messages[0].content[1].text``): reading one, and naming the field a user wrote."""

from __future__ import annotations

import re
from typing import Any

_STEP = re.compile(r"([^.\[\]]+)|\[(-?\d+)\]")


class ShortForm(dict[str, Any]):
    """A sample that was built from a short record; it remembers which field of the record each asset came from.

    Attributes:
        origins: The prefix of a field path in the sample, and the record's field that stands behind it.
    """

    origins: dict[str, str]

    def __init__(self, data: dict[str, Any], origins: dict[str, str]) -> None:
        super().__init__(data)
        self.origins = origins

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShortForm, (dict(self), self.origins))


def origin_path(sample: dict[str, Any], path: str) -> str:
    """The path in the record as the user wrote it; the same path unless the sample is a :class:`ShortForm`."""
    if isinstance(sample, ShortForm):
        prefix = path
        while prefix:
            if prefix in sample.origins:
                return sample.origins[prefix]
            cut = max(prefix.rfind("."), prefix.rfind("["))
            prefix = prefix[:cut] if cut > 0 else ""
    return path


def lookup(data: Any, path: str) -> Any:
    """The value at a field path, or ``None``. A key that itself holds dots is found when it stands as a whole."""
    if isinstance(data, dict) and path in data:
        return data[path]
    for match in _STEP.finditer(path):
        key, position = match.groups()
        if key is not None and isinstance(data, dict):
            data = data.get(key)
        elif position is not None and isinstance(data, list) and -len(data) <= int(position) < len(data):
            data = data[int(position)]
        else:
            return None
    return data
