"""What commands share: one way to end with a usage error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ``ValueError`` or a ``GenmeterError`` into one line on standard error and exit code 2."""
    from genmeter.errors import GenmeterError

    try:
        yield
    except (ValueError, GenmeterError) as error:
        typer.echo(f"genmeter: {error}", err=True)
        raise typer.Exit(2) from None
