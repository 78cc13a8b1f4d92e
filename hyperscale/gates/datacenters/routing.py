"""Which datacenters a job goes to. A pure function: the same inputs give the same choice.

Health decides first: no datacenter of a worse class is taken while one of a better class is left.
Within a class: those that just failed come last, then free cores less what was assigned and is not
visible yet, then queue and circuit breaker, then the round trip in bands of 50 ms, measured ones
before estimates. Among those that are equal, two are drawn by the job's key and the one with more
free cores wins, so that many jobs spread. Datacenters that the user named are never replaced
silently: where load comes from is part of a test.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from hyperscale.gates.datacenters.health import DatacenterHealth
from hyperscale.gates.datacenters.monitor import DatacenterView, Reachability
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.membership.coordinates import Coordinate, estimate_rtt

RTT_BAND_MS = 50.0
_CAPACITY_STEP = math.log(1.5)
"""Free cores within this factor of each other count as equal."""
_QUEUE_STEP = 5


class RttSource(Enum):
    MEASURED = "measured"
    ESTIMATED = "estimated"  # from coordinates
    UNKNOWN = "unknown"


class DatacenterScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every component of a choice, for one datacenter. Recorded with the job."""

    datacenter: str
    health: DatacenterHealth
    is_cooling: bool = False  # it failed a moment ago
    free_cores: int = 0  # less what is under way
    under_way: int = 0
    queue_depth: int = 0
    is_breaker_open: bool = False
    is_preferred: bool = False
    rtt_ms: float | None = None
    rtt_source: RttSource = RttSource.UNKNOWN
    rank: int = 0  # 0: first choice
    excluded: str = ""  # why it was not considered at all

    @property
    def order(self) -> tuple[int, ...]:
        """Lower is better; equal ones are a matter of luck."""
        free = math.log1p(max(0, self.free_cores)) / _CAPACITY_STEP
        band = -1 if self.rtt_ms is None else int(self.rtt_ms // RTT_BAND_MS)
        return (
            int(self.health),
            int(self.is_cooling),
            -round(free),
            self.queue_depth // _QUEUE_STEP,
            int(self.is_breaker_open),
            -int(self.is_preferred),
            band,
        )


class DatacenterChoice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a job goes, in which order others would follow, and why."""

    primary: tuple[str, ...]
    fallback: tuple[str, ...] = ()
    worst_health: DatacenterHealth = DatacenterHealth.HEALTHY
    scores: tuple[DatacenterScore, ...] = ()


class RoutingProblem(Enum):
    NONE_SEEN = "none_seen"  # no datacenter has answered yet: try again
    UNKNOWN = "unknown"  # a name that no datacenter has
    UNUSABLE = "unusable"  # the wanted ones are unhealthy, unreachable or drained
    TOO_FEW = "too_few"  # more are wanted than there are


class RoutingRefusal(Struct, frozen=True, kw_only=True):
    """Why a job cannot be routed, as a sentence for the submitter."""

    kind: RoutingProblem
    message: str
    hint: str = ""

    @property
    def is_retryable(self) -> bool:
        return self.kind is RoutingProblem.NONE_SEEN


class RoutingRequest(Struct, frozen=True, kw_only=True):
    """What is wanted, and what a gate knows beside the views of datacenters."""

    key: str
    count: int = 1
    named: tuple[str, ...] = ()
    may_replace: bool = False  # named ones by others
    preferred: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()  # refused the job already
    under_way: Mapping[str, int] = {}  # cores assigned and not visible in figures yet
    cooling: frozenset[str] = frozenset()
    open_breakers: frozenset[str] = frozenset()
    local: Coordinate = Coordinate()


def choose_datacenters(
    views: Mapping[str, DatacenterView], request: RoutingRequest
) -> DatacenterChoice | RoutingRefusal:
    """Choose `count` datacenters, or those that are named."""
    seen = {name: view for name, view in views.items() if view.figures is not None}
    unknown = [name for name in request.named if name not in views]
    if unknown:
        known = ", ".join(sorted(views)) or "none yet"
        return RoutingRefusal(
            kind=RoutingProblem.UNKNOWN,
            message=f"no datacenter is called {unknown[0]!r}",
            hint=f"known datacenters: {known}",
        )
    if not seen:
        return RoutingRefusal(
            kind=RoutingProblem.NONE_SEEN,
            message="no datacenter has answered this gate yet",
            hint="try again in a few seconds; 'hyperscale datacenters' lists them",
        )
    scores = {name: _score(view, request) for name, view in sorted(views.items())}
    usable = [score for score in scores.values() if not score.excluded]
    ranked = _ranked(usable, request.key)
    if request.named:
        return _named(request, scores, ranked)
    if not ranked:
        return RoutingRefusal(
            kind=RoutingProblem.UNUSABLE,
            message=f"no datacenter can run the job: {_reasons(scores.values())}",
            hint="'hyperscale datacenters' shows the health of each",
        )
    if request.count > len(ranked):
        return RoutingRefusal(
            kind=RoutingProblem.TOO_FEW,
            message=f"{request.count} datacenters are wanted, but only {len(ranked)} can run the "
            f"job: {', '.join(score.datacenter for score in ranked)}",
            hint="ask for fewer with --datacenters",
        )
    return _decision(ranked[: request.count], ranked[request.count :], scores)


def _named(
    request: RoutingRequest, scores: Mapping[str, DatacenterScore], ranked: list[DatacenterScore]
) -> DatacenterChoice | RoutingRefusal:
    wanted = [scores[name] for name in request.named]
    primary = [score for score in wanted if not score.excluded]
    others = [score for score in ranked if score.datacenter not in request.named]
    missing = len(wanted) - len(primary)
    if missing and not (request.may_replace and len(others) >= missing):
        lost = [score for score in wanted if score.excluded]
        return RoutingRefusal(
            kind=RoutingProblem.UNUSABLE,
            message=f"the job cannot run where it was asked to: {_reasons(lost)}",
            hint="name other datacenters, or allow others with --fallback",
        )
    fallback = others[missing:] if request.may_replace else []
    return _decision(primary + others[:missing], fallback, scores)


def _decision(
    primary: Sequence[DatacenterScore],
    fallback: Sequence[DatacenterScore],
    scores: Mapping[str, DatacenterScore],
) -> DatacenterChoice:
    ranks = {score.datacenter: rank for rank, score in enumerate((*primary, *fallback))}
    recorded = sorted(scores.values(), key=lambda each: ranks.get(each.datacenter, len(scores)))
    return DatacenterChoice(
        primary=tuple(score.datacenter for score in primary),
        fallback=tuple(score.datacenter for score in fallback),
        worst_health=max(score.health for score in primary),
        scores=tuple(
            replace(score, rank=ranks.get(score.datacenter, len(ranks))) for score in recorded
        ),
    )


def _score(view: DatacenterView, request: RoutingRequest) -> DatacenterScore:
    figures, name = view.figures, view.datacenter
    under_way = request.under_way.get(name, 0)
    rtt_ms, source = _rtt(view, request.local)
    return DatacenterScore(
        datacenter=name,
        health=view.health,
        is_cooling=name in request.cooling,
        free_cores=(figures.available_cores if figures else 0) - under_way,
        under_way=under_way,
        queue_depth=figures.queue_depth if figures else 0,
        is_breaker_open=name in request.open_breakers,
        is_preferred=name in request.preferred,
        rtt_ms=rtt_ms,
        rtt_source=source,
        excluded=_exclusion(view, request),
    )


def _exclusion(view: DatacenterView, request: RoutingRequest) -> str:
    if view.datacenter in request.excluded:
        return "refused the job"
    if view.state is not DatacenterState.ACTIVE:
        return f"is {view.state}"
    if view.figures is None:
        return "has not answered yet"
    if view.reachability is Reachability.UNREACHABLE:
        return "cannot be reached"
    return "is unhealthy" if view.health is DatacenterHealth.UNHEALTHY else ""


def _rtt(view: DatacenterView, local: Coordinate) -> tuple[float | None, RttSource]:
    if view.rtt_s is not None:
        return view.rtt_s * 1000, RttSource.MEASURED
    if view.coordinate is not None and view.coordinate.is_usable and local.is_usable:
        estimate = estimate_rtt(local, view.coordinate, age_s=view.age_s)
        return estimate.ucb_ms, RttSource.ESTIMATED
    return None, RttSource.UNKNOWN


def _ranked(scores: Iterable[DatacenterScore], key: str) -> list[DatacenterScore]:
    """Sort datacenters; those that are equal in the order the key draws, two at a time."""
    by_order: dict[tuple[int, ...], list[DatacenterScore]] = {}
    for score in scores:
        by_order.setdefault(score.order, []).append(score)
    ranked: list[DatacenterScore] = []
    rng = Random(key)  # noqa: S311 -- the same key must draw the same order
    for order in sorted(by_order):
        tied = by_order[order]
        rng.shuffle(tied)
        while tied:
            best = max(tied[:2], key=lambda score: score.free_cores)
            tied.remove(best)
            ranked.append(best)
    return ranked


def _reasons(scores: Iterable[DatacenterScore]) -> str:
    return ", ".join(f"{score.datacenter} {score.excluded}" for score in scores if score.excluded)
