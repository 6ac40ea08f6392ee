"""``genmeter cache``: the shared feature cache. Runs keep their own features, so clearing it breaks no run."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

app = typer.Typer(help="The shared feature cache: how large it is, make it smaller, empty it.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
# Left by a process that was killed while it wrote a shard.
_LEFTOVER = re.compile(r"\.[0-9a-f]{32}\.safetensors\.\d+\.[0-9a-f]{8}\.tmp", re.ASCII)
_LEFTOVER_AGE_S = 3600
_MAX_HEADER = 16_000_000
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@app.command()
def stats(as_json: _Json = False) -> None:
    """How many shards and bytes the cache holds, and for which encoders."""
    import json

    from genmeter.weights.home import cache_home

    shards = find_shards(cache_home())
    encoders: dict[str, dict[str, int]] = {}
    for shard in shards:
        entry = encoders.setdefault(shard.path.parent.name, {"shards": 0, "bytes": 0})
        entry["shards"] += 1
        entry["bytes"] += shard.size
    total = sum(shard.size for shard in shards)
    if as_json:
        data: dict[str, Any] = {"folder": str(cache_home()), "shards": len(shards), "bytes": total}
        typer.echo(json.dumps({**data, "encoders": encoders}, indent=2))
        return
    typer.echo(f"{cache_home()}: {len(shards):,} shards, {show_size(total)}")
    for name, entry in sorted(encoders.items(), key=lambda item: -item[1]["bytes"]):
        shards_of = "1 shard" if entry["shards"] == 1 else f"{entry['shards']:,} shards"
        typer.echo(f"  {name}  {shards_of}, {show_size(entry['bytes'])}")


@app.command()
def gc(
    max_size: Annotated[str, typer.Option(help="What may stay, e.g. 5GB or 500MiB.", show_default=False)],
    as_json: _Json = False,
) -> None:
    """Remove the oldest shards until the cache is no larger than --max-size."""
    from genmeter.cli.usage import usage_errors
    from genmeter.weights.home import cache_home

    with usage_errors():
        limit = parse_size(max_size)
    shards = find_shards(cache_home())
    total = sum(shard.size for shard in shards)
    doomed = []
    for shard in shards:
        if total <= limit:
            break
        doomed.append(shard)
        total -= shard.size
    _report(*remove(doomed), as_json)


@app.command()
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: _Json = False,
) -> None:
    """Remove all features from the cache. Weights and runs are not touched."""
    import sys

    from genmeter.weights.home import cache_home

    shards = find_shards(cache_home())
    size = show_size(sum(shard.size for shard in shards))
    if shards and not yes:
        if not sys.stdin.isatty():
            typer.echo("genmeter: nobody is there to be asked; pass --yes to empty the cache", err=True)
            raise typer.Exit(2)
        typer.confirm(f"Remove {len(shards):,} shards ({size}) under {cache_home()}?", abort=True, err=True)
    _report(*remove(shards), as_json)


class Shard(NamedTuple):
    """A file of the cache: its path, size in bytes and modification time in nanoseconds."""

    path: Path
    size: int
    mtime_ns: int


def find_shards(folder: Path) -> list[Shard]:
    """The feature shards under a cache folder, the oldest first, and what killed processes left half written.

    Links are not followed, and a file counts only when its header says that it is a feature shard: a cache folder that
    was set to the wrong place must not cost anybody their weights.
    """
    found = []
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            try:
                state = path.lstat()
                if not stat.S_ISREG(state.st_mode):
                    continue
                leftover = _LEFTOVER.fullmatch(name) and time.time() - state.st_mtime > _LEFTOVER_AGE_S
                if leftover or (name.endswith(".safetensors") and _is_shard(path)):
                    found.append(Shard(path, state.st_size, state.st_mtime_ns))
            except OSError:
                continue  # removed meanwhile, or not ours to read
    return sorted(found, key=lambda shard: (shard.mtime_ns, str(shard.path)))


def _is_shard(path: Path) -> bool:
    import json

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            return False
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return False
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and str(metadata.get("schema", "")).startswith("genmeter.features/")


def remove(shards: list[Shard]) -> tuple[int, int]:
    """Delete shards and the folders that are empty then. Returns how many shards and bytes are gone."""
    count = size = 0
    for shard in shards:
        try:
            shard.path.unlink()
        except FileNotFoundError:
            continue  # another process was quicker
        count += 1
        size += shard.size
    for folder in {shard.path.parent for shard in shards}:
        try:
            folder.rmdir()
        except OSError:
            continue  # not empty, or in use
    return count, size


def parse_size(text: str) -> int:
    """Bytes of ``5GB`` (powers of 1000), ``500MiB`` (powers of 1024) or a plain number. Raises ``ValueError``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"--max-size {text!r}: expected a size such as 5GB, 500MiB or 0")
    return int(float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2].lower()])


def show_size(size: float) -> str:
    """Bytes in the unit that suits them: ``1.5 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def _report(count: int, size: int, as_json: bool) -> None:
    import json

    if as_json:
        typer.echo(json.dumps({"removed_shards": count, "removed_bytes": size}))
    else:
        typer.echo(f"removed {count:,} shards, {show_size(size)}")
