"""``genmeter cite``: what to cite for the numbers of a run, and how to describe them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    fmt: Annotated[str, typer.Option("--format", help="text (both), bibtex or json.")] = "text",
) -> None:
    """Print a methods sentence for each metric, and the BibTeX of all that its number rests on."""
    from genmeter.cli.usage import usage_errors
    from genmeter.report.cite import FORMATS, cite

    with usage_errors():
        if fmt not in FORMATS:
            raise ValueError(f"--format {fmt!r}: expected one of {', '.join(FORMATS)}")
        typer.echo(cite(runs, fmt), nl=False)
