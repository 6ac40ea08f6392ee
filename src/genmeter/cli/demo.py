"""``genmeter demo``: a small synthetic run of several task types, scored in one command."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

_READING = (
    "lpips is a distance between an output and its reference: 0 for identical pictures, higher is worse. "
    "It does not read the prompt, so an output that ignored a small edit (data_tag.degradation: unedited) scores "
    "almost as well as a good one.",
    "clipscore and clip_i compare a picture with its prompt, in English or Chinese, and with its reference: higher is "
    "better. Here they run on tiny-clip, a small network that ships with genmeter and knows such drawings only; its "
    "scores are flagged not_comparable. For your own outputs take the published networks: genmeter score IN.",
    "clapscore and clap_a do the same for sounds: with their prompt, and with another take of what was asked for "
    "(references/). They run on tiny-clap, which knows such sounds only. A sound that holds all that was asked for in "
    "the wrong order (data_tag.match: order) loses, and silence has a score, flagged silent.",
    "fvd is a distance between two sets of videos, in the published I3D network: lower is better. What a sample does "
    "to it is detail.influence. Sets as small as these are far from enough: the value is biased upwards, and the "
    "corrected one and its interval say how little is known.",
    "The outputs without a score are broken on purpose: each has null and its reason in samples.jsonl, and none of "
    "them counts as 0.",
)


def command(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the data and the run.")] = Path("demo"),
    n: Annotated[int, typer.Option("-n", min=1, help="Samples of each task type.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Which pictures and sounds are made.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:i].")] = "auto",
    offline: Annotated[bool, typer.Option("--offline", help="Use only weights that are on this machine.")] = False,
) -> None:
    """Make a small run of good, degraded and broken outputs, score it and say how to read the result."""
    from genmeter.cli.score import run_and_print
    from genmeter.config import RunConfig
    from genmeter.synth.demo import write_demo

    samples = write_demo(out / "data", n=n, seed=seed)
    config = RunConfig(name="demo", profile="tiny", device=device, offline=offline, group_by=("data_tag.strength",))
    # Anew each time: an earlier demo may have had other media. What is equal comes from the feature cache.
    code = run_and_print([str(samples)], out / "run", config, fresh=True)
    if code == 0:
        for paragraph in _READING:
            typer.echo("\n" + textwrap.fill(paragraph, 79))
    raise typer.Exit(code)
