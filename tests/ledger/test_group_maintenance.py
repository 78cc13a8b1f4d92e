"""Leaders maintain their groups, on a tier without faults."""

from typing import Any

from hyperscale.jobs.committed.events import JobFinished, JobStatus, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core_events import LeadershipTransferRequested, VoterChangeRequested
from hyperscale.ledger.group_maintenance import (
    CommitDecision,
    CommitRecord,
    GroupMaintenance,
    HandOverHistory,
    HistoryStateReceived,
    MaintenanceEvent,
    MaintenanceTiming,
    RequestHistoryState,
    Step,
    StepEnded,
)
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.replica import KEY_SLOTS, AppliedEntry, key_slot_of
from hyperscale.ledger.topology import (
    Decision,
    GroupDraining,
    GroupState,
    MigrationStarted,
    NodeState,
    NodeStateChanged,
    encode_decision,
)
from hyperscale.ledger.topology_policy import TierHealth
from hyperscale.sansio.core import Tick
from tests.lab.memory_tier import MemoryTier, reply_of, submit


def live_jobs(machine: Machine) -> int:
    assert isinstance(machine, JobMachine)
    return sum(1 for _ in machine.jobs())


class MaintainedTier(MemoryTier):
    """A tier whose leaders maintain their groups, one pass after another."""

    def __init__(self, nodes: int = 3, groups: int = 3) -> None:
        super().__init__(nodes, groups)
        self.health = TierHealth(dead_s={})
        self.handed_over: set[int] = set()
        self.maintenance: dict[int, GroupMaintenance] = {}
        self.tick(30)

    def passes(self, count: int = 1) -> None:
        for _ in range(count):
            for number in tuple(self.cores):
                self._notify(number, Tick())
                while (self._maintenance_of(number).wake_at_s() or 0.0) <= self.now_s:
                    self._notify(number, Tick())
            self.tick(3)

    def _maintenance_of(self, number: int) -> GroupMaintenance:
        if number not in self.maintenance:
            self.maintenance[number] = GroupMaintenance(
                self.cores[number],
                health=lambda: self.health,
                live_jobs=live_jobs,
                timing=MaintenanceTiming(unfit_s=0.0),
            )
        return self.maintenance[number]

    def _notify(self, number: int, event: MaintenanceEvent | Tick) -> None:
        for effect in self._maintenance_of(number).handle(event, now_s=self.now_s):
            match effect:
                case LeadershipTransferRequested() | VoterChangeRequested():
                    self.feed(number, effect)
                case RequestHistoryState(group=group, node=node):
                    self._notify(number, HistoryStateReceived(group, node, is_complete=True))
                case _:
                    self._notify(number, StepEnded(effect.group, self._take_step(effect)))

    def _take_step(self, step: Step) -> bool:
        match step:
            case CommitDecision(decision=decision):
                return self.decide(decision) is not None
            case HandOverHistory(group=group):
                self.handed_over.add(group)
                return True
            case CommitRecord(target=target, record=record):
                token = self.propose_record(self.leader(target).number, target, record)
                self.settle()
                return isinstance(self.answers.get(token), AppliedEntry)

    def leader(self, group: int) -> Any:
        for _ in range(40):
            for core in self.cores.values():
                if group in core.leading:
                    return core
            self.tick()
        raise AssertionError(f"nobody comes to lead group {group}")

    def decide(self, decision: Decision) -> Any:
        outcome = self.commit(self.leader(0).number, 0, encode_decision(decision))
        return outcome.reply if isinstance(outcome, AppliedEntry) else None


def test_groups_are_led_by_their_preferred_leaders() -> None:
    tier = MaintainedTier()
    tier.passes(4)
    for record in tier.leader(0).topology.groups.values():
        assert tier.leader(record.number).number == record.leader
    leaders = {tier.leader(group).number for group in (1, 2, 3)}
    assert len(leaders) == 3


def test_a_migration_is_released_adopted_and_handed_over() -> None:
    tier = MaintainedTier()
    key_slots = tuple(
        key_slot for key_slot, owner in enumerate(tier.leader(0).topology.owners) if owner == 1
    )
    tier.decide(MigrationStarted(key_slots[:100], 1, 2))
    tier.passes(3)
    topology = tier.leader(0).topology
    assert not topology.migrations
    assert {topology.owners[key_slot] for key_slot in key_slots[:100]} == {2}
    source, target = tier.leader(1).replicas[1], tier.leader(2).replicas[2]
    assert not source.outgoing
    assert set(key_slots[:100]) <= target.key_slots
    assert not source.key_slots & target.key_slots


def test_a_draining_group_is_destroyed_only_when_its_jobs_have_ended() -> None:
    tier = MaintainedTier()
    key = "key"
    group = next(g for g in (1, 2, 3) if tier.leader(g).replicas[g].key_slots & {key_slot_of(key)})
    leader = tier.leader(group).number
    job = reply_of(tier.commit(leader, group, submit(key), key)).job
    heir = next(g for g in (1, 2, 3) if g != group)
    tier.decide(GroupDraining(group, heir))
    tier.passes(5)
    assert tier.leader(0).topology.groups[group].state is GroupState.DRAINING
    assert group not in tier.handed_over
    finish = encode(JobFinished(job=job, status=JobStatus.COMPLETED))
    tier.commit(tier.leader(group).number, group, finish)
    tier.passes(5)
    topology = tier.leader(0).topology
    assert topology.groups[group].state is GroupState.DESTROYED
    assert group in tier.handed_over
    assert all(group not in core.replicas for core in tier.cores.values())
    owner = topology.owners[key_slot_of(key)]
    again = tier.commit(tier.leader(owner).number, owner, submit(key), key)
    reply = reply_of(again)
    assert (reply.job, reply.was_duplicate) == (job, True)


def test_a_drained_node_votes_nowhere_and_nothing_is_lost() -> None:
    tier = MaintainedTier(nodes=4, groups=4)
    jobs = {}
    for number in range(12):
        key = f"key-{number}"
        group = tier.leader(0).topology.owners[key_slot_of(key)]
        leader = tier.leader(group).number
        jobs[key] = reply_of(tier.commit(leader, group, submit(key), key)).job
    tier.decide(NodeStateChanged(2, NodeState.DRAINING))
    tier.passes(25)
    topology = tier.leader(0).topology
    living = [g for g in topology.groups.values() if g.state is not GroupState.DESTROYED]
    assert all(2 not in (*g.voters, *g.settled) for g in living)
    assert topology.nodes[2].state is NodeState.GONE
    for key, job in jobs.items():
        owner = topology.owners[key_slot_of(key)]
        reply = reply_of(tier.commit(tier.leader(owner).number, owner, submit(key), key))
        assert (reply.job, reply.was_duplicate) == (job, True)


def test_a_voter_that_is_dead_for_long_is_replaced_by_a_node_that_caught_up() -> None:
    tier = MaintainedTier(nodes=4, groups=4)
    tier.passes(3)
    dead = next(n for n in (2, 3, 4) if 0 not in tier.cores[n].leading)
    tier.crash(dead)
    tier.tick(30)
    tier.health = TierHealth(dead_s={dead: 400.0}, unfit=frozenset({dead}))
    tier.passes(25)
    topology = tier.leader(0).topology
    for record in topology.groups.values():
        if record.state is GroupState.DESTROYED:
            continue
        assert dead not in record.voters
        assert record.settled == record.voters
        assert len(tier.digests(record.number, record.voters)) == 1
    assert sum(owner != 0 for owner in topology.owners) == KEY_SLOTS
