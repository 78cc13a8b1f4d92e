"""The replicated state machine of global jobs: committed events in, replies out, no clock, no I/O.

Rules, beside those of keys and rows (`jobs.committed.job_table`):

- A datacenter gets one assignment of a job; another takes its place only if it definitely refused.
- The first end of an assignment counts; a result that comes after the end of the job is kept as
  late and is in no total.
- After a cancel nothing is assigned or started any more.
- A job ends when every assignment has ended, and the first such event wins.
"""

from collections.abc import Callable, Iterator

import msgspec

from hyperscale.gates.committed.events import (
    DatacenterFinished,
    DatacenterLost,
    GlobalCancelRequested,
    GlobalEvent,
    GlobalJobEvent,
    GlobalJobFinished,
    GlobalJobReported,
    GlobalJobSubmitted,
    decode_global,
    encode_global,
)
from hyperscale.gates.committed.job_row import global_view
from hyperscale.gates.committed.state import GlobalJob
from hyperscale.gates.committed.transitions import GLOBAL_TRANSITIONS
from hyperscale.jobs.committed.events import Code, JobStatus, Reply
from hyperscale.jobs.committed.job_table import JobTable, KeyRecord, Limits, Refuse
from hyperscale.jobs.committed.keys import job_id
from hyperscale.jobs.committed.plan_rules import plan_problem
from hyperscale.jobs.committed.state import JobTimes, ended_row
from hyperscale.wire.versions import CURRENT, AboveVersionError, Version, admitted

LATE = "late"  # kind of the history row with a result that came after the end of its job
_HISTORY_BYTES = 4096

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobTable[GlobalJob])
_OK = Reply(ok=True)
_DUPLICATE = Reply(ok=True, code=Code.DUPLICATE)


class GlobalApplied(msgspec.Struct, frozen=True):
    """What one committed entry did: the decoded event, and the answer to its proposer."""

    event: GlobalEvent | None
    reply: Reply
    history: tuple[tuple[str, str, bytes], ...] = ()

    @property
    def did_change(self) -> bool:
        return self.reply.ok and self.reply.code is not Code.DUPLICATE


class GlobalJobMachine:
    """The global jobs of one group of gates."""

    def __init__(self, scope: str, group: int, limits: Limits | None = None) -> None:
        self.scope = scope
        self.group = group
        self._limits = limits or Limits()
        self._table: JobTable[GlobalJob] = JobTable()

    # --- the ledger's side ----------------------------------------------------------------

    def apply(
        self,
        index: int,  # noqa: ARG002 -- the ledger's protocol
        time_ms: int,
        body: bytes,
        *,
        unix_ms: int = 0,
        version: Version = CURRENT,
    ) -> GlobalApplied:
        """Apply one committed entry. No content of an entry makes this raise."""
        try:
            event = admitted(decode_global(body), version)
        except (ValueError, RecursionError, AboveVersionError) as exc:
            reply = Reply(ok=False, code=Code.INVALID, error=f"not an event: {exc}")
            return GlobalApplied(None, reply)
        table = self._table
        table.now_ms = max(table.now_ms, time_ms)
        try:
            if isinstance(event, GlobalJobSubmitted):
                return self._submitted(event, body, unix_ms)
            return self._changed(event, body, unix_ms)
        except Refuse as refuse:
            reply = refuse.reply
            if not isinstance(event, GlobalJobSubmitted):
                reply = msgspec.structs.replace(reply, job=event.job)
            return GlobalApplied(event, reply)

    def _changed(self, event: GlobalJobEvent, body: bytes, unix_ms: int) -> GlobalApplied:
        job = self._table.jobs.get(event.job)
        if job is None:
            raise Refuse(Code.UNKNOWN_JOB, f"no global job {event.job!r} here")
        if job.has_ended and not isinstance(event, DatacenterFinished | GlobalJobReported):
            is_same_end = isinstance(event, GlobalJobFinished) and event.status is job.status
            is_cancelled = (
                isinstance(event, GlobalCancelRequested) and job.status is JobStatus.CANCELLED
            )
            if not is_same_end and not is_cancelled:
                raise Refuse(Code.TERMINAL, f"global job {job.id} is {job.status.value}")
            return GlobalApplied(event, _DUPLICATE)
        if not GLOBAL_TRANSITIONS[type(event)](job, event, self._table.now_ms):
            return GlobalApplied(event, _DUPLICATE)
        job.times.note_dates(unix_ms)
        kind = str(event.__struct_config__.tag)
        if isinstance(event, GlobalJobFinished):
            record, listed = _encoder.encode(job), ended_row(global_view(job, self._table.now_ms))
            job.strip()
            self._table.end(job, self._limits)
            return GlobalApplied(event, _OK, ((job.id, kind, record), listed))
        if isinstance(event, DatacenterFinished) and job.has_ended:
            return GlobalApplied(event, _OK, ((job.id, LATE, body),))
        return GlobalApplied(event, _OK, ((job.id, kind, _for_history(event, body)),))

    def _submitted(self, event: GlobalJobSubmitted, body: bytes, unix_ms: int) -> GlobalApplied:
        table = self._table
        earlier = table.earlier(event.key, event.digest)
        if earlier is not None:
            return GlobalApplied(event, earlier)
        problem = plan_problem(event.plan, size=len(body), workflows_max=self._limits.workflows)
        if problem is not None:
            raise Refuse(Code.INVALID, problem)
        table.make_room(self._limits)
        job = GlobalJob(
            id=job_id(self.scope, self.group, event.key),
            key=event.key,
            digest=event.digest,
            plan=event.plan,
            bundle=event.bundle,
            options=event.options,
            by=event.by,
            times=JobTimes(submitted_ms=table.now_ms, submitted_unix_ms=unix_ms),
        )
        table.add(job)
        return GlobalApplied(event, Reply(ok=True, job=job.id), ((job.id, "submitted", body),))

    def encode_reply(self, reply: object) -> bytes:
        return _encoder.encode(reply)

    @property
    def state(self) -> object:
        return self._table

    def snapshot(self) -> bytes:
        return self._table.encode()

    def restore(self, data: bytes) -> None:
        self._table = _decoder.decode(data)

    def export_keys(self, is_moved: Callable[[str], bool]) -> bytes:
        """Hand over the records of the keys that move to another group, and forget them."""
        return self._table.export_keys(is_moved)

    def import_keys(self, data: bytes) -> None:
        """Take key records over. Keys that are known already stay as they are."""
        self._table.import_keys(data)

    # --- reads ----------------------------------------------------------------------------

    def job(self, job: str) -> GlobalJob | None:
        """Return the live state of a job. Callers must not change it."""
        return self._table.jobs.get(job)

    def jobs(self) -> Iterator[GlobalJob]:
        """Return the jobs that have not ended, oldest first."""
        return self._table.open_jobs()

    def all_jobs(self) -> list[GlobalJob]:
        """Return every job, also ended ones that are still kept, oldest first."""
        return list(self._table.jobs.values())

    def key(self, key: str) -> KeyRecord | None:
        return self._table.keys.get(key)


def _for_history(event: GlobalJobEvent, body: bytes) -> bytes:
    """Return the event without its result if that is large: the final record has it."""
    if len(body) > _HISTORY_BYTES and isinstance(event, DatacenterFinished | DatacenterLost):
        return encode_global(msgspec.structs.replace(event, result=b""))
    return body
