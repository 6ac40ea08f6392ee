"""What commands share: one way to end with a usage error, and text that fits the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ``ValueError`` or a ``GenmeterError`` into a sentence on standard error and exit code 2."""
    from genmeter.errors import GenmeterError

    try:
        yield
    except GenmeterError as error:
        typer.echo(f"genmeter: {error.message}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
        raise typer.Exit(2) from None
    except ValueError as error:
        typer.echo(f"genmeter: {error}", err=True)
        raise typer.Exit(2) from None


def fit(text: str, hang: int) -> list[str]:
    """A line in pieces no wider than the terminal (80 columns elsewhere), the further ones indented by ``hang``.

    Words are broken only where they fill a line alone, such as long paths; a no-break space keeps two together.
    """
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    lines = textwrap.wrap(text, width, subsequent_indent=" " * hang, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]
