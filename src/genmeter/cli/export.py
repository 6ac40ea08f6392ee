"""``genmeter export``: the rows of runs as CSV or Parquet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.", show_default=False)],
    fmt: Annotated[
        str | None, typer.Option("--format", help="csv or parquet; by default what the name of FILE says, else csv.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Where to; CSV goes to standard output.")
    ] = None,
    table: Annotated[
        str, typer.Option(help="samples, sets (values of set metrics), or contributions (of samples to those).")
    ] = "samples",
) -> None:
    """Write one row for each sample and metric; set metrics have tables of their own."""
    from genmeter.cli.usage import usage_errors
    from genmeter.engine.store import replacing
    from genmeter.report.rows_export import FORMATS, TABLES, import_arrow, table_rows, write_csv, write_parquet

    with usage_errors():
        fmt = fmt or ("parquet" if out is not None and out.suffix.lower() == ".parquet" else "csv")
        if fmt not in FORMATS:
            raise ValueError(f"--format {fmt!r}: expected {' or '.join(FORMATS)}")
        if table not in TABLES:
            raise ValueError(f"--table {table!r}: expected one of {', '.join(TABLES)}")
        if fmt == "parquet" and out is None:
            raise ValueError("Parquet is no text for a terminal: name a file with -o FILE")
        if fmt == "parquet":
            import_arrow()
        if out is not None and out.is_dir():
            raise ValueError(f"{out} is a folder: give the name of a file in it, such as {out / 'rows.csv'}")
        write = write_parquet if fmt == "parquet" else write_csv
        if out is None:
            write(table_rows(runs, table), table, sys.stdout.buffer)
            count = None
        else:
            with replacing(out) as file:
                count = write(table_rows(runs, table), table, file)
        if count is not None:
            typer.echo(f"{out}: {count:,} {'row' if count == 1 else 'rows'}", err=True)
        if table == "samples":
            _say_sets(runs)


def _say_sets(runs: list[Path]) -> None:
    """Where the set metrics are, so that nobody takes them for lost."""
    from genmeter.analysis.reader import read_run

    entries = [(name, entry) for run in runs for name, entry in (read_run(run).get("metrics") or {}).items()]
    names = dict.fromkeys(name for name, entry in entries if entry.get("scope") == "set")
    if names:
        typer.echo(f"{', '.join(names)}: one value for a set, in --table sets and --table contributions", err=True)
