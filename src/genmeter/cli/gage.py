"""``genmeter gage-manifests``: where GAGE finds the plug-in."""

from __future__ import annotations

import typer


def command() -> None:
    """Print the folder for GAGE_EVAL_DISCOVERY_MANIFEST_ROOTS."""
    from genmeter.integrations.gage.names import manifest_root

    typer.echo(manifest_root())
