"""``genmeter score``: the main job."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from genmeter.config import RunConfig


def command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...",
            help="JSONL (also .gz, - for stdin), tables (CSV, TSV, Parquet), dataset YAML, or a folder of media.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run directory; runs/<name> by default. Made when absent.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Metrics or variants, separated by commas. Default: what each sample asks for.")
    ] = None,
    metrics_from: Annotated[
        str | None, typer.Option(help="'sample': of --metrics only those in a sample's eval_config.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="reference (published networks) or tiny.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings; flags win over it.")] = None,
    media_root: Annotated[
        list[str] | None, typer.Option(help="Folder that media may be read from; may repeat.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="For a folder: file of prompts.")] = None,
    references: Annotated[Path | None, typer.Option(help="For a folder: folder of references, paired by stem.")] = None,
    match: Annotated[
        str | None, typer.Option(help="For a folder: stem, id, prompt, or a regular expression with one group.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="For a folder: geneval, imagefolder, t2i-compbench, vbench or none.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=COLUMN", help="For a table: what its columns hold; may repeat."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run in tables.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:0.")] = None,
    precision: Annotated[str | None, typer.Option(help="exact or fast.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Items per batch; chosen from memory by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Decode threads; as many as cores by default.")] = None,
    candidate: Annotated[str | None, typer.Option(help="all, first, last, best or an index.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket for weights.")] = False,
    allow_host: Annotated[list[str] | None, typer.Option(help="Host that media may come from; may repeat.")] = None,
    group_by: Annotated[list[str] | None, typer.Option(help="Field to group the summary by; may repeat.")] = None,
    cluster_by: Annotated[str | None, typer.Option(help="Field whose equal values are one cluster.")] = None,
    reference_set: Annotated[
        Path | None, typer.Option(help="File of `genmeter reference`: what set metrics compare with.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Score only the first N lines.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be scored; score nothing.")] = False,
    max_failed: Annotated[str | None, typer.Option(help="Exit 3 when more samples fail: N or P%.")] = None,
    retry_failed: Annotated[str | None, typer.Option(help="Error codes to try again, separated by commas.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove an earlier run there first.")] = False,
    into: Annotated[bool, typer.Option("--into", help="Write results back into the JSONL files too.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Leave the shared feature cache alone.")] = False,
    rows: Annotated[str | None, typer.Option(help="short, or full to repeat constants in every row.")] = None,
    report: Annotated[bool, typer.Option(help="Write report.html.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the summary, as JSON.")] = False,
) -> None:
    """Score an input into a run directory. Interrupt it any time; the same command goes on."""
    from genmeter.engine.session import merged_config
    from genmeter.inputs.tables import read_mapping

    settings: dict[str, Any] = {
        "metrics_from": metrics_from,
        "profile": profile,
        "media_root": media_root or None,
        "name": name,
        "device": device,
        "precision": precision,
        "batch_size": batch_size,
        "workers": workers,
        "candidate": int(candidate) if candidate and candidate.lstrip("-").isdigit() else candidate,
        "offline": offline or None,
        "group_by": group_by or None,
        "cluster_by": cluster_by,
        "reference_set": str(reference_set) if reference_set else None,
        "max_failed": max_failed,
        "retry_failed": [code.strip() for code in retry_failed.split(",")] if retry_failed else None,
        "cache": False if no_cache else None,
        "rows": rows,
    }
    merged = merged_config(config, metrics, settings)
    if allow_host:
        merged = merged.model_copy(
            update={"policy": merged.policy.model_copy(update={"allow_hosts": tuple(allow_host)})}
        )
    reading: dict[str, Any] = {
        "references": references,
        "prompts": prompts,
        "limit": limit,
        "match": match,
        "layout": layout,
        "columns": read_mapping(columns or ()),
    }
    if plan:
        from genmeter.cli.plan import show_plan

        raise typer.Exit(show_plan(inputs, merged, as_json=as_json, **reading))
    raise typer.Exit(
        run_and_print(inputs, out, merged, fresh=fresh, into=into, as_json=as_json, report=report, **reading)
    )


def run_and_print(
    inputs: list[str],
    out: Path | None,
    config: RunConfig,
    *,
    limit: int | None = None,
    fresh: bool = False,
    into: bool = False,
    as_json: bool = False,
    references: Path | None = None,
    prompts: Path | None = None,
    match: str | None = None,
    layout: str | None = None,
    columns: dict[str, str] | None = None,
    report: bool = True,
) -> int:
    """Run, show progress and print the table. Returns the exit code; 130 on SIGINT and SIGTERM, with all work kept.

    Raises:
        ValueError: Usage errors.
        GenmeterError: Unknown metrics.
    """
    from genmeter import api
    from genmeter.cli.progress import Console
    from genmeter.engine.core import StoppedEarly
    from genmeter.schema import jsonio

    with _terminable(), Console() as console:
        try:
            result = api.score(
                inputs,
                out=out,
                references=references,
                prompts=prompts,
                match=match,
                layout=layout,
                columns=columns,
                limit=limit,
                fresh=fresh,
                into=into,
                config=config,
                observer=console,
                report=report,
                command=shlex.join(["genmeter", *sys.argv[1:]]),
            )
        except StoppedEarly as stop:
            return _say_stop(stop)
        except KeyboardInterrupt:
            print("genmeter: interrupted; run the same command to go on", file=sys.stderr)
            return 130
    if as_json:
        sys.stdout.buffer.write(jsonio.dumps(result.summary) + b"\n")
    else:
        from genmeter.report.tables import print_summary

        print_summary(result.summary)
        print(f"\nSamples   {result.run_dir / 'samples.jsonl'}")
        if report:
            print(f"Report    {result.run_dir / 'report.html'}")
    _say_missing_weights(result.run, result.summary)
    if result.exit_code and not result.summary["metrics"]:
        _say_no_metric()
    return _verdict(result.summary, config.max_failed) or result.exit_code


def _say_stop(stop: Any) -> int:
    error = stop.error
    print(f"genmeter: stopped: the first {stop.lines} scores all failed with {error['code']}", file=sys.stderr)
    print(f"  for example: {error['message']}", file=sys.stderr)
    if error.get("hint"):
        print(f"  {error['hint']}", file=sys.stderr)
    return 3


def _say_missing_weights(run: dict[str, Any], summary: dict[str, Any]) -> None:
    """End in a sentence that says what to fetch, where a metric could not run for lack of weights."""
    for name, entry in summary["metrics"].items():
        if "weights_unavailable" not in entry["n"]["failed"]:
            continue
        models = sorted({need["model"] for need in run["metrics"][name]["encoders"].values()})
        advice = f"`genmeter models fetch {' '.join(models)}` fetches them, and the same command scores the rest"
        tiny = "; to try things without a download: --profile tiny" if _has_tiny(name) else ""
        print(f"genmeter: {name} needs weights that are not here: {advice}{tiny}", file=sys.stderr)


def _say_no_metric() -> None:
    """What to do about samples that name no metric, of tasks that have none by default (those that answer in text)."""
    print(
        "genmeter: nothing to score: the samples name no metric in eval_config.metrics, and their tasks have none by "
        "default; name some, as with --metrics exact_match (`genmeter metrics` lists them)",
        file=sys.stderr,
    )


def _has_tiny(name: str) -> bool:
    from genmeter.registry import parse_variant

    return "tiny" in parse_variant(name).spec.profiles


def _verdict(summary: dict[str, Any], max_failed: str | int | None) -> int:
    """3 when a metric has more failures than ``max_failed`` (a number, or a share such as 5%) allows."""
    if max_failed is None:
        return 0
    text = str(max_failed).strip()
    try:
        limit = float(text.rstrip("%"))
    except ValueError:
        raise ValueError(f"--max-failed {text!r}: expected a number or a percentage such as 5%") from None
    for metric, entry in summary["metrics"].items():
        n = entry["n"]
        allowed = limit / 100 * n["total"] if text.endswith("%") else limit
        if n["n_failed"] > allowed:
            print(
                f"genmeter: {metric}: {n['n_failed']} of {n['total']} failed, more than --max-failed {text}",
                file=sys.stderr,
            )
            return 3
    return 0


class _terminable:
    """Turn SIGTERM into the same orderly stop as Ctrl-C, for as long as a run lasts."""

    def __enter__(self) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        try:
            self._before: Any = signal.signal(signal.SIGTERM, stop)
        except ValueError:  # not the main thread
            self._before = None

    def __exit__(self, *exc: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
