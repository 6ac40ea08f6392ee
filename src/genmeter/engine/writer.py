"""``samples.jsonl``: one line out for each line in, in input order, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genmeter.contract import Json
from genmeter.engine.store import temporary_name, unwritable
from genmeter.inputs.source import InputLine
from genmeter.schema import jsonio
from genmeter.schema.results import merge_eval_result


class LineWriter:
    """Writes beside the target and renames on a clean exit.

    Args:
        path: The file that appears. An ``OSError`` on the way names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = temporary_name(path)

    def __enter__(self) -> LineWriter:
        try:
            self._file = open(self._temporary, "wb", buffering=1 << 20)
        except OSError as error:
            raise unwritable(error, self._path) from None
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if error is None:
                os.replace(self._temporary, self._path)
        except OSError as fault:
            if error is None:
                raise unwritable(fault, self._path) from None
        finally:
            with contextlib.suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def write(self, line: InputLine, eval_result: Mapping[str, Json], *, finite: bool = False) -> None:
        """Write one line with its result merged in; ``finite`` as for :func:`genmeter.schema.jsonio.dumps`."""
        data = jsonio.dumps(output_record(line, eval_result), finite=finite) + b"\n"
        try:
            self._file.write(data)
        except OSError as error:
            raise unwritable(error, self._path) from None


def output_record(line: InputLine, eval_result: Mapping[str, Json]) -> dict[str, Any]:
    """The record as it came in, with the result where the standard puts it; a line that is no record gets a stub."""
    if line.record is None:
        return {"id": None, "line": line.number, "eval_result": dict(eval_result)}
    return with_result(line.record, line.path, eval_result)


def with_result(record: Mapping[str, Any], path: tuple[str, ...], eval_result: Mapping[str, Json]) -> dict[str, Any]:
    """A copy of a record with ``eval_result`` merged in at ``path``; the record itself is not changed."""
    copy = dict(record)
    if path:
        copy[path[0]] = with_result(record[path[0]], path[1:], eval_result)
    else:
        copy["eval_result"] = merge_eval_result(record.get("eval_result"), dict(eval_result))
    return copy
