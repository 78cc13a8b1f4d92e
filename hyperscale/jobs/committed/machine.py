"""The replicated state machine of jobs: committed events in, replies out, no clock, no I/O.

Every replica of a group applies the same entries in the same order and ends in the same
state, byte for byte. An event that does not apply (late, repeated, for something that has
ended) changes nothing; the reply says why. Rules:

- A key makes one job. The same key with the same payload is the same job; with another, a conflict.
- The first terminal event of a job, workflow or part in log order wins.
- A part has at most one open attempt; the next one is the last + 1, and only an open one can
  be checkpointed, revoked or finished.
- A workflow is dispatched only when every workflow it depends on has completed. If one of them
  did not, it is cancelled at once, and so are its own dependents.
- After a cancel nothing is dispatched any more.

Ended jobs stay for a while as rows; their full record is a row of history.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    CancelRequested,
    Checkpointed,
    Code,
    Event,
    JobEvent,
    JobFinished,
    JobReported,
    JobStatus,
    JobSubmitted,
    PartEnded,
    Reply,
    SubmissionRevoked,
    TimePassed,
    WorkflowSetUp,
    decode,
    encode,
    kind_of,
)
from hyperscale.jobs.committed.job_table import JobTable, KeyRecord, Limits, Refuse
from hyperscale.jobs.committed.keys import job_id
from hyperscale.jobs.committed.plan_rules import plan_problem
from hyperscale.jobs.committed.state import (
    Job,
    JobTimes,
    JobView,
    WorkflowState,
    ended_row,
    view_of,
)
from hyperscale.jobs.committed.transitions import TRANSITIONS
from hyperscale.wire.versions import CURRENT, AboveVersionError, Version, admitted

_HISTORY_BYTES = 4096  # larger events are kept in history without reports and context


class Applied(NamedTuple):
    """What one committed entry did: the decoded event, and the answer to its proposer."""

    event: Event | None
    """None: the entry could not be decoded."""
    reply: Reply
    history: Sequence[tuple[str, str, bytes]] = ()  # job, kind, data

    @property
    def did_change(self) -> bool:
        return self.reply.ok and self.reply.code is not Code.DUPLICATE


_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(JobTable[Job])

_OK = Reply(ok=True)
_DUPLICATE = Reply(ok=True, code=Code.DUPLICATE)


class JobMachine:
    """The jobs of one group."""

    def __init__(self, scope: str, group: int, limits: Limits | None = None) -> None:
        self.scope = scope
        self.group = group
        self._limits = limits or Limits()
        self._state: JobTable[Job] = JobTable()

    # --- the ledger's side ----------------------------------------------------------------

    def apply(
        self,
        index: int,  # noqa: ARG002 -- the ledger's protocol
        time_ms: int,
        body: bytes,
        *,
        unix_ms: int = 0,
        version: Version = CURRENT,
    ) -> Applied:
        """Apply one committed entry. No content of an entry makes this raise."""
        try:
            event = admitted(decode(body), version)
        except (ValueError, RecursionError, AboveVersionError) as exc:
            return Applied(None, Reply(ok=False, code=Code.INVALID, error=f"not an event: {exc}"))
        state = self._state
        state.now_ms = max(state.now_ms, time_ms)
        try:
            match event:
                case TimePassed():
                    return Applied(event, _OK)
                case JobSubmitted():
                    return self._submitted(event, body, unix_ms)
                case SubmissionRevoked():
                    return Applied(event, state.revoke(event.key))
                case _:
                    return self._changed(event, body, unix_ms)
        except Refuse as refuse:
            reply = refuse.reply
            if not isinstance(event, JobSubmitted | SubmissionRevoked | TimePassed):
                reply = msgspec.structs.replace(reply, job=event.job)
            return Applied(event, reply)

    def encode_reply(self, reply: object) -> bytes:
        return _encoder.encode(reply)

    def _changed(self, event: JobEvent, body: bytes, unix_ms: int) -> Applied:
        """Apply an event of a job that exists."""
        job = self._state.jobs.get(event.job)
        if job is None:
            raise Refuse(Code.UNKNOWN_JOB, f"no job {event.job!r} here")
        if job.has_ended and not isinstance(event, JobReported):
            is_same_end = isinstance(event, JobFinished) and event.status is job.status
            is_cancelled = isinstance(event, CancelRequested) and job.status is JobStatus.CANCELLED
            if not is_same_end and not is_cancelled:
                raise Refuse(Code.TERMINAL, f"job {job.id} is {job.status.value}")
            is_new = False
        else:
            is_new = TRANSITIONS[type(event)](job, event, self._state.now_ms)
        if not is_new:
            return Applied(event, _DUPLICATE)
        job.times.note_dates(unix_ms)
        if isinstance(event, Checkpointed):
            return Applied(event, _OK)  # too many, and too large, for the history
        kind = kind_of(event)
        if not isinstance(event, JobFinished):
            return Applied(event, _OK, ((job.id, kind, _for_history(event, body)),))
        # The full record moves to history; a row stays for a while.
        record, listed = _encoder.encode(job), ended_row(view_of(job, self._state.now_ms))
        job.strip()
        self._state.end(job, self._limits)
        return Applied(event, _OK, ((job.id, kind, record), listed))

    @property
    def state(self) -> object:
        return self._state

    def snapshot(self) -> bytes:
        return self._state.encode()

    def restore(self, data: bytes) -> None:
        self._state = _state_decoder.decode(data)

    def export_keys(self, is_moved: Callable[[str], bool]) -> bytes:
        """Hand over the records of the keys that move to another group, and forget them."""
        return self._state.export_keys(is_moved)

    def import_keys(self, data: bytes) -> None:
        """Take key records over. Keys that are known already stay as they are."""
        self._state.import_keys(data)

    # --- reads ----------------------------------------------------------------------------

    def job(self, job: str) -> Job | None:
        """Return the live state of a job. Callers must not change it."""
        return self._state.jobs.get(job)

    def jobs(self) -> Iterator[Job]:
        """Return the jobs that have not ended, oldest first."""
        return self._state.open_jobs()

    def ended_jobs(self) -> list[Job]:
        """Return the rows of jobs that have ended, oldest first."""
        return [self._state.jobs[job] for job in self._state.ended]

    def view(self, job: str, now_ms: int | None = None) -> JobView | None:
        """Return a job for people. `now_ms`: the time of the group, for ages; None: that of its
        last entry."""
        found = self._state.jobs.get(job)
        return None if found is None else view_of(found, now_ms or self._state.now_ms)

    def views(self, now_ms: int | None = None) -> list[JobView]:
        """Return every job, also ended ones that are still kept, oldest first."""
        return [view_of(job, now_ms or self._state.now_ms) for job in self._state.jobs.values()]

    def key(self, key: str) -> KeyRecord | None:
        return self._state.keys.get(key)

    # --- submissions ----------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, body: bytes, unix_ms: int) -> Applied:
        state = self._state
        earlier = state.earlier(event.key, event.digest)
        if earlier is not None:
            return Applied(event, earlier)
        problem = plan_problem(event.plan, size=len(body), workflows_max=self._limits.workflows)
        if problem is not None:
            raise Refuse(Code.INVALID, problem)
        state.make_room(self._limits)
        job = Job(
            id=job_id(self.scope, self.group, event.key),
            key=event.key,
            digest=event.digest,
            plan=event.plan,
            bundle=event.bundle,
            options=event.options,
            by=event.by,
            workflows={plan.name: WorkflowState() for plan in event.plan.workflows},
            times=JobTimes(submitted_ms=state.now_ms, submitted_unix_ms=unix_ms),
        )
        state.add(job)
        return Applied(event, Reply(ok=True, job=job.id), ((job.id, "submitted", body),))


def _for_history(event: JobEvent, body: bytes) -> bytes:
    """Return the event without its reports and context if they are large.

    What setup left is never kept: it may be a token.
    """
    if isinstance(event, WorkflowSetUp):
        return encode(msgspec.structs.replace(event, context=b""))
    if isinstance(event, PartEnded) and event.set_up:
        event = msgspec.structs.replace(event, set_up=b"")
        body = encode(event)
    if len(body) > _HISTORY_BYTES and isinstance(event, PartEnded):
        return encode(msgspec.structs.replace(event, report=b"", provided=[]))
    if len(body) > _HISTORY_BYTES and isinstance(event, AttemptRevoked):
        return encode(msgspec.structs.replace(event, report=b""))
    return body
