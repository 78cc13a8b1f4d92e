"""Any sequence of events: replicas agree, invariants hold, the first end wins."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperscale.jobs.committed.events import (
    AttemptFault,
    AttemptRevoked,
    CancelRequested,
    Checkpoint,
    Checkpointed,
    Event,
    JobFinished,
    JobStatus,
    PartDispatch,
    PartEnded,
    PartRedispatched,
    WorkflowDispatched,
    WorkflowEnded,
    encode,
)
from hyperscale.jobs.committed.job_table import Limits
from hyperscale.jobs.committed.keys import job_id
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.jobs.committed.state import (
    JOB_ENDS,
    WORKFLOW_ENDS,
    Job,
    WorkflowStatus,
)
from hyperscale.plan.status import PartStatus
from tests.lab.job_builders import plan, submission, workflow

KEYS = ("one", "two")
PLANS = (
    plan(workflow("A"), workflow("B", "A"), workflow("C")),
    plan(workflow("A"), workflow("B"), workflow("C", "B", "A")),
)
NAMES = ("A", "B", "C", "Nope")
jobs = st.sampled_from([job_id("dc1", 3, key) for key in KEYS] + ["dc1.3-nobody"])
names = st.sampled_from(NAMES)
parts = st.integers(-1, 2)
attempts = st.integers(0, 3)
ends = st.sampled_from(list(JobStatus))
elapsed = st.floats(0, 60)

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(submission, st.sampled_from((*KEYS, "")), st.sampled_from(PLANS)),
    st.builds(
        WorkflowDispatched,
        job=jobs,
        workflow=names,
        parts=st.sampled_from(
            [
                [PartDispatch(0, 1, "w0")],
                [PartDispatch(0, 2, "w0"), PartDispatch(2, 1, "w1")],
                [PartDispatch(0, 1, "w0"), PartDispatch(0, 1, "w1")],
                [],
            ]
        ),
    ),
    st.builds(
        PartRedispatched,
        job=jobs,
        workflow=names,
        part=parts,
        attempt=attempts,
        worker=st.sampled_from(["w0", "w1"]),
    ),
    st.builds(
        AttemptRevoked,
        job=jobs,
        workflow=names,
        part=parts,
        attempt=attempts,
        reason=st.just("gone"),
        report=st.sampled_from([b"", b"r"]),
        elapsed_s=elapsed,
        requests_max=st.integers(0, 5),
        fault=st.sampled_from(AttemptFault),
    ),
    st.builds(
        Checkpointed,
        job=jobs,
        parts=st.lists(
            st.builds(Checkpoint, workflow=names, part=parts, attempt=attempts, elapsed_s=elapsed),
            max_size=2,
        ),
    ),
    st.builds(
        PartEnded,
        job=jobs,
        workflow=names,
        part=parts,
        attempt=attempts,
        status=st.sampled_from(list(PartStatus)),
        provided=st.sampled_from([[], [b"x"], [b"x" * 70_000]]),
    ),
    st.builds(WorkflowEnded, job=jobs, workflow=names, reason=st.just("why"), status=ends),
    st.builds(
        CancelRequested,
        job=jobs,
        reason=st.just("enough"),
        status=ends,
        aborted_by=names,
        workflow_reason=st.sampled_from(["", "p99"]),
    ),
    st.builds(JobFinished, job=jobs, status=ends),
)


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Random events, each twice as likely to fit: a plausible life is mixed into them."""
    job = job_id("dc1", 3, KEYS[0])
    life: list[Event] = [submission(KEYS[0], draw(st.sampled_from(PLANS)))]
    for name in "ABC":
        life += [
            WorkflowDispatched(
                job=job,
                workflow=name,
                parts=[PartDispatch(0, 2, "w0"), PartDispatch(2, 1, "w1")],
            ),
            *(
                PartEnded(job=job, workflow=name, part=part, attempt=1, status=PartStatus.COMPLETED)
                for part in (0, 1)
            ),
        ]
    told: list[Event] = []
    for event in life:
        told += draw(st.lists(EVENTS, max_size=2))
        told += [event] * draw(st.integers(0, 2))
    return told


def check(job: Job, before: Job | None) -> None:
    for plan_ in job.plan.workflows:
        state = job.workflows[plan_.name]
        assert (state.ended_as is not None) == (state.status in WORKFLOW_ENDS)
        assert not (state.has_ended and state.has_open_parts())
        if state.attempts:
            needed = [job.workflows[name].ended_as for name in plan_.depends]
            assert all(end is JobStatus.COMPLETED for end in needed)
        if state.status is WorkflowStatus.COMPLETED:
            assert all(part.is_completed for part in state.parts)
        for part in state.parts:
            assert not (part.is_open and part.has_ended)
            assert len(part.segments) == part.attempt - (part.is_open or part.has_ended)
            assert part.began_s == sum(segment.elapsed_s for segment in part.segments)
            assert [segment.attempt for segment in part.segments] == sorted(
                {segment.attempt for segment in part.segments}
            )
    if job.has_ended:
        assert all(state.has_ended for state in job.workflows.values())
        assert job.times.ended_ms
    if job.status is JobStatus.COMPLETING:
        assert all(state.has_ended for state in job.workflows.values())
    if before is not None:
        check_moves(job, before)


def check_moves(job: Job, before: Job) -> None:
    if before.has_ended:
        assert job.status is before.status
    if before.stop is not None:
        assert job.stop == before.stop
    for name, old in before.workflows.items():
        new = job.workflows[name]
        if old.has_ended:
            assert (new.ended_as, new.error) == (old.ended_as, old.error)
        for old_part, new_part in zip(old.parts, new.parts, strict=False):
            assert new_part.attempt - old_part.attempt in (0, 1)
            if old_part.has_ended:
                assert (new_part.end, new_part.attempt) == (old_part.end, old_part.attempt)
            if new_part.attempt > old_part.attempt:
                assert not old_part.is_open
                assert before.stop is None


def copy(machine: JobMachine, job: str) -> Job | None:
    found = machine.job(job)
    if found is None:
        return None
    copied: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Job)
    return copied  # type: ignore[no-any-return]  # decoded as a Job


@settings(max_examples=300)
@given(stories(), st.integers(0, 40))
def test_replicas_agree_and_every_rule_holds(story: list[Event], restart_at: int) -> None:
    first, second = JobMachine("dc1", 3), JobMachine("dc1", 3)
    for index, event in enumerate(story):
        body = encode(event)
        known = {job.id: copy(first, job.id) for job in first.jobs()}
        ended = {view.job for view in first.views() if view.status in JOB_ENDS}
        one, two = first.apply(index, index, body), second.apply(index, index, body)
        assert one == two
        assert first.snapshot() == second.snapshot()
        for view in first.views():
            job = first.job(view.job)
            assert job is not None
            if view.job not in ended:
                check(job, known.get(view.job))
        if index == restart_at:
            snapshot = second.snapshot()
            second = JobMachine("dc1", 3)
            second.restore(snapshot)
            assert second.snapshot() == snapshot
    assert first.snapshot() == second.snapshot()


@settings(max_examples=100)
@given(stories())
def test_an_event_applied_twice_changes_nothing(story: list[Event]) -> None:
    once, twice = JobMachine("dc1", 3), JobMachine("dc1", 3)
    for index, event in enumerate(story):
        body = encode(event)
        once.apply(index, index, body)
        twice.apply(index, index, body)
        before = twice.snapshot()
        twice.apply(index, index, body)
        assert twice.snapshot() == before
    assert once.snapshot() == twice.snapshot()


@settings(max_examples=100)
@given(st.lists(st.sampled_from(list(JOB_ENDS)), min_size=1, max_size=5))
def test_the_first_end_in_log_order_wins(wanted: list[JobStatus]) -> None:
    machine = JobMachine("dc1", 3, Limits())
    machine.apply(0, 0, encode(submission(KEYS[0], PLANS[0])))
    job = job_id("dc1", 3, KEYS[0])
    for index, status in enumerate(wanted):
        machine.apply(index, index, encode(JobFinished(job=job, status=status)))
    view = machine.view(job)
    assert view is not None
    assert view.status is wanted[0]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_the_machine_raises_for_no_bytes(body: bytes) -> None:
    machine = JobMachine("dc1", 3)
    machine.apply(1, 1, body)
    assert len(machine.views()) <= 1
