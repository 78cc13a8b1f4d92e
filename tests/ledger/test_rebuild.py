"""A new ledger of an old one: its groups, key slots, jobs and heirs."""

from collections.abc import Iterator

import pytest

from hyperscale.errors import InputError
from hyperscale.jobs.committed.events import JobFinished, JobStatus, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import MANAGEMENT
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.rebuild import NewNode, RebuiltLedger, lost_groups, rebuild
from hyperscale.ledger.records import KeySlotsReleased, MachineCommand, encode_record
from hyperscale.ledger.replica import KEY_SLOTS, Replica, key_slot_of
from hyperscale.ledger.topology import (
    Founded,
    GroupCreated,
    GroupState,
    MigrationStarted,
    NodeJoined,
    Topology,
)
from tests.lab.job_builders import submission

NODE = NewNode(name="m0", key="k", domain="rack")
NOW = 1_700_000_000_000 << 16
HALF = KEY_SLOTS // 2


def end_open(machine: Machine) -> Iterator[bytes]:
    assert isinstance(machine, JobMachine)
    for job in list(machine.jobs()):
        yield encode(JobFinished(job=job.id, status=JobStatus.FAILED, reason="restored"))


def old_ledger() -> tuple[Topology, dict[int, Replica]]:
    """Three nodes, two groups with half of the key slots each."""
    topology = Topology()
    topology.decide(Founded(3, "dc"))
    for name in ("a", "b", "c"):
        topology.decide(NodeJoined(name, name))
    replicas = {}
    for group, key_slots in ((1, range(HALF)), (2, range(HALF, KEY_SLOTS))):
        topology.decide(GroupCreated(group, (1, 2, 3), tuple(key_slots)))
        replicas[group] = Replica(group, JobMachine("dc", group), key_slots)
    return topology, replicas


def key_of(group: int) -> str:
    keys = (f"key-{number}" for number in range(1000))
    return next(key for key in keys if (key_slot_of(key) < HALF) == (group == 1))


def submit(replica: Replica, key: str) -> None:
    record = MachineCommand(NOW, key, encode(submission(key)))
    replica.apply(replica.applied + 1, 3, encode_record(record))


def opened(ledger: RebuiltLedger) -> tuple[Topology, dict[int, Replica]]:
    """The new ledger as its node opens it."""
    topology, replicas = Topology(), {}
    for each in ledger.groups:
        group = each.image.group
        machine = topology if group == MANAGEMENT else JobMachine("dc", group)
        replica = Replica(group, machine)
        index, _, _, data = each.image.snapshot
        replica.restore(index, data)
        if group != MANAGEMENT:
            replicas[group] = replica
    return topology, replicas


def jobs_of(replica: Replica) -> dict[str, str]:
    assert isinstance(replica.machine, JobMachine)
    return {job.key: job.status.value for job in replica.machine.ended_jobs()}


def test_the_new_ledger_has_one_voter_and_all_key_slots() -> None:
    old, groups = old_ledger()
    old.registry["datacenter.east"] = b"drained"
    topology, replicas = opened(rebuild(old, groups, NODE, end_open))
    assert topology.registry == {"datacenter.east": b"drained"}
    assert [(node.name, node.key) for node in topology.nodes.values()] == [("m0", "k")]
    assert topology.scope == "dc"
    assert {group: record.voters for group, record in topology.groups.items()} == {1: [1], 2: [1]}
    assert topology.owners == [1] * HALF + [2] * HALF
    assert replicas[1].key_slots == set(range(HALF))
    assert topology.next_node == 2


def test_jobs_that_had_not_ended_are_ended_once_and_their_keys_are_kept() -> None:
    topology, replicas = old_ledger()
    submit(replicas[1], key_of(1))
    ledger = rebuild(topology, replicas, NODE, end_open)
    assert ledger.ended_jobs == 1
    _, restored = opened(ledger)
    assert jobs_of(restored[1]) == {key_of(1): "failed"}
    submit(restored[1], key_of(1))  # the same submission again is the same job
    assert jobs_of(restored[1]) == {key_of(1): "failed"}
    kinds = [row[4] for row in ledger.groups[1].history]
    assert kinds == ["submitted", "finished", "ended"]


def test_entries_continue_after_the_last_one() -> None:
    topology, replicas = old_ledger()
    for number in range(5):
        submit(replicas[2], f"{key_of(2)}" if number == 0 else f"other-{number}")
    ledger = rebuild(topology, replicas, NODE, end_open)
    index, term, _, _ = ledger.groups[2].image.snapshot
    assert index == replicas[2].applied
    assert (term, ledger.groups[2].image.hard[2]) == (3, index)


def test_a_group_that_is_not_there_gets_an_heir_with_its_key_slots() -> None:
    topology, replicas = old_ledger()
    del replicas[2]
    assert lost_groups(topology, replicas) == [2]
    new, restored = opened(rebuild(topology, replicas, NODE, end_open))
    assert new.owners == [1] * KEY_SLOTS
    assert new.groups[2].state is GroupState.DESTROYED
    assert new.heir_of(2) == 1
    assert restored[1].key_slots == set(range(KEY_SLOTS))


@pytest.mark.parametrize("is_target_there", [True, False])
def test_key_slots_on_the_move_arrive_or_are_given_back(is_target_there: bool) -> None:
    topology, replicas = old_ledger()
    key = key_of(1)
    submit(replicas[1], key)
    moved = (key_slot_of(key),)
    migration = topology.decide(MigrationStarted(moved, 1, 2)).number
    record = KeySlotsReleased(NOW, migration, moved, 1, 2)
    replicas[1].apply(replicas[1].applied + 1, 3, encode_record(record))
    if not is_target_there:
        del replicas[2]
    owner = 2 if is_target_there else 1
    new, restored = opened(rebuild(topology, replicas, NODE, end_open))
    assert new.owners[moved[0]] == owner
    assert not new.migrations
    machine = restored[owner].machine
    assert isinstance(machine, JobMachine)
    assert machine.key(key) is not None


def test_a_key_slot_that_two_groups_claim_belongs_to_the_one_that_the_topology_names() -> None:
    topology, replicas = old_ledger()
    replicas[1].key_slots.add(KEY_SLOTS - 1)
    new, restored = opened(rebuild(topology, replicas, NODE, end_open))
    assert new.owners[KEY_SLOTS - 1] == 2
    assert KEY_SLOTS - 1 not in restored[1].key_slots


def test_a_disk_without_any_group_of_jobs_is_refused() -> None:
    topology, _ = old_ledger()
    with pytest.raises(InputError, match="no group of jobs"):
        rebuild(topology, {}, NODE, end_open)
