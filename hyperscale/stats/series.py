"""The time series of one step: a bounded number of cells, whatever the length of the run.

Seconds stay open while parts may still report them, then their parts are folded into one
cell. Cells roll up into wider tiers as they complete, so a long run is shown in 10 s or
1 min cells without a pause to thin it. Knows no clock: the caller says what may be closed.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from hyperscale.stats.histograms import merge_encoded, quantile_ms
from hyperscale.stats.report import PartReport, SeriesPoint

TIERS_S = (1, 10, 60, 600, 7200)
CELLS_MAX = 600  # per tier; the widest tier spans more than the longest allowed run


@dataclass(frozen=True, slots=True)
class Cell:
    """What finished within one interval; its histogram is the merge of `latencies`."""

    at_s: int
    total: int
    failed: int
    latencies: tuple[bytes, ...]

    def folded(self) -> "Cell":
        """The same with one histogram, as it is kept. Encoding is the dear part."""
        if len(self.latencies) < 2:
            return self
        merged = merge_encoded(self.latencies).encode()
        return Cell(self.at_s, self.total, self.failed, (merged,))

    def point(self) -> SeriesPoint:
        """The same as a part reports it."""
        latencies = self.folded().latencies
        return SeriesPoint(
            second=self.at_s,
            total=self.total,
            failed=self.failed,
            latency=latencies[0] if latencies else b"",
        )


@dataclass(frozen=True, slots=True)
class SeriesValue:
    """One interval as people see it; percentiles are None if nothing was timed in it."""

    at_s: int
    total: int
    failed: int
    p50_ms: float | None
    p99_ms: float | None


def tier_for(elapsed_s: float) -> int:
    """The finest tier that holds a run of this length whole."""
    for tier, width_s in enumerate(TIERS_S):
        if elapsed_s <= width_s * CELLS_MAX:
            return tier
    return len(TIERS_S) - 1


class StepSeries:
    """The cells of one step, merged over its parts."""

    def __init__(self) -> None:
        self._open: dict[int, dict[Hashable, SeriesPoint]] = {}
        self._tiers: tuple[list[Cell], ...] = tuple([] for _ in TIERS_S)
        # Cells of the tier below that have not filled a cell of this tier yet.
        self._pending: tuple[list[Cell], ...] = tuple([] for _ in TIERS_S)
        self._open_from_s = 0
        self._folded_s: dict[Hashable, int] = {}  # the last second folded of each part

    def offer(self, part: Hashable, points: Sequence[SeriesPoint]) -> None:
        """Takes points of one part.

        A second only grows, so of two reports of it the larger is the later one, in
        whatever order they come. A second that was closed without this part is taken late;
        one that was closed with it is not counted again.
        """
        if not points:
            return
        folded_s = self._folded_s.get(part, -1)
        for point in points:
            if point.second < self._open_from_s and point.second <= folded_s:
                continue
            parts = self._open.setdefault(point.second, {})
            known = parts.get(part)
            if known is None or point.total > known.total:
                parts[part] = point

    def close(self, before_s: int) -> None:
        """Folds every second below `before_s`: what its parts reported is final."""
        if before_s <= self._open_from_s:
            return
        for second in sorted(second for second in self._open if second < before_s):
            parts = self._open.pop(second)
            for part in parts:
                self._folded_s[part] = max(second, self._folded_s.get(part, -1))
            self._push(0, _gather(second, parts.values()).folded())
        self._open_from_s = before_s

    def cells(self, tier: int) -> list[Cell]:
        """All cells at a tier's width; the youngest may still grow, and come in pieces."""
        loose = [cell for pending in self._pending[1 : tier + 1] for cell in pending]
        loose += (_gather(second, parts.values()) for second, parts in self._open.items())
        return [*self._tiers[tier], *_roll(loose, TIERS_S[tier])]

    def points(self, tier: int) -> list[SeriesPoint]:
        """All of it as one part would report it: a point at the start of each interval."""
        return [cell.point() for cell in _roll(self.cells(tier), TIERS_S[tier])]

    def _push(self, tier: int, cell: Cell) -> None:
        """Adds a cell to a tier, and in time to the tiers above it."""
        self._add(self._tiers[tier], cell)
        above = tier + 1
        if above == len(TIERS_S):
            return
        width_s = TIERS_S[above]
        pending = self._pending[above]
        start_s = _start(cell.at_s, width_s)
        pending_s = _start(pending[0].at_s, width_s) if pending else start_s
        if start_s < pending_s:  # late: its wider cell was completed without it
            self._push(above, Cell(start_s, cell.total, cell.failed, cell.latencies))
            return
        if start_s > pending_s:
            (rolled,) = _roll(pending, width_s)
            pending.clear()
            self._push(above, rolled.folded())
        pending.append(cell)

    @staticmethod
    def _add(cells: list[Cell], cell: Cell) -> None:
        place = len(cells)
        if cells and cell.at_s <= cells[-1].at_s:
            place = bisect_left(cells, cell.at_s, key=lambda kept: kept.at_s)
            if cells[place].at_s == cell.at_s:
                (merged,) = _roll([cells[place], cell], 1)
                cells[place] = merged.folded()
                return
        cells.insert(place, cell)
        del cells[: max(0, len(cells) - CELLS_MAX)]


def values(
    cells: Iterable[Cell], width_s: int, until_s: float, known: Iterable[SeriesValue] = ()
) -> list[SeriesValue]:
    """Cells as values, with the empty intervals between 0 and `until_s` filled in.

    Cells of the same interval, from several steps, are merged. A value among `known` with
    the same total is taken as it is: an interval only grows, so it did not change.
    """
    by_start: dict[int, list[Cell]] = {}
    for cell in cells:
        by_start.setdefault(cell.at_s, []).append(cell)
    if not by_start and until_s <= 0:
        return []
    known_totals = {(value.at_s, value.total): value for value in known}
    last_s = max([*by_start, int(max(0.0, until_s - 1e-9)) // width_s * width_s])
    found = []
    for at_s in range(0, last_s + 1, width_s):
        same = by_start.get(at_s, [])
        total = sum(cell.total for cell in same)
        found.append(known_totals.get((at_s, total)) or value_of(at_s, same))
    return found


def value_of(at_s: int, cells: Iterable[Cell]) -> SeriesValue:
    cells = tuple(cells)
    if not cells:
        return SeriesValue(at_s, 0, 0, None, None)
    histogram = merge_encoded(payload for cell in cells for payload in cell.latencies)
    return SeriesValue(
        at_s=at_s,
        total=sum(cell.total for cell in cells),
        failed=sum(cell.failed for cell in cells),
        p50_ms=quantile_ms(histogram, 0.50),
        p99_ms=quantile_ms(histogram, 0.99),
    )


def counted(report: PartReport, *, timed_max: int) -> PartReport:
    """The report with histograms of at most so many seconds of each step, the newest. The counts
    of the others stay: without them it would look as if there had been no load."""
    steps = []
    for step in report.steps:
        split = max(0, len(step.series) - timed_max)
        old = [msgspec.structs.replace(point, latency=b"") for point in step.series[:split]]
        steps.append(msgspec.structs.replace(step, series=[*old, *step.series[split:]]))
    return msgspec.structs.replace(report, steps=steps)


def thinned(report: PartReport, *, points_max: int) -> PartReport:
    """The report with at most so many points of all steps together, if need be of wider
    intervals; never fewer than one for each step and interval of the widest."""
    for width_s in TIERS_S:
        starts = (
            len({_start(point.second, width_s) for point in step.series}) for step in report.steps
        )
        if sum(starts) <= points_max:
            break
    if width_s == TIERS_S[0]:
        return report
    steps = [
        msgspec.structs.replace(step, series=_widened(step.series, width_s))
        for step in report.steps
    ]
    return msgspec.structs.replace(report, steps=steps, series_s=max(width_s, report.series_s))


def _widened(points: Iterable[SeriesPoint], width_s: int) -> list[SeriesPoint]:
    cells = (_gather(point.second, (point,)) for point in points)
    return [cell.point() for cell in _roll(cells, width_s)]


def _gather(second: int, points: Iterable[SeriesPoint]) -> Cell:
    points = tuple(points)
    return Cell(
        at_s=second,
        total=sum(point.total for point in points),
        failed=sum(point.failed for point in points),
        latencies=tuple(point.latency for point in points if point.latency),
    )


def _roll(cells: Iterable[Cell], width_s: int) -> list[Cell]:
    groups: dict[int, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_start(cell.at_s, width_s), []).append(cell)
    return [
        Cell(
            at_s=start_s,
            total=sum(cell.total for cell in group),
            failed=sum(cell.failed for cell in group),
            latencies=tuple(payload for cell in group for payload in cell.latencies),
        )
        for start_s, group in sorted(groups.items())
    ]


def _start(at_s: int, width_s: int) -> int:
    """Where the interval of this width begins that holds `at_s`."""
    return at_s // width_s * width_s
