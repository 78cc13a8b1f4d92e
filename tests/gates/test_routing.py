"""The choice of datacenters for a job."""

from random import Random
from statistics import fmean, pstdev

import pytest
from msgspec.structs import replace

from hyperscale.gates.datacenters.health import DatacenterFigures, DatacenterHealth
from hyperscale.gates.datacenters.monitor import DatacenterView, Reachability
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.datacenters.routing import (
    DatacenterChoice,
    RoutingProblem,
    RoutingRefusal,
    RoutingRequest,
    RttSource,
    choose_datacenters,
)
from hyperscale.membership.coordinates import Coordinate

H = DatacenterHealth


def view(
    name: str,
    *,
    health: DatacenterHealth = H.HEALTHY,
    cores: int = 100,
    queue: int = 0,
    rtt_ms: float | None = 20.0,
    reachability: Reachability = Reachability.REACHABLE,
    state: DatacenterState = DatacenterState.ACTIVE,
    is_seen: bool = True,
    coordinate: Coordinate | None = None,
) -> DatacenterView:
    seen = DatacenterFigures(
        managers=3,
        healthy_managers=3,
        workers=4,
        healthy_workers=4,
        total_cores=100,
        available_cores=cores,
        queue_depth=queue,
    )
    return DatacenterView(
        datacenter=name,
        reachability=reachability,
        health=health,
        figures=seen if is_seen else None,
        rtt_s=None if rtt_ms is None else rtt_ms / 1000,
        coordinate=coordinate,
        state=state,
    )


def chosen(*views: DatacenterView, request: RoutingRequest | None = None) -> DatacenterChoice:
    decision = choose_datacenters(
        {each.datacenter: each for each in views}, request or RoutingRequest(key="k")
    )
    assert isinstance(decision, DatacenterChoice)
    return decision


def refused(*views: DatacenterView, request: RoutingRequest | None = None) -> RoutingRefusal:
    refusal = choose_datacenters(
        {each.datacenter: each for each in views}, request or RoutingRequest(key="k")
    )
    assert isinstance(refusal, RoutingRefusal)
    return refusal


def test_a_near_degraded_datacenter_never_beats_a_far_healthy_one() -> None:
    decision = chosen(view("near", health=H.DEGRADED, rtt_ms=5), view("far", rtt_ms=300))
    assert decision.primary == ("far",)
    assert decision.fallback == ("near",)


def test_healthy_comes_before_busy_before_degraded_and_the_rest_is_excluded() -> None:
    decision = chosen(
        view("d", health=H.DEGRADED),
        view("b", health=H.BUSY, cores=0),
        view("h", cores=1, rtt_ms=400),
        view("u", health=H.UNHEALTHY),
        view("away", reachability=Reachability.UNREACHABLE),
        view("drained", state=DatacenterState.DRAINED),
    )
    assert decision.primary + decision.fallback == ("h", "b", "d")


def test_more_datacenters_than_the_best_class_has_are_filled_from_the_next() -> None:
    request = RoutingRequest(key="k", count=2)
    decision = chosen(view("b", health=H.BUSY, cores=0), view("h"), request=request)
    assert decision.primary == ("h", "b")
    assert decision.worst_health is H.BUSY


def test_free_cores_less_those_under_way_decide_before_the_round_trip() -> None:
    near, far = view("near", cores=100, rtt_ms=5), view("far", cores=100, rtt_ms=300)
    assert chosen(near, far).primary == ("near",)
    request = RoutingRequest(key="k", under_way={"near": 90})
    assert chosen(near, far, request=request).primary == ("far",)


def test_a_shorter_queue_decides_among_equal_capacity() -> None:
    first = view("a", health=H.BUSY, cores=0, queue=20, rtt_ms=5)
    second = view("b", health=H.BUSY, cores=0, queue=2, rtt_ms=300)
    assert chosen(first, second).primary == ("b",)


def test_an_open_breaker_and_a_recent_failure_count_against_a_datacenter() -> None:
    views = view("a", rtt_ms=5), view("b", rtt_ms=300)
    request = RoutingRequest(key="k", open_breakers=frozenset({"a"}))
    assert chosen(*views, request=request).primary == ("b",)
    request = RoutingRequest(key="k", cooling=frozenset({"a"}))
    assert chosen(*views, request=request).primary == ("b",)


def test_without_round_trips_capacity_queue_and_breakers_decide_and_nothing_is_excluded() -> None:
    decision = chosen(
        view("small", cores=10, rtt_ms=None),
        view("large", cores=100, rtt_ms=None),
        view("open", cores=10, queue=50, rtt_ms=None),
    )
    assert decision.primary + decision.fallback == ("large", "small", "open")
    assert {score.rtt_source for score in decision.scores} == {RttSource.UNKNOWN}


def test_a_measured_round_trip_is_preferred_to_an_estimate() -> None:
    where = Coordinate((0.2, 0.0, 0.0, 0.0), samples=20, error_ms=5.0)
    here = Coordinate(samples=20, error_ms=5.0)
    request = RoutingRequest(key="k", local=here)
    measured = chosen(view("a", rtt_ms=10, coordinate=where), request=request).scores[0]
    assert (measured.rtt_source, measured.rtt_ms) == (RttSource.MEASURED, 10.0)
    estimated = chosen(view("a", rtt_ms=None, coordinate=where), request=request).scores[0]
    assert estimated.rtt_source is RttSource.ESTIMATED
    assert estimated.rtt_ms == pytest.approx(220, abs=1)
    unsure = RoutingRequest(key="k", local=replace(here, samples=9))
    assert chosen(view("a", rtt_ms=None, coordinate=where), request=unsure).scores[0].rtt_ms is None


def test_the_same_inputs_give_the_same_chain_and_another_key_another_order() -> None:
    views = [view(name) for name in "abcdef"]
    decisions = {
        key: chosen(*views, request=RoutingRequest(key=key)) for key in map(str, range(20))
    }
    chains = {key: each.primary + each.fallback for key, each in decisions.items()}
    again = chosen(*reversed(views), request=RoutingRequest(key="3"))
    assert again.primary + again.fallback == chains["3"]
    assert len({chain[0] for chain in chains.values()}) > 3


def test_a_preference_acts_only_inside_its_class() -> None:
    request = RoutingRequest(key="k", preferred=("b", "d"))
    decision = chosen(
        view("a", rtt_ms=5), view("b", rtt_ms=300), view("d", health=H.DEGRADED), request=request
    )
    assert decision.primary + decision.fallback == ("b", "a", "d")


def test_noise_of_ten_percent_switches_fewer_than_one_decision_in_a_hundred() -> None:
    rng = Random(1)

    def noisy(value: float) -> float:
        return value * (0.9 + 0.2 * rng.random())

    switches, before = 0, ""
    for _ in range(1000):
        primary = chosen(
            view("a", cores=int(noisy(400)), rtt_ms=noisy(20)),
            view("b", cores=int(noisy(200)), rtt_ms=noisy(140)),
            view("c", cores=int(noisy(200)), rtt_ms=noisy(300)),
        ).primary[0]
        switches += primary != before and bool(before)
        before = primary
    assert switches < 10


def test_100_jobs_over_three_equal_datacenters_spread_evenly() -> None:
    under_way = dict.fromkeys("abc", 0)
    for number in range(100):
        request = RoutingRequest(key=f"job-{number}", under_way=dict(under_way))
        name = chosen(
            view("a", cores=1000, rtt_ms=5),
            view("b", cores=1000, rtt_ms=30),
            view("c", cores=1000, rtt_ms=45),
            request=request,
        ).primary[0]
        under_way[name] += 5
    loads = list(under_way.values())
    assert pstdev(loads) / fmean(loads) < 0.3


def test_named_datacenters_are_strict_unless_others_are_allowed() -> None:
    views = view("a", health=H.UNHEALTHY), view("b")
    refusal = refused(*views, request=RoutingRequest(key="k", named=("a",)))
    assert refusal.kind is RoutingProblem.UNUSABLE
    assert refusal.message == "the job cannot run where it was asked to: a is unhealthy"
    decision = chosen(*views, request=RoutingRequest(key="k", named=("a",), may_replace=True))
    assert decision.primary == ("b",)


def test_a_named_datacenter_has_no_fallback_unless_others_are_allowed() -> None:
    views = view("a"), view("b")
    assert chosen(*views, request=RoutingRequest(key="k", named=("a",))).fallback == ()
    request = RoutingRequest(key="k", named=("a",), may_replace=True)
    assert chosen(*views, request=request).fallback == ("b",)


def test_refusals_say_what_is_wrong_and_whether_to_try_again() -> None:
    none_yet = refused()
    assert (none_yet.kind, none_yet.is_retryable) == (RoutingProblem.NONE_SEEN, True)
    assert refused(view("a", is_seen=False)).kind is RoutingProblem.NONE_SEEN
    unknown = refused(view("a"), request=RoutingRequest(key="k", named=("b",)))
    assert (unknown.message, unknown.hint) == (
        "no datacenter is called 'b'",
        "known datacenters: a",
    )
    sick = refused(view("a", health=H.UNHEALTHY), view("b", state=DatacenterState.DRAINED))
    assert sick.message == "no datacenter can run the job: a is unhealthy, b is drained"
    assert not sick.is_retryable
    few = refused(view("a"), request=RoutingRequest(key="k", count=2))
    assert few.kind is RoutingProblem.TOO_FEW


def test_every_component_of_the_choice_is_recorded() -> None:
    request = RoutingRequest(key="k", under_way={"a": 3})
    first, second = chosen(
        view("a", cores=50, queue=2), view("b", health=H.BUSY, cores=0), request=request
    ).scores
    assert (first.datacenter, first.free_cores, first.under_way, first.queue_depth, first.rank) == (
        "a",
        47,
        3,
        2,
        0,
    )
    assert (second.datacenter, second.health, second.rank) == ("b", H.BUSY, 1)
