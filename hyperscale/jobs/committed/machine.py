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

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from hyperscale.jobs.committed.events import (
    AttemptRevoked,
    CancelRequested,
    Checkpointed,
    Code,
    Event,
    JobEvent,
    JobFinished,
    JobStatus,
    JobSubmitted,
    PartEnded,
    Reply,
    WorkflowSetUp,
    decode,
    encode,
    kind_of,
)
from hyperscale.jobs.committed.keys import KEY_HINT, job_id, key_problem
from hyperscale.jobs.committed.state import JOB_ENDS, Job, JobView, WorkflowState, view_of
from hyperscale.jobs.committed.transitions import TRANSITIONS, Refuse
from hyperscale.plan.dag import find_cycle

_SUBMISSION_BYTES_MAX = 4 * 1024 * 1024
_HISTORY_BYTES = 4096  # larger events are kept in history without reports and context
_KEYS_AT_ONCE = 8
_DAY_MS = 24 * 3600 * 1000


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one group's live state. The same on every replica."""

    jobs: int = 10_000  # that have not ended
    ended_jobs: int = 500  # kept as rows
    ended_ms: int = 10 * 60 * 1000
    keys: int = 200_000
    keys_ms: int = 30 * _DAY_MS  # as long as the history
    workflows: int = 1_000  # of one job


class Applied(NamedTuple):
    """What one committed entry did: the decoded event, and the answer to its proposer."""

    event: Event | None
    """None: the entry could not be decoded."""
    reply: Reply
    history: Sequence[tuple[str, str, bytes]] = ()  # job, kind, data: rows for the audit


class KeyRecord(Struct, frozen=True, array_like=True):
    job: str
    digest: str
    submitted_ms: int


class _State(Struct, kw_only=True):
    """The whole state: encoded, this is the snapshot."""

    schema: int = 1
    now_ms: int = 0  # the highest stamp so far
    jobs: dict[str, Job] = field(default_factory=dict)
    keys: dict[str, KeyRecord] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)  # ids of ended jobs, oldest first


_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(_State)
_keys_decoder = msgspec.msgpack.Decoder(dict[str, KeyRecord])

_OK = Reply(ok=True)
_DUPLICATE = Reply(ok=True, code=Code.DUPLICATE)


class JobMachine:
    """The jobs of one group."""

    def __init__(self, scope: str, group: int, limits: Limits | None = None) -> None:
        self.scope = scope
        self.group = group
        self._limits = limits or Limits()
        self._state = _State()

    # --- the ledger's side ----------------------------------------------------------------

    def apply(self, index: int, stamp_ms: int, body: bytes) -> Applied:  # noqa: ARG002 -- the ledger's protocol
        """Apply one committed entry. No content of an entry makes this raise."""
        try:
            event = decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
            return Applied(None, Reply(ok=False, code=Code.INVALID, error=f"not an event: {exc}"))
        state = self._state
        state.now_ms = max(state.now_ms, stamp_ms)
        try:
            if isinstance(event, JobSubmitted):
                return self._submitted(event, body)
            return self._changed(event, body)
        except Refuse as refuse:
            reply = refuse.reply
            if not isinstance(event, JobSubmitted):
                reply = msgspec.structs.replace(reply, job=event.job)
            return Applied(event, reply)

    def encode_reply(self, reply: object) -> bytes:
        return _encoder.encode(reply)

    def _changed(self, event: JobEvent, body: bytes) -> Applied:
        """Apply an event of a job that exists."""
        job = self._state.jobs.get(event.job)
        if job is None:
            raise Refuse(Code.UNKNOWN_JOB, f"no job {event.job!r} here")
        if job.has_ended:
            is_same_end = isinstance(event, JobFinished) and event.status is job.status
            is_cancelled = isinstance(event, CancelRequested) and job.status is JobStatus.CANCELLED
            if not is_same_end and not is_cancelled:
                raise Refuse(Code.TERMINAL, f"job {job.id} is {job.status.value}")
            is_new = False
        else:
            is_new = TRANSITIONS[type(event)](job, event, self._state.now_ms)
        if not is_new:
            return Applied(event, _DUPLICATE)
        if isinstance(event, Checkpointed):
            return Applied(event, _OK)  # too many, and too large, for the history
        kind = kind_of(event)
        if not isinstance(event, JobFinished):
            return Applied(event, _OK, ((job.id, kind, _for_history(event, body)),))
        # The full record moves to history; a row stays for a while.
        record = _encoder.encode(job)
        job.strip()
        self._state.ended.append(job.id)
        self._evict()
        return Applied(event, _OK, ((job.id, kind, record),))

    def snapshot(self) -> bytes:
        return _encoder.encode(self._state)

    def restore(self, data: bytes) -> None:
        self._state = _state_decoder.decode(data)

    def digest(self) -> bytes:
        """Hash the whole state afresh, so that a damaged value shows."""
        return hashlib.blake2b(_encoder.encode(self._state), digest_size=16).digest()

    def export_keys(self, is_moved: Callable[[str], bool]) -> bytes:
        """Hand over the records of the keys that move to another group, and forget them."""
        keys = self._state.keys
        moved = {key: keys.pop(key) for key in list(keys) if is_moved(key)}
        return _encoder.encode(moved)

    def import_keys(self, data: bytes) -> None:
        """Take key records over. Keys that are known already stay as they are."""
        for key, record in _keys_decoder.decode(data).items():
            self._state.keys.setdefault(key, record)

    # --- reads ----------------------------------------------------------------------------

    def job(self, job: str) -> Job | None:
        """Return the live state of a job. Callers must not change it."""
        return self._state.jobs.get(job)

    def jobs(self) -> Iterator[Job]:
        """Return the jobs that have not ended, oldest first."""
        return (job for job in self._state.jobs.values() if job.status not in JOB_ENDS)

    def view(self, job: str) -> JobView | None:
        found = self._state.jobs.get(job)
        return None if found is None else view_of(found)

    def views(self) -> list[JobView]:
        """Return every job, also ended ones that are still kept, oldest first."""
        return [view_of(job) for job in self._state.jobs.values()]

    def key(self, key: str) -> KeyRecord | None:
        return self._state.keys.get(key)

    # --- submissions ----------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, body: bytes) -> Applied:
        state = self._state
        if (problem := key_problem(event.key)) is not None:
            raise Refuse(Code.INVALID_KEY, problem, hint=KEY_HINT)
        known = state.keys.get(event.key)
        if known is not None:
            if known.digest == event.digest:
                reply = Reply(ok=True, code=Code.DUPLICATE, job=known.job, was_duplicate=True)
                return Applied(event, reply)
            raise Refuse(
                Code.CONFLICT,
                f"the key {event.key!r} was used for another submission, job {known.job}",
                hint="take a new key for a new job",
                job=known.job,
            )
        if (problem := self._plan_problem(event, len(body))) is not None:
            raise Refuse(Code.INVALID, problem)
        self._evict()
        if len(state.jobs) - len(state.ended) >= self._limits.jobs:
            raise Refuse(
                Code.CAPACITY,
                f"capacity exceeded: {self._limits.jobs:,} jobs have not ended yet",
                hint="try again later",
            )
        job = Job(
            id=job_id(self.scope, self.group, event.key),
            key=event.key,
            digest=event.digest,
            plan=event.plan,
            bundle=event.bundle,
            options=event.options,
            by=event.by,
            workflows={plan.name: WorkflowState() for plan in event.plan.workflows},
            submitted_ms=state.now_ms,
        )
        if job.id in state.jobs:
            # The key's record was handed over or expired while the job's row stayed.
            raise Refuse(Code.CONFLICT, f"job {job.id} is still here")
        state.jobs[job.id] = job
        state.keys[event.key] = KeyRecord(job.id, event.digest, state.now_ms)
        return Applied(event, Reply(ok=True, job=job.id), ((job.id, "submitted", body),))

    def _plan_problem(self, event: JobSubmitted, size: int) -> str | None:
        workflows = event.plan.workflows
        names = [workflow.name for workflow in workflows]
        if not names:
            return "the job has no workflows"
        if size > _SUBMISSION_BYTES_MAX:
            return f"the submission has {size:,} bytes, more than {_SUBMISSION_BYTES_MAX:,}"
        if len(names) > self._limits.workflows:
            return f"the job has {len(names):,} workflows, more than {self._limits.workflows:,}"
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            return f"two workflows are called {twice!r}"
        after = {workflow.name: workflow.depends for workflow in workflows}
        for name, depends in after.items():
            for other in depends:
                if other not in after:
                    return f"{name} depends on {other!r}, which is not a workflow of the job"
        cycle = find_cycle(after) if any(after.values()) else None
        return None if cycle is None else f"workflows wait for each other: {' -> '.join(cycle)}"

    def _evict(self) -> None:
        """Drop rows of jobs that ended long ago, and keys older than history."""
        state, limits = self._state, self._limits
        ended = state.ended
        gone = max(0, len(ended) - limits.ended_jobs)
        while gone < len(ended):
            if state.jobs[ended[gone]].ended_ms + limits.ended_ms > state.now_ms:
                break
            gone += 1
        for job in ended[:gone]:
            del state.jobs[job]
        del ended[:gone]
        oldest = next(iter(state.keys.values()), None)
        is_full = len(state.keys) > limits.keys
        if oldest is None or not (is_full or oldest.submitted_ms + limits.keys_ms <= state.now_ms):
            return
        # A few at a time: each submission adds one, so this keeps up.
        for key, record in list(islice(state.keys.items(), _KEYS_AT_ONCE)):
            is_old = record.submitted_ms + limits.keys_ms <= state.now_ms
            if (is_old or len(state.keys) > limits.keys) and record.job not in state.jobs:
                del state.keys[key]


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
