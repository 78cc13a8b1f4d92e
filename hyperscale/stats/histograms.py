"""Values of histograms: percentiles and curves.

Percentiles are always computed from merged histograms, never from other percentiles. A decoded
histogram takes 200 KB, an encoded one about 1 KB, so histograms are stored encoded.
"""

from collections.abc import Iterable

from hyperscale._native import Histogram
from hyperscale.plan.thresholds import QUANTILES

NS_PER_S = 1e9
NS_PER_MS = 1e6
# A custom metric's samples are recorded as value * 1e6 (report.MetricReport).
METRIC_SCALE = 1e6


def quantile_ms(histogram: Histogram, q: float) -> float | None:
    """Return the latency at quantile `q`; None if nothing was recorded."""
    return histogram.quantile_ns(q) / NS_PER_MS if histogram.count else None


def latency_s(histogram: Histogram, key: str) -> float | None:
    """Return the latency that a threshold's key names: a percentile, the mean or the maximum."""
    if not histogram.count:
        return None
    if key in QUANTILES:
        return histogram.quantile_ns(QUANTILES[key]) / NS_PER_S
    return (histogram.mean_ns if key == "mean" else histogram.max_ns) / NS_PER_S


def merge_encoded(payloads: Iterable[bytes]) -> Histogram:
    """Return one histogram of all encoded ones. Payloads that cannot be decoded are left out."""
    payloads = list(payloads)
    try:
        return Histogram.merged(payloads)
    except ValueError:
        return Histogram.merged([payload for payload in payloads if _is_readable(payload)])


def _is_readable(payload: bytes) -> bool:
    try:
        Histogram.decode(payload)
    except ValueError:
        return False
    return True


def percentile_curve(histogram: Histogram, *, steps_per_half: int = 5) -> list[tuple[float, float]]:
    """Return (percentile, ms) pairs along the distribution, denser towards the tail.

    Each halving of the distance to 100 % gets the same number of points, as in the percentile
    plots of HdrHistogram. The curve ends where less than one sample lies beyond a point.
    """
    if not histogram.count:
        return []
    curve: list[tuple[float, float]] = []
    distance = 1.0
    while distance * histogram.count >= 1.0 and len(curve) < 400:
        for step in range(steps_per_half):
            quantile = 1.0 - distance * (1.0 - step / (2 * steps_per_half))
            curve.append((100.0 * quantile, histogram.quantile_ns(quantile) / NS_PER_MS))
        distance /= 2.0
    curve.append((100.0, histogram.max_ns / NS_PER_MS))
    return curve
