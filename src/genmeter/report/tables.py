"""The table at the end of a run: what was measured, how sure it is, what has no score and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from genmeter.analysis.notes import joint_notes
from genmeter.errors import CODES, FLAGS
from genmeter.report.text import (
    advice,
    applicable,
    clean,
    direction,
    format_frames,
    format_mean,
    format_range,
    format_sets,
    format_value,
    metric_title,
    scored_of,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FORMATS = ("table", "md", "latex", "csv", "json")
_MAX_GROUPS = 4
_MAX_GROUP_ROWS = 10
_MAX_GROUP_ROWS_ASKED = 50
_WIDE = 17


def render(summaries: Sequence[Mapping[str, Any]], fmt: str = "table", *, width: int = 80) -> str:
    """Summaries as text in one of :data:`FORMATS`, ending in a newline.

    Args:
        summaries: One or more summaries (the content of summary.json).
        fmt: ``table`` is plain text of at most ``width`` columns, but for signature lines, which are never broken.
        width: Columns of the plain table.

    Raises:
        ValueError: The format is not known.
    """
    if fmt == "table":
        import io

        from rich.console import Console

        out = io.StringIO()
        console = Console(file=out, width=width, no_color=True, force_terminal=False, markup=False, highlight=False)
        print_summary(summaries, console)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    from genmeter.report import exports

    writers = {"md": exports.markdown, "latex": exports.latex, "csv": exports.csv_text, "json": exports.json_text}
    if fmt not in writers:
        raise ValueError(f"unknown format {fmt!r}; expected one of {', '.join(FORMATS)}")
    return writers[fmt](summaries)


def print_summary(
    summaries: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    console: Console | None = None,
    *,
    run_dir: str | None = None,
) -> None:
    """Print one or several summaries for people; colour only on a terminal, no wider than it is.

    Args:
        summaries: One summary or several.
        console: Where to; by default standard output.
        run_dir: The run directory of a single summary, named in the closing line.
    """
    from rich.console import Console

    if isinstance(summaries, Mapping):
        summaries = [summaries]
    console = console or Console(markup=False, highlight=False)
    _Printer(console, list(summaries)).print(run_dir)


class _Printer:
    def __init__(self, console: Console, summaries: list[Mapping[str, Any]]) -> None:
        self.console = console
        self.summaries = summaries
        self.many = len(summaries) > 1
        # A terminal that cannot show the signs must still show the numbers.
        self.unicode = "utf" in (console.encoding or "").lower()

    def print(self, run_dir: str | None) -> None:
        for note in joint_notes(self.summaries):
            self.line(clean(note, 500), style="bold yellow", lead="! ")
        if not self.many:
            self._heading(self.summaries[0])
        self._main_table()
        self._explain()
        self._failures()
        self._flags()
        if not self.many:
            self._groups(self.summaries[0])
        self._signatures()
        if run_dir is not None:
            self.line(f"A row for every sample: {clean(run_dir)}/samples.jsonl", style="dim")
            self.line(f"Pictures and charts:    genmeter report {clean(run_dir)}", style="dim")

    def line(self, text: str, *, style: str = "", lead: str = "", unbroken: bool = False) -> None:
        """One paragraph, wrapped under its first word; ``unbroken`` leaves lines to copy in one piece."""
        from rich.text import Text

        text, lead = self._signs(text), self._signs(lead)
        if unbroken:
            self.console.print(Text(lead + text, style=style), soft_wrap=True)
            return
        body = Text(text, style=style, overflow="fold")
        for number, part in enumerate(body.wrap(self.console, max(20, self.console.width - len(lead)))):
            part.rstrip()
            self.console.print(Text(lead if number == 0 else " " * len(lead), style=style) + part)

    def _prefix(self, summary: Mapping[str, Any]) -> str:
        return f"{clean(summary.get('name') or summary.get('run_id'), 60)}: " if self.many else ""

    def _signs(self, text: str) -> str:
        if self.unicode:
            return text
        for sign, plain in (("±", "+/-"), (" ↓", ""), (" ↑", ""), ("…", "..."), ("→", "->")):
            text = text.replace(sign, plain)
        return text.encode("ascii", "backslashreplace").decode()

    def _heading(self, summary: Mapping[str, Any]) -> None:
        total = (summary.get("samples") or {}).get("total")
        parts = [clean(summary.get("name") or "run", 60)]
        if total is not None:
            parts.append(f"{total:,} {'sample' if total == 1 else 'samples'}")
        overall = summary.get("overall")
        if overall:
            parts.append(f"{overall['passed']:,} passed, {overall['failed']:,} did not")
        self.line(" · ".join(parts) if self.unicode else " - ".join(parts), style="bold")

    def _table(self) -> Table:
        from rich import box
        from rich.table import Table

        style = box.SIMPLE_HEAD if self.unicode else box.ASCII2
        return Table(box=style, pad_edge=False, padding=(0, 1, 0, 0) if self.unicode else (0, 1))

    def _main_table(self) -> None:
        from rich.text import Text

        table = self._table()
        if self.many:
            table.add_column("Run", overflow="fold", max_width=14)
        table.add_column("Metric", overflow="fold")
        table.add_column("Variant", overflow="fold")
        table.add_column("Better", no_wrap=True)
        table.add_column(self._signs("Mean ± 95 %"), no_wrap=True)
        table.add_column("Scored", justify="right", overflow="fold")
        for summary, name, metric in self._metrics():
            value = self._value(metric)
            cells = [clean(summary.get("name") or summary.get("run_id"), 60)] if self.many else []
            cells += [_fold(clean(name, 60)), _fold(clean(metric.get("variant") or "", 80))]
            cells += [direction(metric.get("higher_is_better")), value, scored_of(metric["n"])]
            style = "red" if not metric["n"]["scored"] else ""
            table.add_row(*(Text(self._signs(cell), style=style, overflow="fold") for cell in cells))
        self.console.print(table)

    def _value(self, metric: Mapping[str, Any]) -> str:
        if metric.get("scope") != "set":
            text = format_mean(metric.get("mean"), metric.get("interval95"))
        else:
            text = _set_text(metric) or format_sets(metric, "\n", _MAX_GROUPS)
        return "\n".join(part for part in (text or "no score", format_frames(metric.get("frames"))) if part)

    def _explain(self) -> None:
        """What each metric is, once, in words."""
        told: set[str] = set()
        for _, name, metric in self._metrics():
            if name in told:
                continue
            told.add(name)
            better = metric.get("higher_is_better")
            bounds = format_range(metric.get("range"))
            facts = [f"range {bounds}" if bounds else ""]
            facts.append("" if better is None else f"{direction(better, arrows=False)} is better")
            facts.append("one value for the whole set" if metric.get("scope") == "set" else "")
            told_facts = ", ".join(fact for fact in facts if fact)
            text = ". ".join(
                part for part in (metric_title(name, metric), told_facts[:1].upper() + told_facts[1:]) if part
            )
            if text:
                self.line(f"{clean(name, 60)}: {text}.", lead="  ")
        for summary, name, metric in self._metrics():
            skipped = metric["n"]["skipped"]
            if skipped:
                whole = f"{skipped:,} of {metric['n']['total']:,} samples"
                self.line(
                    f"{self._prefix(summary)}{clean(name, 60)} does not apply to {whole}.", lead="  ", style="dim"
                )
        if any(metric.get("interval95") for _, _, metric in self._metrics() if metric.get("scope") != "set"):
            self.line("±: where the mean of further such samples would lie, with 95 % confidence.", lead="  ")
        self.console.print()

    def _failures(self) -> None:
        """Each code once: what it means, how often it struck which metric, one example, what to do."""
        found: dict[str, list[tuple[str, int]]] = {}
        example: dict[str, Mapping[str, Any]] = {}
        for summary, name, metric in self._metrics():
            for code, count in metric["n"]["failed"].items():
                found.setdefault(code, []).append((f"{self._prefix(summary)}{clean(name, 60)}", count))
                examples = ((metric.get("failures") or {}).get(code) or {}).get("examples")
                if examples:
                    example.setdefault(code, examples[0])
        if not found:
            return
        self.line("Not scored", style="bold")
        for code, counts in sorted(found.items(), key=lambda item: -max(n for _, n in item[1])):
            self.line(f"{clean(code)} ({_listed(counts)}): {CODES.get(code, '')}", lead="  ")
            if code in example:
                self.line(_example(example[code]), lead="    e.g. ", style="dim")
            todo = advice(code, example.get(code, {}).get("hint"))
            if todo:
                self.line(todo, lead="    → ")
        self.console.print()

    def _flags(self) -> None:
        found: dict[str, list[tuple[str, int]]] = {}
        for summary, name, metric in self._metrics():
            for flag, count in (metric.get("flags") or {}).items():
                found.setdefault(flag, []).append((f"{self._prefix(summary)}{clean(name, 60)}", count))
        if not found:
            return
        self.line("Flags on scores", style="bold")
        for flag, counts in sorted(found.items()):
            self.line(f"{clean(flag)} ({_listed(counts)}): {FLAGS.get(flag, '')}", lead="  ")
        self.console.print()

    def _groups(self, summary: Mapping[str, Any]) -> None:
        """Groups that were asked for, and small ones, in full; others by name, since summary.json has them all."""
        paths = {
            path for m in summary["metrics"].values() for path in m.get("groups") or () if len(_buckets(m, path)) > 1
        }
        asked = [path for path in summary.get("group_by") or () if path in paths]
        small = [p for p in sorted(paths.difference(asked)) if self._group_size(summary, p) <= _MAX_GROUP_ROWS]
        shown = [p for p in asked if self._group_size(summary, p) <= _MAX_GROUP_ROWS_ASKED]
        shown += small[: max(0, _MAX_GROUPS - len(shown))]
        for path in shown:
            self._group_table(summary, path)
        rest = sorted(paths.difference(shown))
        if rest:
            names = ", ".join(clean(p, 60) for p in rest[:6]) + (", ..." if len(rest) > 6 else "")
            self.line(f"More groups in summary.json: {names}", style="dim")
        for path, why in (summary.get("groups_left_out") or {}).items():
            self.line(f"Not grouped by {clean(path, 60)}: {clean(why)}", style="dim")
        if shown or rest or summary.get("groups_left_out"):
            self.console.print()

    @staticmethod
    def _group_size(summary: Mapping[str, Any], path: str) -> int:
        return max(len(_buckets(m, path)) for m in summary["metrics"].values())

    def _group_table(self, summary: Mapping[str, Any], path: str) -> None:
        from rich.text import Text

        table = self._table()
        table.add_column(Text(self._signs(clean(path, 60))), overflow="fold", max_width=30)
        table.add_column("Metric", overflow="fold")
        table.add_column(self._signs("Mean ± 95 %"), no_wrap=True)
        table.add_column("Scored", justify="right", overflow="fold")
        for name, metric in summary["metrics"].items():
            buckets = _buckets(metric, path)
            for bucket, stats in buckets.items() if len(buckets) > 1 else ():
                value = _set_text(stats) or format_mean(stats.get("mean"), stats.get("interval95")) or "no score"
                cells = (clean(bucket, 60), _fold(clean(name, 60)), value, scored_of(stats["n"]))
                table.add_row(*(Text(self._signs(cell), overflow="fold") for cell in cells))
        self.console.print(table)

    def _signatures(self) -> None:
        self.line("Signatures, to paste under a published table", style="bold")
        for summary, _, metric in self._metrics():
            self.line(clean(metric["signature"], 2000), lead=f"  {self._prefix(summary)}", unbroken=True)

    def _metrics(self) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
        for summary in self.summaries:
            for name, metric in summary["metrics"].items():
                yield summary, name, metric


def _buckets(metric: Mapping[str, Any], path: str) -> dict[str, Mapping[str, Any]]:
    """The groups of a field that a metric has something to say about; a single one only repeats the whole."""
    if not metric["n"]["scored"]:
        return {}
    return {b: stats for b, stats in ((metric.get("groups") or {}).get(path) or {}).items() if applicable(stats["n"])}


def _set_text(found: Mapping[str, Any]) -> str:
    """The value of a set, what bias makes of it with its interval, and N on both sides; empty where there is none."""
    if found.get("score") is None:
        return ""
    detail, interval = found.get("detail") or {}, found.get("interval95")
    lines = [format_value(found["score"])]
    if detail.get("bias_corrected") is not None:
        lines.append(f"corrected {format_value(detail['bias_corrected'])}")
    if interval and None not in interval:
        lines.append(f"[{format_value(interval[0])}, {format_value(interval[1])}]")
    if detail.get("n_prediction") is not None and detail.get("n_reference") is not None:
        lines.append(f"N {detail['n_prediction']:,} and {detail['n_reference']:,}")
    return "\n".join(lines)


def _fold(text: str) -> str:
    """A long name broken where its parts meet: ``clipscore`` / ``@openai-vit-l-14`` / ``/torchmetrics``."""
    if len(text) <= _WIDE:
        return text
    return text.replace("@", "\n@").replace("/", "\n/").strip("\n")


def _listed(counts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts)


def _example(example: Mapping[str, Any]) -> str:
    where = f"line {example.get('line')}"
    if example.get("id") is not None:
        where += f", id {clean(example['id'], 60)}"
    message, asset = clean(example.get("message") or "", 300), clean(example.get("asset") or "", 120)
    if asset and asset not in message:
        where += f", {asset}"
    if message.startswith(f"line {example.get('line')}"):
        return message
    return f"{where}: {message}" if message else where
