"""``genmeter schema``: the JSON Schemas of what genmeter reads and writes."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[str, typer.Argument(help="sample, eval_result, summary or run.", show_default=False)],
) -> None:
    """Print the JSON Schema of a format."""
    import json

    from genmeter.analysis.schemas import json_schema
    from genmeter.cli.usage import usage_errors

    with usage_errors():
        schema = json_schema(name)
    typer.echo(json.dumps(schema, indent=2, ensure_ascii=False))
