"""``genmeter models``: the networks' weights.

``list`` shows them, ``fetch`` brings them, ``verify`` hashes them, ``lock`` prints the digest to pin, ``export`` and
``import`` carry them to machines without a network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from genmeter.weights.lock import ModelEntry

app = typer.Typer(
    help="The networks' weights: list, fetch, verify and carry files (`genmeter verify` checks the machine's numbers).",
    no_args_is_help=True,
)

_Models = Annotated[list[str] | None, typer.Argument(help="Ids from `genmeter models list`.", show_default=False)]
_Metrics = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="The models these metrics need, e.g. lpips,lpips@vgg.", show_default=False),
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


@app.command("list")
def list_models(models: _Models = None, metrics: _Metrics = None, as_json: _Json = False) -> None:
    """Which networks there are, and whether their weights are on this machine."""
    with _errors():
        from genmeter.weights.manager import state

        rows = [_row(entry, state(entry)) for entry in _selected(models, metrics)]
        _print(rows, as_json)


@app.command()
def fetch(
    models: _Models = None,
    metrics: _Metrics = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model of models.lock.")] = False,
    offline: Annotated[bool, typer.Option(help="Use only what is on this machine (archives in downloads).")] = False,
    as_json: _Json = False,
) -> None:
    """Bring weights onto this machine: fetch, check the hash, convert."""
    with _errors():
        if not (models or metrics or everything):
            raise ValueError("name models (see `genmeter models list`), or give --metrics LIST or --all")
        rows = [_ensured(entry, offline) for entry in _selected(models, metrics)]
        _print(rows, as_json)
        if any("error" in row for row in rows):
            raise typer.Exit(3)


@app.command()
def verify(models: _Models = None, metrics: _Metrics = None, as_json: _Json = False) -> None:
    """Read and hash the weights on this machine. A model named here must be there; else only those that are."""
    with _errors():
        from genmeter.weights import manager

        rows = [_row(entry, manager.verify(entry)) for entry in _selected(models, metrics)]
        _print(rows, as_json)
        bad = {"damaged", "absent"} if models or metrics else {"damaged"}
        if any(row["state"] in bad for row in rows):
            raise typer.Exit(3)


@app.command("lock")
def lock_models(
    models: _Models = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model of models.lock.")] = False,
    offline: Annotated[bool, typer.Option(help="Use only what is on this machine (archives in downloads).")] = False,
    as_json: _Json = False,
) -> None:
    """Fetch, hash, and remember the digest on this machine; print the line that pins it in models.lock."""
    with _errors():
        if not (models or everything):
            raise ValueError("name models (see `genmeter models list`), or give --all")
        rows = []
        for entry in _selected(models, None):
            row = _ensured(entry, offline)
            if "error" not in row:
                row["toml"] = f'digest = "{row["digest"]}"'
            rows.append(row)
        if as_json:
            _print(rows, as_json)
        else:
            for row in rows:
                if "toml" in row:
                    print(f"# {row['id']} ({row['trust']}, pinned by {row['pinned']})\n{row['toml']}")
            _print_errors(rows)
        if any("error" in row for row in rows):
            raise typer.Exit(3)


@app.command("export")
def export_models(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.tar", help="The archive to write.")],
    models: _Models = None,
    metrics: _Metrics = None,
    as_json: _Json = False,
) -> None:
    """Pack weights for a machine without a network: those that are here, or those named."""
    with _errors():
        from genmeter.weights.manager import state
        from genmeter.weights.transfer import export_weights

        entries = _selected(models, metrics)
        if not (models or metrics):
            entries = [entry for entry in entries if state(entry) == "ready"]
        rows = [_row(entry, "ready") for entry in export_weights(entries, output)]
        _print(rows, as_json)
        print(f"wrote {output}", file=sys.stderr)


@app.command("import")
def import_models(
    archive: Annotated[Path, typer.Argument(metavar="FILE.tar", help="Made by `genmeter models export`.")],
    as_json: _Json = False,
) -> None:
    """Install weights from an archive; each is hashed before it takes its place."""
    with _errors():
        from genmeter.weights.lock import load_lock
        from genmeter.weights.manager import state
        from genmeter.weights.transfer import import_weights

        known, rows = load_lock(), []
        for done in import_weights(archive):
            entry = known.get(done.id)
            if entry is None:
                row: dict[str, Any] = {"id": done.id, "state": "absent", "digest": done.digest}
                if done.error:
                    row["error"] = done.error.to_dict()
            else:
                row = _row(entry, state(entry), done.error)
            rows.append({**row, "imported": done.outcome, "locked_on_import": done.locked})
        _print(rows, as_json)
        if any("error" in row for row in rows):
            raise typer.Exit(3)


def _ensured(entry: ModelEntry, offline: bool) -> dict[str, Any]:
    """Bring one model here; its row, with the error where that failed."""
    from genmeter.errors import GenmeterError
    from genmeter.weights.manager import ensure, state
    from genmeter.weights.progress import show_progress

    failure: GenmeterError | None = None
    try:
        with show_progress() as progress:
            ensure(entry, offline=offline, progress=progress)
    except GenmeterError as error:
        failure = error
    return _row(entry, state(entry), failure)


def _selected(models: list[str] | None, metrics: str | None) -> list[ModelEntry]:
    from genmeter.weights.lock import get_entry, load_lock

    if not models and not metrics:
        return list(load_lock().values())
    ids = list(models or [])
    if metrics:
        from genmeter.registry import parse_variant

        for name in filter(None, (word.strip() for word in metrics.split(","))):
            ids += [str(model) for model in parse_variant(name).models.values()]
    return [get_entry(model) for model in dict.fromkeys(ids)]


def _row(entry: ModelEntry, state: str, error: Any = None) -> dict[str, Any]:
    from genmeter.weights.lock import bundled_path, entry_digest, trust
    from genmeter.weights.manager import expected_path
    from genmeter.weights.sources import get_source

    digest = entry_digest(entry)
    row: dict[str, Any] = {
        "id": entry.id,
        "label": entry.label,
        "architecture": entry.architecture,
        "state": state,
        "digest": digest or None,
        "trust": trust(entry),
        "pinned": "models.lock" if entry.digest or not entry.unverified else ("first fetch" if digest else "not yet"),
        "download_bytes": 0 if bundled_path(entry) else sum(part.bytes for part in entry.sources[0].parts) or None,
        "path": str(expected_path(entry)),
        "sources": [[get_source(part.kind).describe(part) for part in source.parts] for source in entry.sources],
        "licence": entry.licence,
        "citation": entry.citation,
    }
    if error is not None:
        row["error"] = error.to_dict()
    return row


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"schema": "genmeter.models/1", "models": rows}, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("model", "state", "trust", "digest", "pinned by", "download"):
        # An id is there to be copied: the other columns give way.
        table.add_column(
            name, justify="right" if name == "download" else "left", overflow="fold", no_wrap=name == "model"
        )
    for row in rows:
        size = row.get("download_bytes")
        size = "none" if size == 0 else f"{size / 1e6:.1f} MB" if size else "?"
        words = (row["id"], row["state"], row.get("trust", "-"), (row["digest"] or "-")[:8], row.get("pinned", "-"))
        table.add_row(*words, size)
    Console().print(table)
    _print_errors(rows)


def _print_errors(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if "error" in row:
            print(f"{row['id']}: {row['error']['message']}\n  {row['error'].get('hint', '')}", file=sys.stderr)


@contextmanager
def _errors() -> Iterator[None]:
    """A wrong name or argument ends with exit code 2 and one sentence, whoever runs the command."""
    from genmeter.errors import GenmeterError

    try:
        yield
    except GenmeterError as error:
        print(f"genmeter: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        raise typer.Exit(2 if error.code == "unknown_metric" else 3) from None
    except ValueError as error:
        print(f"genmeter: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
