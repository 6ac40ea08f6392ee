"""What a metric derives from, takes and returns."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MetricSpec:
    """A metric as the configuration names it."""

    metric_id: str
    implementation: str = ""
    params: dict = field(default_factory=dict)


@dataclass(frozen=True)
class MetricContext:
    """One sample, and what model and judge said of it."""

    sample_id: str
    sample: Any
    model_output: Any = field(default_factory=dict)
    judge_output: Any = field(default_factory=dict)


@dataclass(frozen=True)
class MetricResult:
    """Values that are averaged, and what is written beside them."""

    sample_id: str
    values: dict
    metadata: dict = field(default_factory=dict)
    explanation: str | None = None


class BaseMetric:
    """Made twice a run from its configuration alone."""

    def __init__(self, spec):
        self.spec, self.args = spec, dict(spec.params)
        self.setup()

    def setup(self):
        """Called once an instance."""
