"""``genmeter ingest``: tables, folders and other files to samples of the standard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="SRC...", help="Tables (CSV, TSV, Parquet), a folder of media, or JSONL files."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The file of samples to write.")] = Path("samples.jsonl"),
    match: Annotated[
        str | None, typer.Option(help="For a folder: stem, id, prompt, or a regular expression with one group.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="For a folder: geneval, imagefolder, t2i-compbench, vbench or none.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=COLUMN", help="For a table: what its columns hold; may repeat."),
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="For a folder: file of prompts.")] = None,
    references: Annotated[Path | None, typer.Option(help="For a folder: folder of references, paired by stem.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N lines.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write what an input holds as samples, one a line; nothing is scored."""
    from genmeter.inputs.ingest import MediaFolder, problems, write_samples
    from genmeter.inputs.source import open_source
    from genmeter.inputs.tables import read_mapping

    if out.exists() and not force:
        raise ValueError(f"{out} exists; give another name with -o, or --force to replace it")
    source = open_source(
        inputs,
        references=references,
        prompts=prompts,
        limit=limit,
        match=match,
        layout=layout,
        columns=read_mapping(columns or ()),
        put=MediaFolder(out).put,
    )
    for note in source.notes:
        print(note, file=sys.stderr)
    found = write_samples(source, out)
    for sentence in problems(found):
        print(f"genmeter: {sentence}", file=sys.stderr)
    if found.outside:
        # Relative paths are only followed into the roots, whatever a file says.
        roots = " ".join(f"--media-root {root}" for root in dict.fromkeys((out.parent, source.roots[0])))
        print(f"media lie outside {out.parent}: score it with {roots}", file=sys.stderr)
    print(f"{found.written} of {found.written + len(found.errors)} samples written to {out}")
    raise typer.Exit(0 if found.written or not found.errors else 3)
