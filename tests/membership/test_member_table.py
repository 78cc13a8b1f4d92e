"""The table: what outranks what, whom to ask, whom to watch."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.membership.events import MemberState
from hyperscale.membership.member_table import MemberRecord, MemberTable, outranks
from hyperscale.membership.messages import FINAL_STATES, ClaimedState, MemberUpdate
from hyperscale.wire.roles import MAY_CONNECT, Role


def peer(node: str, role: Role = Role.MANAGER, incarnation: int = 1) -> MemberRecord:
    return MemberRecord(node, incarnation, role, f"{node}:1", state=MemberState.ALIVE)


def roster_of(
    count: int, own: str = "self", role: Role = Role.MANAGER, seed: int = 1
) -> MemberTable:
    table = MemberTable(own, Random(seed))
    for n in range(count):
        member = peer(f"n{n}", role)
        table.peers[member.node] = member
        table.enter(member)
    return table


claims = st.builds(
    MemberUpdate,
    node=st.just("x"),
    incarnation=st.integers(1, 3),
    claim=st.sampled_from(ClaimedState),
    refutation=st.integers(0, 3),
)


def known(news: MemberUpdate) -> MemberRecord:
    made = peer("x", incarnation=news.incarnation)
    made.refutation, made.claim = news.refutation, news.claim
    return made


@given(claims, claims)
def test_of_two_claims_at_most_one_outranks_the_other(
    first: MemberUpdate, second: MemberUpdate
) -> None:
    assert not (outranks(first, known(second)) and outranks(second, known(first)))
    assert not outranks(first, known(first))


@given(claims, claims, claims)
def test_outranking_is_transitive(
    first: MemberUpdate, second: MemberUpdate, third: MemberUpdate
) -> None:
    if outranks(first, known(second)) and outranks(second, known(third)):
        assert outranks(first, known(third))


@given(claims, claims)
def test_a_later_incarnation_outranks_every_claim_about_an_earlier_one(
    first: MemberUpdate, second: MemberUpdate
) -> None:
    if first.incarnation > second.incarnation:
        assert outranks(first, known(second))


@given(claims, claims)
def test_a_final_state_stays_within_an_incarnation(
    first: MemberUpdate, second: MemberUpdate
) -> None:
    if first.incarnation == second.incarnation and second.claim in FINAL_STATES:
        assert not outranks(first, known(second))


def test_a_refutation_needs_a_strictly_higher_number() -> None:
    accused = known(MemberUpdate("x", 1, ClaimedState.SUSPECT, 4))
    assert not outranks(MemberUpdate("x", 1, ClaimedState.ALIVE, 4), accused)
    assert outranks(MemberUpdate("x", 1, ClaimedState.ALIVE, 5), accused)


def test_every_member_is_probed_once_per_round() -> None:
    table = roster_of(10)
    asked = Counter(table.next_target().node for _ in range(30))
    assert set(asked.values()) == {3}


def test_a_left_member_is_not_probed_and_a_new_one_is_probed_within_the_round() -> None:
    table = roster_of(5)
    table.next_target()
    table.exit(table.peers["n3"])
    newcomer = peer("new")
    table.peers[newcomer.node] = newcomer
    table.enter(newcomer)
    asked = [table.next_target().node for _ in range(9)]
    assert "n3" not in asked
    assert "new" in asked[:5]


def test_an_empty_table_has_no_probe_target() -> None:
    table = MemberTable("self", Random(1))
    assert table.next_target() is None
    assert table.sample(3) == []
    assert table.successors(2, 16) == []
    assert len(table) == 1


@given(st.integers(3, 30), st.integers(1, 6), st.integers(0, 1000))
def test_a_sample_holds_different_healthy_members_only(count: int, wanted: int, seed: int) -> None:
    table = roster_of(count, seed=seed)
    table.exit(table.peers["n1"])
    table.peers["n2"].state = MemberState.SUSPECT
    names = [member.node for member in table.sample(wanted, but="n0", healthy=True)]
    assert len(set(names)) == len(names) <= wanted
    assert not {"n0", "n1", "n2"} & set(names)
    if count - 3 <= wanted:
        assert len(names) == count - 3


def test_every_member_has_the_configured_number_of_watchers() -> None:
    names = [f"n{n}" for n in range(12)]
    watchers: Counter[str] = Counter()
    for own in names:
        table = MemberTable(own, Random(1))
        for other in names:
            if other != own:
                member = peer(other)
                table.peers[member.node] = member
                table.enter(member)
        watchers.update(found.node for found in table.successors(2, 16))
    assert watchers == dict.fromkeys(names, 2)


def test_members_behind_suspected_successors_are_watched_too() -> None:
    table = roster_of(8)
    first, second, third, fourth = table.successors(4, 16)
    first.state = second.state = MemberState.SUSPECT
    assert table.successors(2, 16) == [first, second, third, fourth]
    assert table.successors(2, 3) == [first, second, third]


@given(st.integers(1, 5), st.integers(0, 20))
def test_sessions_are_kept_by_members_whose_role_may_connect(managers: int, workers: int) -> None:
    roles = {f"m{n}": Role.MANAGER for n in range(managers)}
    roles |= {f"w{n}": Role.WORKER for n in range(workers)}
    watchers: Counter[str] = Counter()
    for own, own_role in roles.items():
        table = MemberTable(own, Random(1))
        for other, role in roles.items():
            if other != own:
                member = peer(other, role)
                table.peers[member.node] = member
                table.enter(member)
        for duty in table.session_targets(2, own_role):
            assert duty.role in MAY_CONNECT[own_role]
            watchers[duty.node] += 1
    for node, role in roles.items():
        able = sum(role in MAY_CONNECT[r] for other, r in roles.items() if other != node)
        assert watchers[node] == min(2, able)


def test_a_stream_address_has_its_own_port_if_one_is_given() -> None:
    member = peer("x")
    member.address = "[::1]:9000"
    assert member.stream_address == "[::1]:9000"
    member.stream_port = 9001
    assert member.stream_address == "[::1]:9001"
