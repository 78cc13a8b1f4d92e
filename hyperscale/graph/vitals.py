"""Metrics that a result brings along: the web vitals of pages, without a `@metric()` for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hyperscale.graph.reading import Reading
from hyperscale.plan import MetricKind, StepKind


@dataclass(frozen=True, slots=True)
class VitalMetric:
    """A metric of a step's result: `home_lcp` is the attribute `lcp_s` of what `home` returns."""

    name: str
    kind: MetricKind
    step: str
    attribute: str

    def reader(self) -> Callable[..., Any]:
        """Return a function as of a `@metric()`: it gets the workflow and the step's result."""

        def read_vital(_workflow: object, **results: Any) -> float | None:
            value: float | None = getattr(results[self.step], self.attribute, None)
            return value

        return read_vital


def vital_metrics(reading: Reading) -> tuple[VitalMetric, ...]:
    """Return the metrics that the results of a class's steps have; a hook's name goes first."""
    taken = {hook.name for hook in reading.hooks}
    found = (
        VitalMetric(
            name=f"{hook.name}_{attribute.removesuffix('_s')}",
            kind=MetricKind.TIMER if attribute.endswith("_s") else MetricKind.DISTRIBUTION,
            step=hook.name,
            attribute=attribute,
        )
        for hook in reading.hooks
        if hook.kind is StepKind.TEST
        for attribute in getattr(hook.result, "vitals", ())
    )
    return tuple(vital for vital in found if vital.name not in taken)
