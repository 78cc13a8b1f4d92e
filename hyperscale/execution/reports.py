"""A part's state as the report that travels."""

from collections.abc import Sequence

from hyperscale._native import Recorder
from hyperscale.stats.report import SeriesPoint, StepCounts, StepReport

# How many of the newest seconds go with a report that carries histograms: enough for a
# receiver that missed several.
SERIES_POINTS = 15


def step_reports(
    names: Sequence[str],
    recorder: Recorder,
    *,
    histograms: bool,
    series_from: int | None = None,
    offset_s: int = 0,
) -> list[StepReport]:
    """`offset_s`: the second of the workflow that is the recorder's second 0."""
    return [
        StepReport(
            name=name,
            counts=StepCounts(
                total=counts[0],
                ok=counts[1],
                failed=counts[2],
                cut=counts[3],
                skipped=counts[4],
                sent=counts[5],
                bytes_sent=counts[6],
                bytes_received=counts[7],
                status_codes=status_codes,
                errors=errors,
            ),
            latency=latency,
            phases=phases,
            series=[
                SeriesPoint(second=second + offset_s, total=total, failed=failed, latency=spread)
                for second, total, failed, spread in series
            ],
        )
        for name, (counts, status_codes, errors, latency, phases, series) in zip(
            names, recorder.snapshot(histograms, series_from), strict=True
        )
    ]
