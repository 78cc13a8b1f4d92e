"""The jobs of one group and the keys of their submissions: what every machine of jobs keeps.

A key makes one job: the same key with the same payload is the same job, with another payload a
conflict. Ended jobs stay for a while as rows; keys stay as long as the history. Encoded, a table
is the snapshot of its machine.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hyperscale.jobs.committed.events import Code, Reply
from hyperscale.jobs.committed.keys import KEY_HINT, key_problem

_KEYS_AT_ONCE = 8
_DAY_MS = 24 * 3600 * 1000


class Refuse(Exception):  # noqa: N818 -- a refusal is a reply, not an error
    """The event does not apply, and nothing has changed."""

    def __init__(self, code: Code, message: str, *, hint: str = "", job: str = "") -> None:
        super().__init__(message)
        self.reply = Reply(ok=False, code=code, error=message, hint=hint, job=job)


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one group's live state. The same on every replica."""

    jobs: int = 10_000  # that have not ended
    ended_jobs: int = 500  # kept as rows
    ended_ms: int = 10 * 60 * 1000
    keys: int = 200_000
    keys_ms: int = 30 * _DAY_MS  # as long as the history
    workflows: int = 1_000  # of one job


class KeyRecord(Struct, frozen=True, array_like=True):
    job: str
    digest: str
    submitted_ms: int


class KeyedJob(Protocol):
    """A job in a table. `key` and `digest` are those of its submission."""

    id: str
    key: str
    digest: str

    @property
    def ended_ms(self) -> int:
        """In the time of the group."""

    @property
    def has_ended(self) -> bool: ...


J = TypeVar("J", bound=KeyedJob)

_encoder = msgspec.msgpack.Encoder()
_keys_decoder = msgspec.msgpack.Decoder(dict[str, KeyRecord])


class JobTable(Struct, Generic[J], kw_only=True, omit_defaults=True):
    """Jobs by id, oldest first, and the records of keys."""

    schema: int = 1
    now_ms: int = 0  # the time of the group: the highest so far
    jobs: dict[str, J] = field(default_factory=dict)
    keys: dict[str, KeyRecord] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)  # ids of ended jobs, oldest first

    def encode(self) -> bytes:
        return _encoder.encode(self)

    def open_jobs(self) -> Iterator[J]:
        """Return the jobs that have not ended, oldest first."""
        return (job for job in self.jobs.values() if not job.has_ended)

    def earlier(self, key: str, digest: str) -> Reply | None:
        """Return the reply to a submission that was made before; None if its key is new.

        Raise `Refuse` if the key is no key, or belongs to another submission."""
        if (problem := key_problem(key)) is not None:
            raise Refuse(Code.INVALID_KEY, problem, hint=KEY_HINT)
        known = self.keys.get(key)
        if known is None:
            return None
        if not known.job:
            raise Refuse(Code.REVOKED, "the submission was cancelled before it arrived")
        if known.digest == digest:
            return Reply(ok=True, code=Code.DUPLICATE, job=known.job, was_duplicate=True)
        raise Refuse(
            Code.CONFLICT,
            f"the key {key!r} was used for another submission, job {known.job}",
            hint="take a new key for a new job",
            job=known.job,
        )

    def revoke(self, key: str) -> Reply:
        """See to it that a key makes no job. The reply names the job if it has made one."""
        if (problem := key_problem(key)) is not None:
            raise Refuse(Code.INVALID_KEY, problem, hint=KEY_HINT)
        known = self.keys.get(key)
        if known is None:
            self.keys[key] = KeyRecord("", "", self.now_ms)
            return Reply(ok=True)
        return Reply(ok=not known.job, code=Code.DUPLICATE, job=known.job)

    def make_room(self, limits: Limits) -> None:
        """Raise `Refuse` if the group has no room for one more job."""
        self.evict(limits)
        if len(self.jobs) - len(self.ended) >= limits.jobs:
            raise Refuse(
                Code.CAPACITY,
                f"capacity exceeded: {limits.jobs:,} jobs have not ended yet",
                hint="try again later",
            )

    def add(self, job: J) -> None:
        if job.id in self.jobs:
            # The key's record was handed over or expired while the job's row stayed.
            raise Refuse(Code.CONFLICT, f"job {job.id} is still here")
        self.jobs[job.id] = job
        self.keys[job.key] = KeyRecord(job.id, job.digest, self.now_ms)

    def end(self, job: J, limits: Limits) -> None:
        """Note that a job has ended: its row may be dropped later."""
        self.ended.append(job.id)
        self.evict(limits)

    def evict(self, limits: Limits) -> None:
        """Drop rows of jobs that ended long ago, and keys older than history."""
        ended = self.ended
        gone = max(0, len(ended) - limits.ended_jobs)
        while gone < len(ended):
            if self.jobs[ended[gone]].ended_ms + limits.ended_ms > self.now_ms:
                break
            gone += 1
        for job in ended[:gone]:
            del self.jobs[job]
        del ended[:gone]
        oldest = next(iter(self.keys.values()), None)
        is_full = len(self.keys) > limits.keys
        if oldest is None or not (is_full or oldest.submitted_ms + limits.keys_ms <= self.now_ms):
            return
        # A few at a time: each submission adds one, so this keeps up.
        for key, record in list(islice(self.keys.items(), _KEYS_AT_ONCE)):
            is_old = record.submitted_ms + limits.keys_ms <= self.now_ms
            if (is_old or len(self.keys) > limits.keys) and record.job not in self.jobs:
                del self.keys[key]

    def export_keys(self, is_moved: Callable[[str], bool]) -> bytes:
        """Hand over the records of the keys that move to another group, and forget them."""
        keys = self.keys
        moved = {key: keys.pop(key) for key in list(keys) if is_moved(key)}
        # Groups count their time from different instants: ages travel.
        return _encoder.encode(_shifted(moved, -self.now_ms))

    def import_keys(self, data: bytes) -> None:
        """Take key records over. Keys that are known already stay as they are."""
        for key, record in _shifted(_keys_decoder.decode(data), self.now_ms).items():
            self.keys.setdefault(key, record)


def _shifted(keys: dict[str, KeyRecord], by_ms: int) -> dict[str, KeyRecord]:
    """Return key records in another group's time."""
    return {
        key: replace(record, submitted_ms=record.submitted_ms + by_ms)
        for key, record in keys.items()
    }
