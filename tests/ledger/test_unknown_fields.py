"""States that a newer version wrote, kept and handed on by this one."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from hyperscale.gates.committed.state import GlobalJob
from hyperscale.jobs.committed.events import CancelRequested, encode
from hyperscale.jobs.committed.job_table import JobTable, KeyRecord
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import Job
from hyperscale.ledger.records import MachineCommand, encode_record
from hyperscale.ledger.replica import KEY_SLOTS, OutgoingKeySlots, Replica
from hyperscale.ledger.topology import Topology
from hyperscale.ledger.unknown_fields import UnknownFields
from tests.lab.job_builders import submission

NOW = 1_700_000_000_000 << 16
ARRAYS = {KeyRecord: 3, OutgoingKeySlots: 3}
"""Structs in snapshots that are encoded as arrays, and their fields: they never get another one."""


class OldPart(Struct, omit_defaults=True):
    worker: str
    attempt: int = 0


class OldJob(Struct, omit_defaults=True):
    name: str
    parts: list[OldPart] = field(default_factory=list)


class OldState(Struct, omit_defaults=True):
    jobs: dict[str, OldJob] = field(default_factory=dict)
    count: int = 0


class NewPart(Struct, omit_defaults=True):
    worker: str
    attempt: int = 0
    zone: str = ""


class NewJob(Struct, omit_defaults=True):
    name: str
    parts: list[NewPart] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)


class NewState(Struct, omit_defaults=True):
    jobs: dict[str, NewJob] = field(default_factory=dict)
    count: int = 0
    audit: list[str] = field(default_factory=list)


PARTS = st.builds(NewPart, st.text(max_size=3), st.integers(0, 3), st.text(max_size=3))
JOBS = st.builds(
    NewJob,
    st.text(max_size=3),
    st.lists(PARTS, max_size=3),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
)
STATES = st.builds(
    NewState,
    st.dictionaries(st.text(max_size=3), JOBS, max_size=3),
    st.integers(0, 3),
    st.lists(st.text(max_size=2), max_size=2),
)


@given(STATES)
def test_an_older_version_hands_on_exactly_what_a_newer_one_wrote(state: NewState) -> None:
    written = msgspec.msgpack.encode(state)
    old = msgspec.msgpack.decode(written, type=OldState)
    unknown = UnknownFields()
    unknown.note(written, msgspec.msgpack.encode(old))
    assert unknown.add(msgspec.msgpack.encode(old)) == written
    assert unknown.digest(old) == UnknownFields().digest(state)
    # Both apply the same change, which both versions know.
    for each in (state, old):
        each.count += 1
        for job in each.jobs.values():
            job.name += "!"
            for part in job.parts:
                part.attempt += 1
    assert unknown.add(msgspec.msgpack.encode(old)) == msgspec.msgpack.encode(state)
    assert unknown.digest(old) == UnknownFields().digest(state)


@given(STATES)
def test_unknown_fields_end_with_what_they_belong_to(state: NewState) -> None:
    written = msgspec.msgpack.encode(state)
    old = msgspec.msgpack.decode(written, type=OldState)
    unknown = UnknownFields()
    unknown.note(written, msgspec.msgpack.encode(old))
    old.jobs.clear()
    state.jobs.clear()
    assert unknown.add(msgspec.msgpack.encode(old)) == msgspec.msgpack.encode(state)


def test_a_field_that_is_not_used_changes_no_digest_however_many_there_are() -> None:
    """MessagePack writes the head of a struct of 16 fields differently, used or not."""
    digests = set()
    for count in (14, 15, 16, 17):
        fields = [(f"field_{number}", int, 0) for number in range(count)]
        state = msgspec.defstruct("State", fields, omit_defaults=True)(field_1=5)
        digests.add(UnknownFields().digest(state))
    assert len(digests) == 1


def _replica() -> Replica:
    own = Replica(1, JobMachine("dc", 1), range(KEY_SLOTS))
    _put(own, MachineCommand(NOW, "a", encode(submission("a"))))
    return own


def _put(replica: Replica, record: MachineCommand) -> Any:
    return replica.apply(replica.applied + 1, 1, encode_record(record))


def _of_newer_version(snapshot: bytes) -> bytes:
    """Return a snapshot with a field more in the image, in the table and in each job."""
    image = msgspec.msgpack.decode(snapshot)
    table = msgspec.msgpack.decode(image["machine"])
    for job in table["jobs"].values():
        job["zone"] = {"of": "tomorrow"}
    table["quota"] = 7
    image["machine"] = msgspec.msgpack.encode(table)
    image["sealed"] = [1, 2]
    return msgspec.msgpack.encode(image)


def test_a_replica_hands_on_the_unknown_fields_of_a_snapshot_and_hashes_them() -> None:
    newer = _of_newer_version(_replica().snapshot())
    one, two = Replica(1, JobMachine("dc", 1)), Replica(1, JobMachine("dc", 1))
    one.restore(1, newer)
    assert one.snapshot() == newer
    two.restore(1, one.snapshot())
    assert two.digest() == one.digest() != _replica().digest()
    for each in (one, two):
        _put(each, MachineCommand(NOW, "", encode(CancelRequested(job="x", reason="r"))))
        _put(each, MachineCommand(NOW, "b", encode(submission("b"))))
    assert two.snapshot() == one.snapshot()
    assert b"tomorrow" in one.snapshot()


def test_entries_that_a_replica_does_not_know_change_nothing_and_stop_nothing() -> None:
    own = _replica()
    before = own.digest()
    newer = [99, NOW, "a field", 5]  # a kind of record to come
    own.apply(own.applied + 1, 1, msgspec.msgpack.encode(newer))
    event = msgspec.msgpack.encode({"type": "promoted", "job": "x"})
    assert _put(own, MachineCommand(0, "", event)).event is None
    known = msgspec.msgpack.decode(encode_record(MachineCommand(0, "", event)))
    longer = [*known, "a field of a command to come"]
    own.apply(own.applied + 1, 1, msgspec.msgpack.encode(longer))
    assert own.digest() == before
    damaged = [0, "no stamp", "", event]
    with pytest.raises(msgspec.ValidationError):
        own.apply(own.applied + 1, 1, msgspec.msgpack.encode(damaged))
    topology = Replica(0, Topology())
    decided = _put(topology, MachineCommand(0, "", event))
    assert "not a decision" in decided.reply.refused


def _structs(hint: Any) -> Iterator[type[Struct]]:
    """Return the Structs that a type contains, at any depth."""
    seen: set[Any] = set()
    queue = [hint]
    while queue:
        each = queue.pop()
        if each in seen:
            continue
        seen.add(each)
        queue += get_args(each)
        origin = getattr(each, "__origin__", each)
        if isinstance(origin, type) and issubclass(origin, Struct):
            yield origin
            queue += get_type_hints(origin).values()


def test_everything_in_snapshots_leaves_out_defaults_so_that_new_fields_do_not_show() -> None:
    for hint in (JobTable[Job], JobTable[GlobalJob], Topology):
        found = set(_structs(hint))
        assert len(found) > 3
        for struct in found:
            config = struct.__struct_config__
            if config.array_like:
                assert len(struct.__struct_fields__) == ARRAYS[struct], struct
            else:
                assert config.omit_defaults, f"{struct.__name__} writes its default values"
