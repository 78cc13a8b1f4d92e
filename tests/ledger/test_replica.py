"""A replica: the order of entries, migrations of key slots, snapshots, digests."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InvariantError
from hyperscale.jobs.committed.events import CancelRequested, Code, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.audit import AUDIT, AuditEntry, decode_audit
from hyperscale.ledger.records import (
    KeySlotsAdopted,
    KeySlotsHandedOver,
    KeySlotsReleased,
    MachineCommand,
    Record,
    RequestAudited,
    StateDigest,
    encode_record,
)
from hyperscale.ledger.replica import DIGEST_EVERY, KEY_SLOTS, AppliedEntry, Replica, key_slot_of
from hyperscale.ledger.store import whole_page
from tests.lab.job_builders import plan, submission, workflow
from tests.lab.memory_tier import reply_of

NOW = 1_700_000_000_000 << 16
ALL = range(KEY_SLOTS)


def replica(group: int = 1, key_slots: range = ALL) -> Replica:
    return Replica(group, JobMachine("dc", group), key_slots)


def put(target: Replica, record: Record) -> AppliedEntry:
    return target.apply(target.applied + 1, 1, encode_record(record))


def submit(target: Replica, key: str, payload: str = "Load") -> AppliedEntry:
    body = encode(submission(key, plan(workflow(payload))))
    return put(target, MachineCommand(NOW, key, body))


def hand_over(source: Replica, target: Replica, migration: int, key_slots: tuple[int, ...]) -> None:
    put(source, KeySlotsReleased(NOW, migration, key_slots, source.group, target.group))
    outgoing = source.outgoing[migration]
    put(target, KeySlotsAdopted(NOW, migration, outgoing.key_slots, source.group, outgoing.keys))
    put(source, KeySlotsHandedOver(NOW, migration))


def test_an_entry_out_of_order_is_a_bug() -> None:
    own = replica()
    own.apply(1, 1, b"")
    for index in (1, 3):
        with pytest.raises(InvariantError, match="comes after"):
            own.apply(index, 1, b"")


def test_a_change_and_its_audit_entry_are_one_entry_of_the_log() -> None:
    own = replica()
    audit = msgspec.msgpack.encode(AuditEntry(by="alice", role="submitter", action="submit"))
    body = encode(submission("key"))
    for _ in range(2):  # the second changes nothing
        put(own, MachineCommand(NOW, "key", body, audit=audit))
    put(own, MachineCommand(NOW, "key", b"nonsense", audit=audit))
    assert [(row[2], row[4]) for row in own.history] == [(1, "submitted"), (1, "audit")]
    assert [row[0] for row in own.history[1:]] == [AUDIT]
    job = own.history[0][0]
    entry = decode_audit(own.history[1][5])
    assert entry == AuditEntry(by="alice", role="submitter", action="submit", subject=job)


def test_a_request_that_changes_no_state_leaves_an_audit_entry_and_the_state_as_it_is() -> None:
    own = replica()
    before = own.machine.snapshot()
    backup = AuditEntry(by="olga", role="operator", action="backup", is_proven=True)
    put(own, RequestAudited(NOW, msgspec.msgpack.encode(backup)))
    assert own.machine.snapshot() == before
    assert [decode_audit(row[5]) for row in own.history] == [backup]


def test_pages_of_history_end_between_entries() -> None:
    rows = [("job", 1, index, 100, kind, b"") for index in range(4) for kind in ("a", "b")]
    assert whole_page(rows[:3], 3) == (rows[:2], True)
    assert whole_page(rows[:4], 4) == (rows[:2], True)
    assert whole_page(rows[:3], 4) == (rows[:3], False)
    assert whole_page(rows[:1], 1) == (rows[:1], True)


def test_a_command_whose_key_slot_another_group_owns_is_not_applied() -> None:
    own = replica(key_slots=range(0))
    outcome = submit(own, "key")
    assert (outcome.is_key_foreign, outcome.reply) == (True, None)
    assert isinstance(own.machine, JobMachine)
    assert not own.machine.views()


def test_a_command_without_a_key_is_applied_whatever_key_slots_the_group_owns() -> None:
    own = replica(key_slots=range(0))
    outcome = put(own, MachineCommand(NOW, "", encode(CancelRequested(job="dc.1-x", reason="r"))))
    assert reply_of(outcome).code is Code.UNKNOWN_JOB


def test_a_key_migrates_with_its_key_slot_and_makes_no_second_job() -> None:
    old, new = replica(1), replica(2, range(0))
    first = reply_of(submit(old, "key"))
    key_slot = key_slot_of("key")
    hand_over(old, new, 7, (key_slot,))
    assert submit(old, "key").is_key_foreign
    again = reply_of(submit(new, "key"))
    assert (again.job, again.was_duplicate) == (first.job, True)
    other = reply_of(submit(new, "key", "Other"))
    assert other.code is Code.CONFLICT


def test_between_release_and_adoption_no_group_applies_the_key() -> None:
    old, new = replica(1), replica(2, range(0))
    put(old, KeySlotsReleased(NOW, 7, (key_slot_of("key"),), 1, 2))
    assert submit(old, "key").is_key_foreign
    assert submit(new, "key").is_key_foreign


def test_adopting_key_slots_twice_changes_nothing() -> None:
    old, new = replica(1), replica(2, range(0))
    submit(old, "key")
    put(old, KeySlotsReleased(NOW, 7, (key_slot_of("key"),), 1, 2))
    outgoing = old.outgoing[7]
    adopted = KeySlotsAdopted(NOW, 7, outgoing.key_slots, 1, outgoing.keys)
    put(new, adopted)
    put(new, KeySlotsReleased(NOW, 8, outgoing.key_slots, 2, 3))
    put(new, adopted)
    assert not new.key_slots


def test_a_repeated_release_does_not_release_key_slots_that_came_back() -> None:
    one, two = replica(1), replica(2, range(0))
    hand_over(one, two, 7, (5,))
    hand_over(two, one, 8, (5,))
    put(one, KeySlotsReleased(NOW, 7, (5,), 1, 2))
    assert 5 in one.key_slots
    assert 7 in one.released
    assert not one.outgoing


def test_an_heir_ignores_a_release_meant_for_the_destroyed_group() -> None:
    one, two = replica(1), replica(2, range(0))
    hand_over(one, two, 7, (5,))
    put(two, KeySlotsReleased(NOW, 7, (5,), 1, 2))  # on its way to the first when that ended
    assert 5 in two.key_slots
    assert not two.outgoing


def test_a_snapshot_holds_the_whole_state() -> None:
    own = replica()
    for number in range(20):
        submit(own, f"key-{number}")
    put(own, KeySlotsReleased(NOW, 7, tuple(range(100)), own.group, 2))
    copy = replica(key_slots=range(0))
    copy.restore(own.applied, own.snapshot())
    assert copy.digest() == own.digest()
    assert copy.snapshot() == own.snapshot()
    for target in (own, copy):
        submit(target, "key-3")
        submit(target, "other")
        put(target, KeySlotsHandedOver(NOW, 7))
        put(target, KeySlotsReleased(NOW, 7, tuple(range(200)), target.group, 2))
    assert copy.digest() == own.digest()


def test_the_time_of_a_state_machine_never_runs_backwards() -> None:
    own = replica()
    put(own, MachineCommand(NOW + (5_000 << 16), "", b""))
    put(own, MachineCommand(NOW, "", b""))
    assert own.last_ms == (NOW >> 16) + 5_000


def test_every_thousandth_entry_has_a_digest_and_a_corrupt_state_differs() -> None:
    good, bad = replica(), replica()
    for own in (good, bad):
        job = reply_of(submit(own, "key")).job
        assert isinstance(own.machine, JobMachine)
        if own is bad:
            found = own.machine.job(job)
            assert found is not None
            found.reason = "a flipped bit"
        while own.applied < DIGEST_EVERY:
            own.apply(own.applied + 1, 1, b"")
    said = StateDigest(NOW, DIGEST_EVERY, good.digests[DIGEST_EVERY])
    assert put(bad, said).is_digest_different
    assert not put(good, said).is_digest_different


keys = st.sampled_from([f"key-{n}" for n in range(12)])
scripts = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), keys),
        st.tuples(st.just("move"), st.lists(keys, min_size=1, max_size=4)),
    ),
    max_size=40,
)


@given(scripts, st.integers(0, 2**32))
def test_a_key_makes_one_job_wherever_its_key_slot_migrates(
    script: list[tuple[str, object]], seed: int
) -> None:
    groups = [replica(1), replica(2, range(0)), replica(3, range(0))]
    jobs: dict[str, str] = {}
    migration = 0
    for name, what in script:
        if name == "submit":
            told = [submit(own, str(what)) for own in groups]
            taken = [outcome for outcome in told if not outcome.is_key_foreign]
            assert len(taken) == 1
            reply = reply_of(taken[0])
            assert jobs.setdefault(str(what), reply.job) == reply.job
        elif isinstance(what, list):
            source = groups[(seed + migration) % 3]
            target = groups[(seed // 3 + migration + 1) % 3]
            key_slots = tuple({key_slot_of(key) for key in what} & source.key_slots)
            if source is not target and key_slots:
                migration += 1
                hand_over(source, target, migration, key_slots)
        owned = [key_slot for own in groups for key_slot in own.key_slots]
        assert sorted(owned) == list(ALL)
