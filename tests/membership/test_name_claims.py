"""Names that two processes use: the living one keeps its name, an ended one loses it."""

import msgspec
import pytest

from hyperscale.membership.events import (
    HolderOutcome,
    HolderVerified,
    IncarnationRaised,
    MemberDied,
    MemberState,
    NameClaimed,
    NameLost,
    VerifyHolder,
)
from hyperscale.membership.messages import Gossip, Ping, Sender
from hyperscale.membership.name_claims import NameVerdict
from hyperscale.wire.roles import Role
from tests.membership.bench import Bench, alive

ELSEWHERE = NameClaimed("b", 900, "other:1", key="k2")


def met(**options: Role) -> Bench:
    """Return a node that knows the members a and b; b has the key k1."""
    bench = Bench(**options)
    bench.meet("a", "b")
    bench.handle(NameClaimed("b", 100, "b:1", key="k1"))
    return bench


def outcome(outcome: HolderOutcome, node: str = "b", incarnation: int = 100) -> HolderVerified:
    return HolderVerified(node, incarnation, "b:1", outcome)


def test_a_name_is_taken_while_its_holder_answers() -> None:
    bench = met()
    bench.handle(ELSEWHERE)
    bench.handle(ELSEWHERE)  # asked again while the holder is dialled
    assert bench.all(VerifyHolder) == [VerifyHolder("b", 100, "b:1")]
    assert bench.core.names.verdict(ELSEWHERE) is NameVerdict.UNCERTAIN
    bench.handle(outcome(HolderOutcome.ANSWERED))
    assert bench.core.names.verdict(ELSEWHERE) is NameVerdict.TAKEN
    assert bench.core.state_of("b") is MemberState.ALIVE
    assert bench.all(MemberDied) == []


def test_datagrams_of_a_process_with_a_taken_name_change_nothing() -> None:
    bench = met()
    sender = Sender("other:1", Role.MANAGER)
    rumour = msgspec.structs.replace(alive("c"), address="c:1")
    for found in (None, HolderOutcome.ANSWERED):
        if found is not None:
            bench.handle(outcome(found))
        bench.receive("b", Ping(sender, 1, "self"), incarnation=900)
        bench.receive("b", Gossip(sender, (rumour,)), incarnation=900)
        assert bench.core.table.peers["b"].address == "b:1"
        assert bench.core.state_of("c") is None


def test_an_ended_holder_loses_its_name_at_once() -> None:
    bench = met()
    bench.handle(ELSEWHERE)
    bench.handle(outcome(HolderOutcome.ENDED))
    assert bench.core.state_of("b") is MemberState.DEAD
    assert bench.core.names.verdict(ELSEWHERE) is NameVerdict.FREE
    bench.receive("b", Gossip(Sender("other:1", Role.MANAGER)), incarnation=900)
    assert bench.core.table.peers["b"].address == "other:1"


@pytest.mark.parametrize(
    ("key", "verdict"), [("k1", NameVerdict.FREE), ("k2", NameVerdict.UNCERTAIN)]
)
def test_a_silent_holder_loses_its_name_only_to_its_own_data_directory(
    key: str, verdict: NameVerdict
) -> None:
    bench = met()
    claim = msgspec.structs.replace(ELSEWHERE, key=key)
    bench.handle(claim)
    bench.handle(outcome(HolderOutcome.SILENT))
    assert bench.core.names.verdict(claim) is verdict


def test_a_silent_holder_loses_its_name_when_it_is_declared_dead() -> None:
    bench = met()
    bench.handle(ELSEWHERE)
    bench.handle(outcome(HolderOutcome.SILENT))
    bench.run(20.0, answering=("a",))
    assert bench.core.state_of("b") is MemberState.DEAD
    assert bench.core.names.verdict(ELSEWHERE) is NameVerdict.FREE


@pytest.mark.parametrize(
    "claim",
    [
        NameClaimed("b", 100, "moved:1", key="k1"),  # the same process has moved
        NameClaimed("b", 900, "b:1", key="k2"),  # its port is free, so it has ended
        NameClaimed("new", 900, "new:1", key="k2"),
    ],
)
def test_a_name_that_no_other_process_can_have_is_free_at_once(claim: NameClaimed) -> None:
    bench = met()
    bench.handle(claim)
    assert bench.core.names.verdict(claim) is NameVerdict.FREE
    assert bench.all(VerifyHolder) == []


def test_a_worker_leaves_the_judgement_about_another_worker_to_managers() -> None:
    bench = Bench(role=Role.WORKER)
    bench.meet("a", "w1")
    claim = NameClaimed("w1", 900, "other:1")
    bench.receive("w1", Gossip(Sender("other:1", Role.WORKER)), incarnation=900)
    assert bench.all(VerifyHolder) == []
    assert bench.core.names.verdict(claim) is NameVerdict.UNCERTAIN
    assert bench.core.table.peers["w1"].address == "w1:1"


def test_a_node_whose_name_another_living_process_has_stops() -> None:
    bench = met()
    bench.say(msgspec.structs.replace(alive("self", 700), address="other:1"))
    assert bench.all(VerifyHolder) == [VerifyHolder("self", 700, "other:1")]
    bench.handle(HolderVerified("self", 700, "other:1", HolderOutcome.ANSWERED))
    assert bench.all(NameLost) == [NameLost("other:1")]
    assert bench.all(IncarnationRaised) == []


@pytest.mark.parametrize("found", [HolderOutcome.ENDED, HolderOutcome.SILENT])
def test_a_node_outranks_a_later_process_of_its_name_that_does_not_answer(
    found: HolderOutcome,
) -> None:
    bench = met()
    bench.say(msgspec.structs.replace(alive("self", 700), address="other:1"))
    bench.handle(HolderVerified("self", 700, "other:1", found))
    assert [effect.incarnation for effect in bench.all(IncarnationRaised)] == [701]
    assert bench.all(NameLost) == []
