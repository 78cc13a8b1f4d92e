"""The datacenters of a job, one row each: live, as plain lines, and in the summary. Pure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyperscale.stats.view import DatacenterLoad
from hyperscale.ui.line import Column, StyledLine, table
from hyperscale.ui.text import format_count, format_ms, format_rate
from hyperscale.ui.theme import Theme

if TYPE_CHECKING:
    from hyperscale.reporting.results import DatacenterResult, RunResult


def _tone(state: str, *, has_note: bool) -> str:
    if state in ("running", "completed"):
        return "ok"
    return "warn" if state == "silent" else "failed" if has_note else "dim"


_LIVE: tuple[Column[DatacenterLoad], ...] = (
    Column("datacenter", lambda d: d.datacenter, lambda _: "title", right=False, width_max=24),
    Column(
        "state",
        lambda d: d.state,
        lambda d: _tone(d.state, has_note=bool(d.note)),
        right=False,
        width_min=9,
    ),
    Column("vus", lambda d: format_count(d.vus), rank=4, width_min=6),
    Column("requests", lambda d: format_count(d.sent), width_min=9),
    Column("/s now", lambda d: format_rate(d.requests_now), rank=1, width_min=8),
    Column(
        "failed", lambda d: format_count(d.failed), lambda d: "failed" * bool(d.failed), width_min=7
    ),
    Column("p50", lambda d: format_ms(d.p50_ms), rank=3, width_min=6),
    Column("p99", lambda d: format_ms(d.p99_ms), rank=2, width_min=6),
    Column("", lambda d: d.note, lambda _: "dim", rank=5, right=False, width_max=60),
)


def live_datacenters(
    loads: Sequence[DatacenterLoad], width: int, rows: int, theme: Theme
) -> list[StyledLine]:
    """Return a row per datacenter; those with something to say first, if not all fit."""
    if not loads:
        return []
    if len(loads) >= rows:
        loads = sorted(loads, key=lambda each: not each.note)
    shown = loads[: max(1, rows - 2)]
    lines = table(theme, _LIVE, shown, width)
    if hidden := len(loads) - len(shown):
        more = f"{theme.glyphs.ellipsis} {hidden} more datacenters"
        lines.append(StyledLine(theme, more, "dim"))
    return lines


def load_line(load: DatacenterLoad) -> str:
    """Return a datacenter as one line of a log."""
    facts = [
        load.state,
        f"{format_rate(load.requests_now)}/s now",
        f"{format_count(load.sent)} requests",
        f"{format_count(load.failed)} failed",
    ]
    if load.p99_ms is not None:
        facts += [f"p50 {format_ms(load.p50_ms)}", f"p99 {format_ms(load.p99_ms)}"]
    return "  ".join([*facts, f"{format_count(load.vus)} vus", load.note]).rstrip()


def _p99_ms(part: "DatacenterResult") -> float | None:
    """Return the p99 of a datacenter with one workflow; percentiles of several have no sum."""
    ran = [workflow for workflow in part.workflows if workflow.total]
    return ran[0].latency_ms.p99 if len(ran) == 1 else None


def _p50_ms(part: "DatacenterResult") -> float | None:
    ran = [workflow for workflow in part.workflows if workflow.total]
    return ran[0].latency_ms.p50 if len(ran) == 1 else None


def _remark(part: "DatacenterResult") -> str:
    """Return what a reader should know about a datacenter beside its numbers."""
    facts = [part.reason] if part.reason else []
    if part.replaces:
        facts.append(f"instead of {part.replaces}")
    if part.replaced_by:
        facts.append(f"{part.replaced_by} got its part")
    if part.joined_late:
        when = "" if part.began_seconds is None else f" after {part.began_seconds:.1f} s"
        facts.append(f"joined late{when}")
    if part.late:
        facts.append("its result came late: it is in no total")
    if missing := sum(gap.requests_max for gap in part.gaps):
        facts.append(f"up to {format_count(missing)} more requests")
    return "; ".join(facts)


_ENDED: "tuple[Column[DatacenterResult], ...]" = (
    Column("datacenter", lambda d: d.datacenter, lambda _: "title", right=False, width_max=24),
    Column(
        "ended as",
        lambda d: d.status,
        lambda d: _tone(d.status, has_note=d.status != "completed"),
        right=False,
    ),
    Column("vus", lambda d: format_count(sum(w.vus for w in d.workflows)), rank=5),
    Column("requests", lambda d: format_count(sum(w.sent for w in d.workflows))),
    Column("req/s", lambda d: format_rate(sum(w.requests_per_second for w in d.workflows)), rank=3),
    Column(
        "failed",
        lambda d: format_count(sum(w.failed for w in d.workflows)),
        lambda d: "failed" * any(w.failed for w in d.workflows),
    ),
    Column("p50", lambda d: format_ms(_p50_ms(d)), rank=2),
    Column("p99", lambda d: format_ms(_p99_ms(d)), rank=1),
    Column("", _remark, lambda _: "dim", rank=6, right=False, width_max=60),
)


def ended_datacenters(result: "RunResult", width: int, theme: Theme) -> list[StyledLine]:
    """Return a row per datacenter, and how far apart they started."""
    if not result.datacenter_results:
        return []
    lines = table(theme, _ENDED, result.datacenter_results, width)
    if result.start_skew_ms is not None:
        skew = f"datacenters started within {format_ms(result.start_skew_ms)}"
        lines.append(StyledLine(theme, skew, "dim"))
    return lines
