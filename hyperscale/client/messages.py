"""What clients and operators say to managers about jobs. Kinds 450-479.

Any manager answers for any job: one that does not lead the job's group passes the question on,
and the answer back. A submission may be repeated with its key as often as need be. A failure
that carries a `code` is definite; a lost connection is not: ask again, elsewhere.
"""

from msgspec import Struct, field

from hyperscale.jobs.committed.events import JobOptions
from hyperscale.jobs.committed.state import JobView
from hyperscale.plan import Plan
from hyperscale.stats.view import RunView
from hyperscale.wire.registry import MessagePriority, SizeClass, message, nested
from hyperscale.wire.roles import Role

_ASKING = frozenset({Role.CLIENT, Role.OPERATOR, Role.MANAGER})
_MANAGERS = frozenset({Role.MANAGER})
NEEDS_BUNDLE = "needs_bundle"

BLOB_CHUNK_BYTES = 512 * 1024


# -- bundles ------------------------------------------------------------------------------


@message(
    kind=450,
    priority=MessagePriority.HIGH,
    size=SizeClass.MEDIUM,
    senders=_ASKING,
    rate_per_10s=5_000,
)
class PutBlob(Struct, frozen=True, kw_only=True):
    """A piece of a bundle, in order from offset 0. -> PutBlobReply. An empty piece asks how far
    it is."""

    sha256: str
    size: int
    offset: int
    data: bytes = b""


@message(kind=451, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class PutBlobReply(Struct, frozen=True, kw_only=True):
    """Send from `offset` on; complete when that is the whole size, and then it is on disk."""

    offset: int
    is_complete: bool


@message(kind=452, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class KeepBlob(Struct, frozen=True, kw_only=True):
    """From one manager to another: fetch this from me and keep it. -> PutBlobReply"""

    sha256: str
    size: int


# -- jobs ---------------------------------------------------------------------------------


@message(kind=453, priority=MessagePriority.HIGH, size=SizeClass.LARGE, senders=_ASKING)
class SubmitJob(Struct, frozen=True, kw_only=True):
    """-> SubmitJobReply. The bundle must be there before (`PutBlob`); an empty one means none."""

    key: str
    plan: Plan
    bundle: str = ""
    options: JobOptions = field(default_factory=JobOptions)
    by: str = ""


@message(kind=454, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class SubmitJobReply(Struct, frozen=True, kw_only=True):
    """`accepted`: the job is committed. `code` and `error` say why not (`jobs.events.Code`, or
    `NEEDS_BUNDLE`: put it first)."""

    accepted: bool
    job: str = ""
    key: str = ""
    was_duplicate: bool = False
    original_job_id: str = ""
    code: str = ""
    error: str = ""
    retry_after_s: float = 0.0
    group: int = 0
    index: int = 0
    """Of the commit: a `session` read with it sees the job on any manager."""


@message(kind=455, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_ASKING)
class GetJob(Struct, frozen=True, kw_only=True):
    """-> GetJobReply"""

    job: str
    read: str = "strong"


@message(kind=456, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class GetJobReply(Struct, frozen=True, kw_only=True):
    """`job` None: there is none of that name. `live` while it runs."""

    job: JobView | None = None
    live: RunView | None = None


@nested
class OutputLine(Struct, frozen=True, kw_only=True):
    """What user code printed on a worker."""

    worker: str
    workflow: str
    slot: int
    stream: str
    text: str
    part: int = 0
    attempt: int = 0
    number: int = 0
    """Among those of the attempt, each its own; 0: an older node, which counts none."""


@message(kind=457, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_ASKING)
class WatchJob(Struct, frozen=True, kw_only=True):
    """Answered by a stream of `WatchJobUpdate`; the last one says that the job has ended.

    The stream breaks when the job gets another leader: watch again, through any manager."""

    job: str


@message(kind=458, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class WatchJobUpdate(Struct, frozen=True, kw_only=True):
    job: JobView
    live: RunView | None = None
    output: list[OutputLine] = field(default_factory=list)


@message(kind=459, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_ASKING)
class CancelJob(Struct, frozen=True, kw_only=True):
    """-> CancelJobReply. Again is harmless."""

    job: str
    reason: str = ""
    by: str = ""


@message(kind=460, priority=MessagePriority.CRITICAL, size=SizeClass.SMALL, senders=_MANAGERS)
class CancelJobReply(Struct, frozen=True, kw_only=True):
    """`accepted`: the cancel is committed, or the job had been cancelled before. Otherwise the
    job had ended (`status` says as what) or `error` says why not."""

    accepted: bool
    status: str = ""
    code: str = ""
    error: str = ""


@message(kind=461, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_ASKING)
class ListJobs(Struct, frozen=True, kw_only=True):
    """-> ListJobsReply, newest first."""

    limit: int = 100
    live_only: bool = False
    is_relayed: bool = False
    """From another manager: answer for the groups led here alone."""


@message(kind=462, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class ListJobsReply(Struct, frozen=True, kw_only=True):
    jobs: list[JobView] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Managers that did not answer: jobs they lead may be missing."""


@message(kind=463, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_ASKING)
class GetJobRecord(Struct, frozen=True, kw_only=True):
    """The final record of a job that has ended (`jobs.state.decode_job`), in `Chunk`s. Fails
    with the code `unknown_job` or `not_ended`."""

    job: str


# -- workers and nodes --------------------------------------------------------------------


@message(kind=464, priority=MessagePriority.NORMAL, size=SizeClass.SMALL, senders=_ASKING)
class ListWorkers(Struct, frozen=True, kw_only=True):
    """-> ListWorkersReply"""


@nested
class WorkerRun(Struct, frozen=True, kw_only=True):
    """What a worker runs: its part of a workflow."""

    job: str
    workflow: str
    part: int
    attempt: int
    cores: int
    is_shared: bool = False
    """Beside others: no core was free, and its load had to come back."""


@nested
class WorkerRow(Struct, frozen=True, kw_only=True):
    worker: str
    state: str  # as membership sees it
    address: str = ""
    cores: int = 0
    free: int = 0
    is_draining: bool = False
    runs: list[WorkerRun] = field(default_factory=list)


@message(kind=465, priority=MessagePriority.NORMAL, size=SizeClass.LARGE, senders=_MANAGERS)
class ListWorkersReply(Struct, frozen=True, kw_only=True):
    workers: list[WorkerRow] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Workers that are there and have not told the allocator what they run, or nobody could ask
    it: their `runs` are missing."""


@message(kind=466, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_ASKING)
class DrainNode(Struct, frozen=True, kw_only=True):
    """Takes a worker or a manager out of service without losing anything. -> DrainNodeReply"""

    node: str


@message(kind=467, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class DrainNodeReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`left` is what it still has: runs of a worker, groups of a manager. Ask again for news.

    `refused`: why it cannot be spared, and `hint` what to do about that.
    """

    left: int
    refused: str = ""
    hint: str = ""


@message(kind=468, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetQueueRoom(Struct, frozen=True, kw_only=True):
    """From one manager to the one that grants cores: may another job wait? -> GetQueueRoomReply"""


@message(kind=469, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetQueueRoomReply(Struct, frozen=True, kw_only=True):
    """`room` for so many more workflows; `waiting` are in the queue."""

    room: int
    waiting: int = 0


@message(kind=470, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetJobOfKey(Struct, frozen=True, kw_only=True):
    """Ask the leader of a key's group which job the key made. -> GetJobOfKeyReply"""

    key: str


@message(kind=471, priority=MessagePriority.HIGH, size=SizeClass.SMALL, senders=_MANAGERS)
class GetJobOfKeyReply(Struct, frozen=True, kw_only=True):
    """The job the key has made; empty: none."""

    job: str = ""
