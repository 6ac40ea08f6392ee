"""Metrics of GAGE that read what the judge said, and ask the engine where there was no judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gage_eval.metrics.base import BaseMetric, MetricContext, MetricResult

from genmeter.integrations.gage.settings import JudgeSettings, read_settings
from genmeter.integrations.gage.verdicts import judge, values_of


class Metric(BaseMetric):  # type: ignore[misc]  # the framework has no types
    """Any metric of genmeter, by its name in ``params.metric`` or else by the ``metric_id``.

    The value is named ``params.value`` or as the metric. A sample without a score has no value, and its metadata say
    why. Without a judge the engine is asked, one sample at a time, since the framework calls a metric under a lock;
    the judge step shares batches and is the way to speed.

    Raises:
        ValueError: A parameter that is none.
    """

    metric_name = ""

    def setup(self) -> None:
        """Read the parameters; networks are loaded when the first sample needs them."""
        params = dict(self.args)
        params.pop("aggregation", None)
        self.metric = str(params.pop("metric", None) or self.metric_name or self.spec.metric_id)
        self.value = str(params.pop("value", None) or self.metric)
        self.settings: JudgeSettings = read_settings({"metrics": [self.metric], **params})

    def compute(self, context: MetricContext) -> MetricResult:
        """The sample's value, or none and the reason."""
        found, source = self._judged(context.judge_output), "judge"
        if found is None:
            found, source = self._asked(context), "engine"
        if found.get("failure") and self.metric not in (found.get("metrics") or {}):
            failure = found["failure"]
            about = {"status": "failed", "reason": failure.get("code"), "message": failure.get("message")}
            return MetricResult(context.sample_id, {}, {**about, "source": source})
        values, about = values_of(self.value, (found.get("metrics") or {}).get(self.metric))
        return MetricResult(context.sample_id, values, {**about, "source": source})

    def _judged(self, output: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What genmeter's judge said. Somebody else's judge, or an eval_result of the dataset, is none."""
        said = output.get("judge") if isinstance(output, Mapping) else None
        ours = isinstance(said, Mapping) and str(said.get("model", "")).startswith("genmeter ")
        if not ours or not isinstance(output.get("metrics"), Mapping):
            return None
        return output if self.metric in output["metrics"] or output.get("failure") or self._skipped(output) else None

    def _skipped(self, output: Mapping[str, Any]) -> bool:
        """Whether the judge was there and left this metric out, as the sample's eval_config wanted it."""
        return self.settings.config.metrics_from == "sample" and "status" in output

    def _asked(self, context: MetricContext) -> Mapping[str, Any]:
        return judge({"sample": context.sample, "model_output": context.model_output}, self.settings)


def named(name: str) -> type[Metric]:
    """The class of one metric, for the manifests."""
    title = "".join(part.title() for part in name.split("_"))
    return type(title, (Metric,), {"metric_name": name, "__module__": __name__, "__doc__": f"The metric {name}."})
