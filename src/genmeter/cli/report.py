"""``genmeter report``: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file; else report.html in RUN.", show_default=False)
    ] = None,
    media_root: Annotated[
        list[Path] | None,
        typer.Option(help="Where the scored files are, if not where the run found them.", show_default=False),
    ] = None,
    thumbnails: Annotated[bool, typer.Option(help="Show small pictures of the best and worst samples.")] = True,
) -> None:
    """Write a self-contained HTML report: charts, failures, best and worst samples."""
    from genmeter.cli.usage import usage_errors
    from genmeter.report.html import write_report

    with usage_errors():
        path = write_report(run, out, media_roots=media_root or (), thumbnails=thumbnails)
    typer.echo(str(path))
