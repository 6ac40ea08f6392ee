"""``genmeter reference``: encode a reference set once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...", help="Samples with references (JSONL), or one folder of media.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="REF", help="The file to write (.safetensors).")],
    metrics: Annotated[str, typer.Option(help="Set metrics it is for, separated by commas, such as fvd,kvd.")],
    moments: Annotated[
        bool, typer.Option("--moments", help="Keep mean and covariance only; enough for Frechet distances.")
    ] = False,
    side: Annotated[
        str, typer.Option("--from", help="references, outputs, or auto: references where there are any.")
    ] = "auto",
    config: Annotated[Path | None, typer.Option(help="YAML file with settings; flags win over it.")] = None,
    profile: Annotated[str | None, typer.Option(help="reference (published networks) or tiny.")] = None,
    media_root: Annotated[
        list[str] | None, typer.Option(help="Folder that media may be read from; may repeat.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:0.")] = None,
    precision: Annotated[str | None, typer.Option(help="exact or fast.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Items per batch; chosen from memory by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decode threads; as many as cores by default.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket for weights.")] = False,
    limit: Annotated[int | None, typer.Option(help="Read only the first N lines.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Leave the shared feature cache alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Encode a set of references into one file; `genmeter score --reference-set` takes it."""
    from genmeter.cli.progress import Console
    from genmeter.engine.reference_run import make_reference
    from genmeter.engine.session import merged_config
    from genmeter.inputs.source import open_source
    from genmeter.schema import jsonio

    settings: dict[str, Any] = {
        "profile": profile,
        "media_root": media_root or None,
        "device": device,
        "precision": precision,
        "batch_size": batch_size,
        "workers": workers,
        "offline": offline or None,
        "cache": False if no_cache else None,
    }
    merged = merged_config(config, metrics, settings)
    source = open_source(list(inputs), limit=limit)
    with Console() as console:
        for note in source.notes:
            console.note(note)
        made = make_reference(source, out, merged, side=side, moments=moments, observer=console)  # type: ignore[arg-type]
    if as_json:
        sys.stdout.buffer.write(jsonio.dumps({"path": str(out), "entries": [m._asdict() for m in made]}) + b"\n")
        return
    for entry in made:
        rows = "" if entry.rows == entry.files else f", {entry.rows:,} rows"
        kind = "moments" if moments else "features"
        print(f"{', '.join(entry.metrics)}: {kind} of {entry.files:,} {entry.side}{rows}, {entry.width} wide")
        if entry.failed:
            reasons = ", ".join(f"{code} {count:,}" for code, count in entry.failed.items())
            print(f"  left out, since they could not be encoded: {reasons}")
    print(f"\nReference set   {out}")
