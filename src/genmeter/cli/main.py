"""The ``genmeter`` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from genmeter import __version__
from genmeter.cli import cache, demo, metrics, models, report, schema, score, summary
from genmeter.errors import GenmeterError

app = typer.Typer(
    name="genmeter",
    help="Scores for generated media, a row for every sample: check the number, then use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("score", help="Score an input: samples in, eval_result out. The main job.")(score.command)
app.command("demo", help="Make a small synthetic run, score it and write its report.")(demo.command)
app.command("summary", help="Print the table of one or more runs.")(summary.command)
app.command("report", help="Write the HTML report of a run again.")(report.command)
app.command("metrics", help="List the metrics, or print the card of one.")(metrics.command)
app.command("schema", help="Print a JSON Schema: sample, eval_result, summary or run.")(schema.command)
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
        _complain("interrupted; run the same command to go on")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _complain(
            f"{error.strerror or error}: {error.filename or ''}\n  finished work is kept; run the same command to go on"
        )
        sys.exit(3)


def _complain(message: str) -> None:
    print(f"genmeter: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
