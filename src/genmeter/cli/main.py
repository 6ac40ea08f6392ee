"""The ``genmeter`` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from genmeter import __version__
from genmeter.cli import (
    cache,
    cite,
    demo,
    export,
    gage,
    ingest,
    metrics,
    models,
    reference,
    report,
    schema,
    score,
    summary,
)
from genmeter.errors import GenmeterError

_FULL = "make room there: "
_LOCKED = "make it writable, or give another directory with -o: "
# What to do about errors of the file system.
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: _FULL,
    errno.EROFS: _LOCKED,
    errno.EACCES: _LOCKED,
    errno.EPERM: _LOCKED,
}


class _Commands(TyperGroup):
    """Ends an interrupted command with 130, where the framework would say that it was aborted and end it with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(_interrupted()) from None


app = typer.Typer(
    cls=_Commands,
    name="genmeter",
    help="Scores for generated media, a row for every sample: check the number, then use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("score", help="Score an input: samples in, eval_result out. The main job.")(score.command)
app.command("demo", help="Make a small synthetic run, score it and write its report.")(demo.command)
app.command("reference", help="Encode a reference set once, for score --reference-set.")(reference.command)
app.command("ingest", help="Write tables, folders and other inputs as samples.")(ingest.command)
app.command("summary", help="Print the table of one or more runs.")(summary.command)
app.command("export", help="Write the rows of runs as CSV or Parquet.")(export.command)
app.command("cite", help="Print what to cite, and a methods sentence for each metric.")(cite.command)
app.command("report", help="Write the HTML report of a run again.")(report.command)
app.command("metrics", help="List the metrics, or print the card of one.")(metrics.command)
app.command("schema", help="Print a JSON Schema: sample, eval_result, summary or run.")(schema.command)
app.command("gage-manifests", help="Print the folder in which GAGE finds the plug-in.")(gage.command)
app.add_typer(models.app, name="models", help="The weight files: list, fetch, verify.")
app.add_typer(cache.app, name="cache", help="The feature cache: stats, gc, clear.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"genmeter {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """genmeter scores what generative models produced."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 2 usage, 3 nothing could be scored, 130 interrupted."""
    try:
        app()
    except ValueError as error:
        _complain(str(error))
        sys.exit(2)
    except GenmeterError as error:
        _complain(error.message + (f"\n  {error.hint}" if error.hint else ""))
        sys.exit(2 if error.code == "unknown_metric" else 3)
    except KeyboardInterrupt:
        sys.exit(_interrupted())
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        advice = _ADVICE.get(error.errno or 0, "")
        _complain(f"{where}{error.strerror or error}\n  {advice}finished work is kept; run the same command to go on")
        sys.exit(3)
    except Exception as error:
        if os.environ.get("GENMETER_DEBUG"):
            raise
        what = str(error) or type(error).__name__
        known = type(error).__module__.startswith("genmeter.")
        _complain(
            f"{what if known else f'{type(error).__name__}: {what}'}\n"
            "  finished work is kept; run the same command to go on"
            + ("" if known else "; if it ends here again, please report it (GENMETER_DEBUG=1 shows where)")
        )
        sys.exit(3)
    finally:
        gc.freeze()  # at its end the interpreter would look through all of torch for garbage, a third of a second long


def _interrupted() -> int:
    _complain("interrupted; run the same command to go on")
    return 130


def _complain(message: str) -> None:
    print(f"genmeter: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
