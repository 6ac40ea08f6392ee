"""``genmeter summary``: the table of one run, or of several beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    fmt: Annotated[str, typer.Option("--format", help="table, md, latex, csv or json.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    group_by: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Make groups of this field too, e.g. metadata.source.", show_default=False),
    ] = None,
    cluster_by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Samples with one value of it are not independent.", show_default=False),
    ] = None,
) -> None:
    """Print means with intervals, what has no score and why, and signatures to cite."""
    from genmeter.analysis.reader import read_summary, tell_apart
    from genmeter.analysis.summary import summarize_run
    from genmeter.cli.usage import usage_errors
    from genmeter.report.tables import FORMATS, print_summary, render

    fmt = "json" if as_json else fmt
    with usage_errors():
        if fmt not in FORMATS:
            raise ValueError(f"--format {fmt!r}: expected one of {', '.join(FORMATS)}")
        if group_by or cluster_by:
            groups = [part.strip() for item in group_by or () for part in item.split(",") if part.strip()]
            summaries = [summarize_run(run, groups or None, cluster_by) for run in runs]
        else:
            summaries = [read_summary(run) for run in runs]
    if fmt != "json":
        for summary, name in zip(summaries, tell_apart([each.get("name") for each in summaries], runs), strict=True):
            summary["name"] = name
    if fmt == "table":
        print_summary(summaries, run_dir=str(runs[0]) if len(runs) == 1 and runs[0].is_dir() else None)
    else:
        typer.echo(render(summaries, fmt), nl=False)
