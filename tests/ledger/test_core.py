"""Several ledger cores together, without faults: elections, answers, restarts."""

import pytest

from hyperscale.jobs.committed.events import CancelRequested, Code, JobFinished, JobStatus, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import LedgerLimits
from hyperscale.ledger.core_events import GroupRole, ProposalFailure
from hyperscale.ledger.records import (
    COUNTER_BITS,
    DigestRequested,
    KeySlotsAdopted,
    KeySlotsReleased,
)
from hyperscale.ledger.replica import DIGEST_EVERY, AppliedEntry, key_slot_of
from hyperscale.ledger.topology import GroupState, VotersSettled, VotersWanted, encode_decision
from tests.lab.memory_tier import LIMITS, MemoryTier, reply_of, submit


def status(tier: MemoryTier, number: int, job: str) -> JobStatus | None:
    machine = tier.cores[number].replicas[1].machine
    assert isinstance(machine, JobMachine)
    found = machine.job(job)
    return None if found is None else found.status


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_command_is_committed_and_every_replica_has_it(nodes: int) -> None:
    tier = MemoryTier(nodes)
    tier.elect(1, 1)
    reply = reply_of(tier.commit(1, 1, submit("key"), "key"))
    assert reply.ok
    tier.tick(4)
    voters = tier.cores[1].topology.groups[1].voters
    for number in voters:
        assert status(tier, number, reply.job) is JobStatus.SUBMITTED
    assert len(tier.digests(1, voters)) == 1


@pytest.mark.parametrize("nodes", [1, 3])
def test_retries_with_one_key_through_any_leader_make_one_job(nodes: int) -> None:
    tier = MemoryTier(nodes)
    jobs = set()
    fresh = 0
    for number in (1, nodes, 1, (nodes + 1) // 2):
        tier.elect(1, number)
        reply = reply_of(tier.commit(number, 1, submit("key"), "key"))
        jobs.add(reply.job)
        fresh += not reply.was_duplicate
    assert len(jobs) == 1
    assert fresh == 1
    other = reply_of(tier.commit((nodes + 1) // 2, 1, submit("key", "Other"), "key"))
    assert other.code is Code.CONFLICT


def test_a_deposed_leader_commits_nothing_and_answers_superseded() -> None:
    tier = MemoryTier()
    tier.elect(1, 1)
    tier.cut.add(1)
    token = tier.propose(1, 1, submit("key"), "key")
    tier.settle()
    assert token not in tier.answers
    tier.elect(1, 2)
    reply = reply_of(tier.commit(2, 1, submit("other"), "other"))
    assert reply.ok
    tier.cut.clear()
    tier.tick(10)
    assert tier.answers[token] == ProposalFailure.SUPERSEDED
    assert len(tier.digests(1)) == 1


def test_a_term_has_at_most_one_leader() -> None:
    tier = MemoryTier()
    for number in (1, 2, 3, 1, 3, 2):
        tier.elect(1, number)
    leaders: dict[int, set[int]] = {}
    for number, effect in tier.effects:
        if isinstance(effect, GroupRole) and effect.group == 1 and effect.is_leader:
            leaders.setdefault(effect.term, set()).add(number)
    assert len(leaders) >= 5
    assert all(len(found) == 1 for found in leaders.values())


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_first_end_of_a_job_wins_on_every_replica(nodes: int) -> None:
    tier = MemoryTier(nodes)
    tier.elect(1, 1)
    ended = reply_of(tier.commit(1, 1, submit("a"), "a")).job
    stopped = reply_of(tier.commit(1, 1, submit("b"), "b")).job
    assert reply_of(
        tier.commit(1, 1, encode(JobFinished(job=ended, status=JobStatus.COMPLETED)))
    ).ok
    late = reply_of(tier.commit(1, 1, encode(CancelRequested(job=ended, reason="late"))))
    assert late.code is Code.TERMINAL
    assert reply_of(tier.commit(1, 1, encode(CancelRequested(job=stopped, reason="r")))).ok
    finish = encode(JobFinished(job=stopped, status=JobStatus.CANCELLED))
    assert reply_of(tier.commit(1, 1, finish)).ok
    other = encode(JobFinished(job=stopped, status=JobStatus.COMPLETED))
    assert reply_of(tier.commit(1, 1, other)).code is Code.TERMINAL
    tier.tick(4)
    for number in tier.cores:
        assert status(tier, number, ended) is JobStatus.COMPLETED
        assert status(tier, number, stopped) is JobStatus.CANCELLED


@pytest.mark.parametrize("nodes", [1, 3])
def test_after_all_nodes_lost_power_everything_acknowledged_is_there(nodes: int) -> None:
    tier = MemoryTier(
        nodes, limits=LedgerLimits(election_ticks=6, heartbeat_ticks=2, snapshot_entries=7)
    )
    tier.elect(1, 1)
    jobs = [reply_of(tier.commit(1, 1, submit(f"k{n}"), f"k{n}")).job for n in range(20)]
    for number in tuple(tier.cores):
        tier.crash(number)
    for number in tier.stores:
        tier.start(number)
    tier.settle()
    tier.elect(1, nodes)
    for job in jobs:
        assert status(tier, nodes, job) is JobStatus.SUBMITTED
    assert reply_of(tier.commit(nodes, 1, submit("k3"), "k3")).was_duplicate


def test_a_session_read_sees_its_write_and_strong_reads_never_go_back() -> None:
    tier = MemoryTier()
    tier.elect(1, 1)
    tier.cut.add(3)
    outcome = tier.commit(1, 1, submit("key"), "key")
    job = reply_of(outcome).job
    assert isinstance(outcome, AppliedEntry)
    behind = tier.cores[3].replicas[1]
    assert behind.applied < outcome.index
    token = tier.read(3, 1)
    tier.settle()
    assert token not in tier.answers, "it cannot know, so it does not answer"
    tier.cut.clear()
    for _ in range(5):
        tier.tick(2)
        token = tier.read(3, 1)
        tier.settle()
        if token in tier.answers:
            break
    assert token in tier.answers
    assert behind.applied >= outcome.index
    assert status(tier, 3, job) is JobStatus.SUBMITTED


def test_tokens_of_a_restarted_node_differ_from_those_before() -> None:
    tier = MemoryTier()
    tier.tick(20)
    before = {tier.cores[1].proposals.new_token() for _ in range(1_000)}
    tier.crash(1)
    reborn = tier.start(1)
    after = {reborn.proposals.new_token() for _ in range(1_000)}
    assert not before & after


def test_a_proposal_that_a_snapshot_skips_has_no_result() -> None:
    tier = MemoryTier(
        limits=LedgerLimits(
            election_ticks=6, heartbeat_ticks=2, snapshot_entries=4, trailing_entries=0
        )
    )
    tier.elect(1, 1)
    tier.cut.add(1)
    token = tier.propose(1, 1, submit("mine"), "mine")
    tier.settle()
    tier.elect(1, 2)
    for number in range(12):
        tier.commit(2, 1, submit(f"k{number}"), f"k{number}")
    tier.cut.clear()
    tier.tick(12)
    assert tier.was_restored(1, 1)
    assert isinstance(tier.answers[token], ProposalFailure)
    assert len(tier.digests(1)) == 1


def test_a_record_of_another_node_gets_the_stamp_of_the_leader() -> None:
    tier = MemoryTier()
    leader = tier.elect(1, 1)
    year_ms = 365 * 24 * 3_600 * 1_000
    wild = DigestRequested((tier.now_ms + year_ms) << 16)
    tier.propose_record(1, 1, wild)
    tier.settle()
    assert leader.replicas[1].last_ms < tier.now_ms + 60_000
    assert leader.clock.last >> COUNTER_BITS < tier.now_ms + 60_000


def test_a_follower_with_corrupt_memory_is_detected_and_replaced_by_a_snapshot() -> None:
    tier = MemoryTier(limits=LedgerLimits(election_ticks=6, heartbeat_ticks=2, trailing_entries=10))
    leader = tier.elect(1, 1)
    job = reply_of(tier.commit(1, 1, submit("key"), "key")).job
    tier.tick(4)
    machine = tier.cores[3].replicas[1].machine
    assert isinstance(machine, JobMachine)
    damaged = machine.job(job)
    assert damaged is not None
    damaged.reason = "a flipped bit"
    body = encode(CancelRequested(job="dc.1-none", reason="r"))
    begun = leader.replicas[1].applied
    while not tier.mismatches[3]:
        assert leader.replicas[1].applied < begun + DIGEST_EVERY + 200
        for _ in range(100):
            tier.propose(1, 1, body)
        tier.tick()
    tier.tick(12)
    repaired = tier.cores[3].replicas[1].machine
    assert isinstance(repaired, JobMachine)
    found = repaired.job(job)
    assert found is not None
    assert found.reason != "a flipped bit"
    assert len(tier.digests(1)) == 1
    assert tier.mismatches == {3: 1}


def test_key_slots_and_their_keys_migrate_to_another_group() -> None:
    tier = MemoryTier(groups=2)
    one = tier.elect(1, 1)
    tier.elect(2, 2)
    key = next(
        f"key-{n}" for n in range(99) if key_slot_of(f"key-{n}") in one.replicas[1].key_slots
    )
    job = reply_of(tier.commit(1, 1, submit(key), key)).job
    foreign = tier.commit(2, 2, submit(key), key)
    assert isinstance(foreign, AppliedEntry)
    assert foreign.is_key_foreign
    tier.propose_record(1, 1, KeySlotsReleased(0, 1, (key_slot_of(key),), 1, 2))
    tier.settle()
    migration = one.replicas[1].outgoing[1]
    tier.propose_record(2, 2, KeySlotsAdopted(0, 1, migration.key_slots, 1, migration.keys))
    tier.settle()
    again = reply_of(tier.commit(2, 2, submit(key), key))
    assert (again.job, again.was_duplicate) == (job, True)
    refused = tier.commit(1, 1, submit(key), key)
    assert isinstance(refused, AppliedEntry)
    assert refused.is_key_foreign


def replace_voter(tier: MemoryTier, leader: int, old: int, new: int) -> None:
    """Replace one voter by another, with the decisions of group 0."""
    voters = tuple(sorted({*tier.cores[leader].topology.groups[1].voters} - {old} | {new}))
    manager = next(c.number for c in tier.cores.values() if 0 in c.leading)
    tier.commit(manager, 0, encode_decision(VotersWanted(1, voters)))
    tier.tick(4)
    raft = tier.cores[leader].raft
    assert raft.configure(1, learners=[new])
    tier.tick(8)
    assert raft.configure(1, voters=[new], removed=[old])
    tier.tick(8)
    assert raft.seats(1)[0] == list(voters)
    change = tier.cores[manager].topology.groups[1].change
    tier.commit(manager, 0, encode_decision(VotersSettled(1, voters, change)))
    tier.tick(4)


def test_a_voter_is_replaced_under_load_and_nothing_is_lost() -> None:
    tier = MemoryTier(4)
    tier.elect(0, 1)
    tier.elect(1, 1)
    jobs = [reply_of(tier.commit(1, 1, submit(f"k{n}"), f"k{n}")).job for n in range(5)]
    replace_voter(tier, 1, old=3, new=4)
    jobs += [reply_of(tier.commit(1, 1, submit(f"m{n}"), f"m{n}")).job for n in range(5)]
    tier.tick(4)
    assert 1 not in tier.cores[3].replicas
    for job in jobs:
        assert status(tier, 4, job) is JobStatus.SUBMITTED
    assert len(tier.digests(1, (1, 2, 4))) == 1


def test_a_restarted_node_keeps_the_groups_its_newest_topology_gave_it() -> None:
    tier = MemoryTier(4)
    tier.elect(0, 1)
    tier.elect(1, 1)
    tier.commit(1, 1, submit("key"), "key")
    replace_voter(tier, 1, old=3, new=4)
    # What is committed is told to node 4 with later messages, and on its disk it may be old news.
    store = tier.stores[4]
    tier.crash(4)
    kept = store.groups[0]
    kept.hard = (kept.hard[0], kept.hard[1], kept.snapshot[0])
    tier.cut.add(4)
    tier.start(4)
    tier.settle()
    assert 1 in tier.cores[4].replicas, "it votes there: leaving would break what it promised"
    tier.cut.clear()
    tier.tick(10)
    assert 1 in tier.cores[4].replicas
    assert len(tier.digests(1, (1, 2, 4))) == 1


def test_a_node_that_left_a_group_does_not_create_it_again() -> None:
    tier = MemoryTier(4)
    tier.elect(0, 1)
    tier.elect(1, 1)
    replace_voter(tier, 1, old=3, new=4)
    assert 1 not in tier.cores[3].replicas
    store = tier.stores[3]
    tier.crash(3)
    kept = store.groups[0]
    kept.hard = (kept.hard[0], kept.hard[1], kept.snapshot[0])
    tier.cut.add(3)
    tier.start(3)
    tier.settle()
    assert tier.cores[3].topology.groups[1].state is GroupState.ACTIVE
    assert 1 not in tier.cores[3].replicas


def test_a_follower_that_was_away_gets_a_snapshot() -> None:
    tier = MemoryTier(
        limits=LedgerLimits(
            election_ticks=6, heartbeat_ticks=2, snapshot_entries=10, trailing_entries=2
        )
    )
    tier.elect(1, 1)
    tier.cut.add(3)
    for number in range(30):
        tier.commit(1, 1, submit(f"k{number}"), f"k{number}")
    assert tier.cores[1].raft.log_size(1)[0] < 15
    tier.cut.clear()
    tier.tick(10)
    assert tier.was_restored(3, 1)
    assert len(tier.digests(1)) == 1


def test_a_node_with_too_many_proposals_is_full() -> None:
    tier = MemoryTier(
        limits=LedgerLimits(election_ticks=6, heartbeat_ticks=2, pending_proposals=10)
    )
    leader = tier.elect(1, 1)
    assert not leader.proposals.is_full
    tier.cut = {2, 3}
    for number in range(10):
        tier.propose(1, 1, str(number).encode())
    tier.settle()
    assert leader.proposals.is_full
    tier.cut.clear()
    tier.tick(4)
    assert not leader.proposals.is_full


def test_the_limits_of_these_tests_are_those_of_the_ledger_but_faster() -> None:
    assert LIMITS.snapshot_entries == LedgerLimits().snapshot_entries
    assert LIMITS.election_ticks < LedgerLimits().election_ticks
