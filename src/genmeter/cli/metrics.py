"""``genmeter metrics``: which metrics are installed, and the card of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from genmeter.metricspec import MetricSpec


def command(
    metric: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The metric whose card to print.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """List the metrics, or print the card of one: definition, conventions, pitfalls."""
    import json

    from genmeter.cli.usage import usage_errors
    from genmeter.registry import get_metric, list_metrics

    with usage_errors():
        # A variant's name is accepted: its card is the metric's.
        specs = list_metrics() if metric is None else [get_metric(metric.split("@")[0].split("/")[0].strip())]
    if as_json:
        data: Any = [_data(spec) for spec in specs]
        if metric is not None:
            data = {**data[0], "card": specs[0].card}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    elif metric is None:
        _print_list(specs)
    else:
        _print_card(specs[0])


def _data(spec: MetricSpec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "title": spec.title,
        "summary": spec.summary,
        "scope": spec.scope,
        "modality": spec.modality,
        "higher_is_better": spec.higher_is_better,
        "range": list(spec.range),
        "citation": spec.citation,
        "task_types": list(spec.task_types),
        "needs": {
            need.name: {"encoder": need.encoder, "modality": need.modality, "roles": list(need.roles)}
            for need in spec.needs.values()
        },
        "parameters": {
            p.name: {
                "type": p.type,
                "default": p.default,
                "choices": list(p.choices),
                "affects_score": p.affects_score,
                "help": p.help,
            }
            for p in spec.parameters.values()
        },
        "models": {name: choice.label for name, choice in spec.models.items()},
        "conventions": list(spec.conventions),
        "pitfalls": list(spec.pitfalls),
    }


def _print_list(specs: list[MetricSpec]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not specs:
        typer.echo("No metric is installed.")
        return
    console = Console(markup=False, highlight=False)
    unicode = "utf" in (console.encoding or "").lower()
    table = Table(box=box.SIMPLE_HEAD if unicode else box.ASCII2, pad_edge=False)
    for head in ("Metric", "Better", "For", "What it is"):
        table.add_column(head, overflow="fold", no_wrap=head == "Better")
    for spec in specs:
        about = f"{spec.title}. {spec.summary}" if spec.summary else spec.title
        better = "higher" if spec.higher_is_better else "lower"
        cells = (spec.id, better, "\n".join(spec.task_types) or spec.modality or "", about)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    typer.echo("Print the card of one:  genmeter metrics ID")
    typer.echo("Score with some:        genmeter score IN --metrics ID,ID@MODEL")


def _print_card(spec: MetricSpec) -> None:
    import sys

    facts = [
        f"metric:      {spec.id} ({'one value for a set' if spec.scope == 'set' else 'one value a sample'})",
        f"better:      {'higher' if spec.higher_is_better else 'lower'}",
        f"range:       {_bound(spec.range[0], '-inf')} to {_bound(spec.range[1], 'inf')}",
    ]
    if spec.models:
        names = ", ".join(f"{spec.id}@{name}" for name in spec.models)
        facts.append(f"models:      {names}")
    if spec.conventions:
        facts.append(f"conventions: {', '.join(f'{spec.id}/{name}' for name in spec.conventions)}")
    for p in spec.parameters.values():
        facts.append(f"parameter:   {p.name} = {p.default} ({p.expected}){'. ' + p.help if p.help else ''}")
    facts += [f"note:        {pitfall}" for pitfall in spec.pitfalls]
    text = "\n".join(facts)
    card = spec.card.strip() or spec.title
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console()
        console.print(Markdown(card))
        console.print()
        console.print(text, markup=False, highlight=False)
    else:
        typer.echo(f"{card}\n\n{text}")


def _bound(value: float | None, unbounded: str) -> str:
    return unbounded if value is None else f"{value:g}"
