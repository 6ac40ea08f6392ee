"""``genmeter score --plan``: print what would be scored; score nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genmeter.config import RunConfig


def show_plan(
    inputs: list[str],
    config: RunConfig,
    *,
    references: Path | None = None,
    prompts: Path | None = None,
    limit: int | None = None,
    match: str | None = None,
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    as_json: bool = False,
) -> int:
    """Print the preview of a run. Returns the exit code 0."""
    from genmeter.cli.usage import fit
    from genmeter.engine.preview import preview
    from genmeter.inputs.source import open_source
    from genmeter.schema import jsonio

    source = open_source(
        inputs,
        references=references,
        prompts=prompts,
        limit=limit,
        match=match,
        layout=layout,
        columns=columns,
    )
    found = preview(source, config)
    if as_json:
        sys.stdout.buffer.write(jsonio.dumps(found) + b"\n")
        return 0
    for line in _lines(found):
        for piece in fit(line, _hang(line)):
            print(piece)
    return 0


def _hang(line: str) -> int:
    """Where a line that is too long goes on: under its second column."""
    lead = len(line) - len(line.lstrip())
    return lead + 11 if lead == 4 else lead + 2 if lead else 10


def _lines(found: Mapping[str, Any]) -> list[str]:
    from genmeter.report.text import clean

    lines = [f"{found['lines']} samples; nothing was scored. The first of them:"]
    lines += [f"  {clean(note)}" for note in found["notes"]]
    for sample in found["samples"]:
        lines.append("")
        if sample.get("error"):
            lines.append(f"line {sample['line']}: {sample['error']['code']}: {clean(sample['error']['message'])}")
            continue
        lines.append(f"{clean(sample['id'])}  ({sample['why']})")
        for entry in sample["metrics"]:
            lines.append(f"  {entry['metric']}  {entry.get('variant', '')}".rstrip())
            for role in ("prompt", "prediction", "reference", "input"):
                for item in entry.get(role, ()):
                    lines.append(f"    {role:<10} {clean(item['value'])}   <-\u00a0{item['path']}")
            if entry.get("error"):
                lines.append(f"    no score: {entry['error']['code']}: {clean(entry['error']['message'])}")
    probe, estimate = found["probe"], found["estimate"]
    lines += ["", f"Probe     {probe['lines']} samples read and decoded, {sum(probe['failures'].values())} failures"]
    for error in probe["examples"]:
        count = probe["failures"].get(error["code"], 0)
        asset = f"{clean(error['asset'])}: " if error.get("asset") else ""
        lines.append(f"            {error['code']} {count}   e.g. {asset}{clean(error['message'])}")
    lines.append(f"Time      {_time(estimate, found['device'])}")
    lines.append(f"Disk      about {_size(estimate['disk_bytes'])}")
    for weights in found["weights"]:
        ready = weights["state"] == "ready"
        need = "on this machine" if ready else f"to be downloaded, {_size(weights['download_bytes'])}"
        lines.append(f"Weights   {weights['model']}: {need}")
    return lines


def _time(estimate: Mapping[str, Any], device: str) -> str:
    decode = estimate["decode_seconds"]
    if estimate["encode_seconds"] is None:
        return f"reading about {_duration(decode)}; the network could not be timed, its weights are not here"
    total = max(decode, estimate["encode_seconds"]) if device != "cpu" else decode + estimate["encode_seconds"]
    parts = f"network {_duration(estimate['encode_seconds'])}, reading {_duration(decode)}"
    return f"about {_duration(total)} on {device} ({parts})"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
