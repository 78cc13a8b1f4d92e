"""Finding the first members: seeds and DNS together, in any order, and only one's own cluster."""

from random import Random
from typing import Any

import pytest

from hyperscale.membership.discovery import (
    ContactMember,
    Discovery,
    DiscoveryConfig,
    DiscoveryEffect,
    DiscoveryEvent,
    MemberDown,
    MemberUp,
    NameResolved,
    NameUnresolved,
    ProbeAddress,
    ProbeAnswered,
    ProbeFailed,
    ResolveName,
    WarnOperator,
)
from hyperscale.sansio.core import Tick


class Search:
    """A discovery core and a clock."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 100.0
        config = DiscoveryConfig(cluster="acme", environment="prod", **settings)
        self.core = Discovery("self", "10.0.0.1:9000", config, rng=Random(1), now_s=self.now_s)

    def on(self, event: DiscoveryEvent) -> list[DiscoveryEffect]:
        return self.core.handle(event, now_s=self.now_s)

    def tick(self) -> list[DiscoveryEffect]:
        """Sleeps until it is wanted again."""
        self.now_s = max(self.now_s, self.core.wake_at_s() or self.now_s)
        return self.on(Tick())

    def met(self, address: str, node: str = "other", **kwargs: str) -> list[DiscoveryEffect]:
        isolation = {"cluster": "acme", "environment": "prod", **kwargs}
        return self.on(ProbeAnswered(address, node, **isolation))


def probed(effects: list[DiscoveryEffect]) -> list[str]:
    return [effect.address for effect in effects if isinstance(effect, ProbeAddress)]


def test_seeds_are_probed_while_dns_names_are_resolved() -> None:
    search = Search(seeds=("a:1", "b:1"), dns_names=("managers.example",))
    effects = search.tick()
    assert probed(effects) == ["a:1", "b:1"]
    assert [e.name for e in effects if isinstance(e, ResolveName)] == ["managers.example"]


def test_candidates_alternate_between_seeds_and_dns_names_without_duplicates() -> None:
    search = Search(seeds=("a:1", "b:1"), dns_names=("x", "y"))
    search.tick()
    search.on(NameResolved("x", ("c:1", "a:1", "c:1"), 30.0))
    search.on(NameResolved("y", ("d:1",), 30.0))
    assert search.core.candidates == ["a:1", "c:1", "d:1", "b:1"]


def test_this_node_itself_is_no_candidate_by_address_or_by_name() -> None:
    search = Search(seeds=("10.0.0.1:9000", "alias:9000", "b:1"))
    assert probed(search.tick()) == ["alias:9000", "b:1"]
    assert search.met("alias:9000", node="self") == []
    search.on(ProbeFailed("b:1"))
    for _ in range(5):
        assert probed(search.tick()) == ["b:1"]
        search.on(ProbeFailed("b:1"))


def test_a_node_that_answers_a_probe_is_contacted() -> None:
    search = Search(seeds=("a:1", "b:1"))
    search.tick()
    assert search.met("a:1") == [ContactMember("a:1")]


def test_no_more_probes_are_under_way_than_allowed() -> None:
    search = Search(seeds=tuple(f"s{n}:1" for n in range(50)), probes_max=10)
    first = probed(search.tick())
    assert len(first) == 10
    assert search.tick() == []
    assert len(probed(search.on(ProbeFailed(first[0])))) == 1


@pytest.mark.parametrize(
    ("tries", "least_s", "most_s"),
    [
        (1, 0.5, 0.625),
        (2, 1, 1.25),
        (3, 2, 2.5),
        (4, 4, 5),
        (5, 8, 10),
        (6, 15, 18.75),
        (9, 15, 18.75),
    ],
)
def test_a_silent_seed_is_probed_with_growing_delays(
    tries: int, least_s: float, most_s: float
) -> None:
    search = Search(seeds=("a:1",), unmet_warning_s=3600.0)
    for _ in range(tries):
        assert probed(search.tick()) == ["a:1"]
        search.on(ProbeFailed("a:1"))
    assert least_s <= search.core.wake_at_s() - search.now_s <= most_s


def test_the_probe_timeout_grows_after_a_failure() -> None:
    search = Search(seeds=("a:1",))
    timeouts = []
    for _ in range(4):
        (probe,) = search.tick()
        assert isinstance(probe, ProbeAddress)
        timeouts.append(probe.timeout_s)
        search.on(ProbeFailed("a:1"))
    assert timeouts == [0.5, 1.0, 2.0, 2.0]


def test_seeds_that_are_not_members_are_still_probed() -> None:
    search = Search(seeds=("a:1", "b:1"))
    search.tick()
    search.met("a:1")
    search.on(MemberUp("other", "a:1"))
    search.on(ProbeFailed("b:1"))
    assert probed(search.tick()) == ["b:1"]
    assert search.met("b:1", node="late") == [ContactMember("b:1")]
    search.on(MemberUp("late", "b:1"))
    assert search.core.wake_at_s() is None


def test_a_member_known_by_another_address_is_not_probed_again() -> None:
    search = Search(seeds=("manager-0.example:9000",))
    search.tick()
    search.met("manager-0.example:9000", node="m0")
    search.on(MemberUp("m0", "10.0.0.7:9000"))
    assert search.core.wake_at_s() is None
    assert probed(search.on(MemberDown("m0"))) == ["manager-0.example:9000"]


def test_a_contacted_node_that_did_not_become_a_member_is_probed_again() -> None:
    search = Search(seeds=("a:1",))
    search.tick()
    assert search.met("a:1") == [ContactMember("a:1")]
    assert probed(search.tick()) == ["a:1"]
    assert search.met("a:1") == [ContactMember("a:1")]


def test_a_node_that_lost_all_members_probes_every_candidate_at_once() -> None:
    search = Search(seeds=("a:1", "b:1"), dns_names=("x",))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 600.0))
    for _ in range(6):
        search.on(ProbeFailed("b:1"))
        search.tick()
    search.met("a:1", node="a")
    search.met("c:1", node="c")
    search.on(MemberUp("a", "a:1"))
    search.on(MemberUp("c", "c:1"))
    search.on(ProbeFailed("b:1"))
    search.on(MemberDown("a"))
    effects = search.on(MemberDown("c"))
    assert set(probed(effects)) == {"a:1", "b:1", "c:1"}
    assert [e.name for e in effects if isinstance(e, ResolveName)] == ["x"]


def test_a_failed_dns_name_keeps_its_last_addresses() -> None:
    search = Search(dns_names=("x",))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 1.0))
    search.on(ProbeFailed("c:1"))
    began_s = search.now_s
    asked_s: list[float] = []
    while search.now_s < began_s + 40.0:
        for effect in search.tick():
            if isinstance(effect, ResolveName):
                asked_s.append(search.now_s - began_s)
                (warning,) = [
                    e
                    for e in search.on(NameUnresolved("x", "SERVFAIL"))
                    if isinstance(e, WarnOperator)
                ] or [None]
                if len(asked_s) == 1:
                    assert warning is not None
                    assert "x does not resolve: SERVFAIL, keeping 1 known" in warning.text
                else:
                    assert warning is None
            elif isinstance(effect, ProbeAddress):
                search.on(ProbeFailed(effect.address))
    assert search.core.candidates == ["c:1"]
    assert asked_s[0] == pytest.approx(5.0)
    assert asked_s[1] == pytest.approx(35.0)


def test_an_empty_dns_answer_counts_as_a_failure() -> None:
    search = Search(dns_names=("x",))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 1.0))
    search.on(NameResolved("x", (), 1.0))
    assert search.core.candidates == ["c:1"]


def test_a_name_whose_addresses_change_brings_new_candidates_and_drops_old_ones() -> None:
    search = Search(seeds=("a:1",), dns_names=("x",))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 5.0))
    effects = search.on(NameResolved("x", ("d:1",), 5.0))
    assert search.core.candidates == ["a:1", "d:1"]
    assert probed(effects) == ["d:1"]
    search.on(ProbeFailed("c:1"))
    search.met("c:1")


@pytest.mark.parametrize(
    ("isolation", "part"),
    [
        ({"cluster": "other"}, "wrong cluster: node x is of 'other', this node of 'acme'"),
        ({"environment": "test"}, "wrong environment: node x is of 'test', this node of 'prod'"),
    ],
)
def test_another_cluster_is_refused_naming_both_sides_once(
    isolation: dict[str, str], part: str
) -> None:
    search = Search(seeds=("a:1",))
    search.tick()
    (warning,) = search.met("a:1", node="x", **isolation)
    assert isinstance(warning, WarnOperator)
    assert part in warning.text
    assert search.core.wake_at_s() - search.now_s >= 15.0
    assert probed(search.tick()) == ["a:1"]
    assert search.met("a:1", node="x", **isolation) == []


def test_a_refusal_by_the_other_side_is_shown_once() -> None:
    search = Search(seeds=("a:1",))
    search.tick()
    (warning,) = search.on(ProbeFailed("a:1", "wrong secret"))
    assert isinstance(warning, WarnOperator)
    assert warning.text == "a:1 cannot be joined: wrong secret"
    search.tick()
    assert search.on(ProbeFailed("a:1", "wrong secret")) == []


def test_a_seed_that_never_answered_is_warned_about_repeatedly() -> None:
    search = Search(seeds=("a:1",))
    warned: list[tuple[float, str]] = []
    while search.now_s < 100.0 + 1300.0:
        effects = search.tick()
        if probed(effects):
            effects += search.on(ProbeFailed("a:1"))
        texts = [effect.text for effect in effects if isinstance(effect, WarnOperator)]
        warned += [(search.now_s - 100.0, text) for text in texts]
    assert [(round(at_s, 6), text) for at_s, text in warned] == [
        (seconds, f"Peer a:1 still unconfirmed after {seconds}s - check configuration")
        for seconds in (60, 660, 1260)
    ]


def test_a_lost_member_is_warned_about_after_a_while() -> None:
    search = Search(seeds=("a:1",))
    search.tick()
    search.met("a:1", node="a")
    search.on(MemberUp("a", "a:1"))
    search.now_s += 500.0
    gone_s = search.now_s
    effects = search.on(MemberDown("a"))
    while not any(isinstance(effect, WarnOperator) for effect in effects):
        effects = search.on(ProbeFailed("a:1")) if probed(effects) else search.tick()
    assert search.now_s - gone_s == pytest.approx(60.0)


def test_this_node_is_no_candidate_when_dns_names_its_address() -> None:
    search = Search(dns_names=("managers.example",))
    search.tick()
    effects = search.on(NameResolved("managers.example", ("10.0.0.1:9000", "10.0.0.2:9000"), 30.0))
    assert probed(effects) == ["10.0.0.2:9000"]
    assert search.core.candidates == ["10.0.0.2:9000"]


def test_a_failed_dns_name_is_not_resolved_again_early_by_a_node_without_members() -> None:
    search = Search(seeds=("a:1",), dns_names=("x", "y"))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 600.0))
    search.on(NameUnresolved("y", "SERVFAIL"))
    search.met("a:1", node="a")
    search.on(MemberUp("a", "a:1"))
    search.now_s += 10.0
    effects = search.on(MemberDown("a"))
    assert [e.name for e in effects if isinstance(e, ResolveName)] == ["x"]
    search.now_s += 20.0
    effects = search.on(Tick())
    assert [e.name for e in effects if isinstance(e, ResolveName)] == ["y"]


def test_the_last_addresses_of_a_failed_dns_name_are_still_probed() -> None:
    search = Search(dns_names=("x",))
    search.tick()
    search.on(NameResolved("x", ("c:1",), 5.0))
    search.on(ProbeFailed("c:1"))
    search.on(NameUnresolved("x", "SERVFAIL"))
    assert probed(search.tick()) == ["c:1"]
    assert search.met("c:1", node="c") == [ContactMember("c:1")]


def test_discovery_without_seeds_and_names_does_nothing() -> None:
    search = Search()
    assert search.core.wake_at_s() is None
    assert search.on(Tick()) == []
    assert search.on(NameResolved("unknown", ("a:1",), 1.0)) == []
    assert search.on(NameUnresolved("unknown", "why")) == []
