"""Events of a group's log about jobs, and the machine's reply to each.

An event may be applied twice, late, or after its proposer was deposed: whether it changes anything
is decided when it is applied (`machine`). Reports and context are opaque bytes here.
"""

import hashlib
from enum import Enum

import msgspec
from msgspec import Struct, field

from hyperscale.jobs.messages import Isolation
from hyperscale.plan import Plan
from hyperscale.plan.changes import LoadChange
from hyperscale.plan.status import PartStatus


class JobStatus(Enum):
    SUBMITTED = "submitted"
    QUEUED = "queued"  # waits for cores; known to its leader, never committed
    DISPATCHING = "dispatching"
    RUNNING = "running"
    COMPLETING = "completing"  # every workflow has ended
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class GlobalPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a job that is a datacenter's part of a global job: which one, and when it begins."""

    job: str  # the id of the global job, which is the key of this one
    index: int = 0  # of the datacenter among those of the job: the slot of its merged reports
    waits: bool = True  # its first workflows begin when the gates say so


class JobOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the submitter chooses for the job as a whole."""

    timeout_s: float | None = None  # of the job, from submission to end
    dispatch_timeout_s: float = 300.0  # how long a workflow may wait for cores
    on_isolation: Isolation = Isolation.STOP
    log_level: str = "info"
    static: bool = True
    # Id of the secret parameters, which managers keep outside of the ledger. The manager that takes
    # the submission sets it.
    secrets: str = ""
    part_of: GlobalPart | None = None
    # Names of the managers' reporters that get the result; empty: all of them; None: none.
    report: tuple[str, ...] | None = None
    # The most cores of its workflows at once: what is left of the submitter's quota; 0: no limit.
    cores_max: int = 0


class JobSubmitted(Struct, tag="submitted", frozen=True, kw_only=True):
    """A client submitted a job. The job's id follows from the key."""

    key: str
    digest: str  # of plan, bundle and options: see `payload_digest`
    plan: Plan
    bundle: str = ""  # sha256
    options: JobOptions = field(default_factory=JobOptions)
    by: str = ""


class SubmissionRevoked(Struct, tag="key_revoked", frozen=True, kw_only=True):
    """A key that made no job yet is never to make one: its submission may still be on its way."""

    key: str
    reason: str


class JobReleased(Struct, tag="released", frozen=True, kw_only=True):
    """A part of a global job may begin: every datacenter is ready, or has had time enough."""

    job: str
    elapsed_s: float = 0.0  # how long the other datacenters have run: it joins for the rest


class LoadChanged(Struct, tag="changed", frozen=True, kw_only=True):
    """The load of a job is scaled, paused or resumed. Whether the change fits is decided when it is
    applied; from then on every attempt gets it, later ones included."""

    job: str
    change: LoadChange
    is_of_gates: bool = False
    """Of all datacenters: one that does not fit here is noted as taken, and changes nothing."""


class PartDispatch(Struct, frozen=True):
    """One part of a workflow, slots `first_slot` ... `first_slot + cores - 1`, and its worker."""

    first_slot: int
    cores: int
    worker: str


class WorkflowDispatched(Struct, tag="dispatched", frozen=True, kw_only=True):
    """A workflow is split into parts, and the first attempt of each is given to a worker.

    Committed once per workflow, before any worker hears of it.
    """

    job: str
    workflow: str
    parts: list[PartDispatch]
    within_job: bool = False  # its one part has no core: it shares those of other workflows
    rows: int = 0  # that each slot may use at first, of feeds that deal each row once


class PartRedispatched(Struct, tag="redispatched", frozen=True, kw_only=True):
    """The next attempt of a part is given to a worker. Committed before the worker hears of it."""

    job: str
    workflow: str
    part: int
    attempt: int  # the part's last attempt + 1
    worker: str
    within_job: bool = False  # as in WorkflowDispatched
    rows: int = 0  # as in WorkflowDispatched, beyond those that earlier attempts may have used


class RowGrant(Struct, frozen=True, kw_only=True):
    """How many rows each slot of an attempt has used, and the limit below which it may."""

    workflow: str
    part: int
    attempt: int
    used: list[int]
    limit: int


class RowsGranted(Struct, tag="rows", frozen=True, kw_only=True):
    """Attempts may use more rows of feeds that deal each row once. Committed before their workers
    hear of it: the next attempt of a part begins at its limit."""

    job: str
    grants: list[RowGrant]


class WorkflowSetUp(Struct, tag="set_up", frozen=True, kw_only=True):
    """Setup has run, and every part of the workflow starts with the context it left.

    The first counts. From now on setup does not run again, and the workflow is owed its teardown.
    """

    job: str
    workflow: str
    part: int
    attempt: int
    context: bytes


class TeardownDispatched(Struct, tag="teardown", frozen=True, kw_only=True):
    """No part of a workflow that was set up runs any more: its teardown is given to a worker.

    Committed before the worker hears of it. It is one more part, without load.
    """

    job: str
    workflow: str
    worker: str


class TeardownStarted(Struct, tag="teardown_started", frozen=True, kw_only=True):
    """A worker is about to be told to run the teardown: no other worker will run it."""

    job: str
    workflow: str
    part: int
    attempt: int


class AttemptFault(Enum):
    """What an attempt failed of. Decides for how long its worker gets no attempt of the part."""

    NONE = "none"  # no worker is to blame: it never ran, or was stopped
    WORKER_LOST = "worker_lost"  # the worker died, was silent, or has forgotten the attempt
    NOT_PREPARED = "not_prepared"
    EXECUTOR_DIED = "executor_died"
    REFUSED = "refused"  # the worker said that it cannot run the part
    TOO_LONG = "too_long"


class AttemptRevoked(Struct, tag="revoked", frozen=True, kw_only=True):
    """An attempt is given up; what it had reported stays in the totals as a segment."""

    job: str
    workflow: str
    part: int
    attempt: int
    reason: str
    report: bytes = b""  # its last statistics; empty: those of its last checkpoint
    elapsed_s: float = 0.0  # of the attempt, at that report
    iterations: int = 0
    gap_s: float = 0.0  # how long it may have sent load without reporting it
    requests_max: int = 0  # upper bound of what it sent in that time
    since_s: float = 0.0  # time since the start of the workflow when it began
    fault: AttemptFault = AttemptFault.WORKER_LOST
    rows_used: list[int] = field(default_factory=list)  # as in RowGrant, as far as it is known
    has_begun: bool = True  # False: it had no load, so it has used no row


class Checkpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    workflow: str
    part: int
    attempt: int
    elapsed_s: float
    iterations: int = 0
    report: bytes = b""
    age_s: float = 0.0  # how long before the checkpoint its load was last known
    since_s: float = 0.0  # time since the start of the workflow when it began
    workflow_age_s: float | None = None  # time since the start of the workflow at the checkpoint


class Checkpointed(Struct, tag="checkpointed", frozen=True, kw_only=True):
    """Progress of a job's running attempts, every 5 s."""

    job: str
    parts: list[Checkpoint]


class PartEnded(Struct, tag="finished_part", frozen=True, kw_only=True, omit_defaults=True):
    """An attempt ended with a result. It counts only if the attempt is still open."""

    job: str
    workflow: str
    part: int
    attempt: int
    status: PartStatus
    error: str | None = None
    report: bytes = b""
    provided: list[bytes] = field(default_factory=list)
    elapsed_s: float = 0.0
    was_saturated: bool = False
    gap_s: float = 0.0
    requests_max: int = 0
    set_up: bytes = b""  # what setup left, if this attempt ran it
    rows_used: list[int] = field(default_factory=list)  # as in RowGrant


class WorkflowEnded(Struct, tag="ended", frozen=True, kw_only=True):
    """A workflow ends for a reason that no part reported: it could not start, used up its
    retries, or took too long. Parts that still run are stopped."""

    job: str
    workflow: str
    reason: str
    status: JobStatus = JobStatus.FAILED  # FAILED, CANCELLED or TIMEOUT


class CancelRequested(Struct, tag="cancel", frozen=True, kw_only=True):
    """The job is to end early. The first cancel decides how; nothing starts after it."""

    job: str
    reason: str
    by: str = ""
    status: JobStatus = JobStatus.CANCELLED  # what the job ends as: CANCELLED, TIMEOUT, FAILED
    aborted_by: str = ""  # the workflow whose threshold ended the job
    workflow_reason: str = ""  # why that workflow ended; `reason` is about the job


class JobFinished(Struct, tag="finished", frozen=True, kw_only=True):
    """The job has ended. The first such event in log order wins."""

    job: str
    status: JobStatus
    reason: str = ""


class JobReported(Struct, tag="reported", frozen=True, kw_only=True, omit_defaults=True):
    """A manager has sent the result of an ended job to its reporters. The first one counts."""

    job: str
    by: str  # the manager
    sent: list[str] = field(default_factory=list)  # reporters that have taken the result
    failed: list[str] = field(default_factory=list)  # the others, each with the reason


class TimePassed(Struct, tag="time", frozen=True, kw_only=True):
    """Nothing has happened for a while. The entry carries the time of the group, so that a node
    that restarts and becomes leader soon knows how much of a timeout is over."""


JobEvent = (
    WorkflowDispatched
    | PartRedispatched
    | RowsGranted
    | WorkflowSetUp
    | TeardownDispatched
    | TeardownStarted
    | AttemptRevoked
    | Checkpointed
    | PartEnded
    | WorkflowEnded
    | JobReleased
    | LoadChanged
    | CancelRequested
    | JobFinished
    | JobReported
)
Event = JobSubmitted | SubmissionRevoked | JobEvent | TimePassed


class Code(Enum):
    """Why an event changed nothing, or what is special about the reply."""

    OK = "ok"
    DUPLICATE = "duplicate"  # it was so already; not an error
    INVALID = "invalid"  # not an event, or one that contradicts itself
    INVALID_KEY = "invalid_key"
    CONFLICT = "idempotency_key_conflict"
    REVOKED = "revoked"  # the submission was cancelled before it arrived
    CAPACITY = "capacity"  # too many jobs here now: try again later
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    UNKNOWN_PART = "unknown_part"
    TERMINAL = "terminal"  # the job, workflow or part has ended
    CANCELLING = "cancelling"
    STALE_ATTEMPT = "stale_attempt"


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine's reply to one event. `ok` False: nothing has changed."""

    ok: bool
    code: Code = Code.OK
    job: str = ""
    error: str = ""
    hint: str = ""  # what the submitter can do about the error
    was_duplicate: bool = False


_sorted = msgspec.msgpack.Encoder(order="deterministic")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)

encode = _encoder.encode
decode = _decoder.decode  # raises `msgspec.MsgspecError` if the bytes are no event
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def kind_of(event: Event) -> str:
    """Return the name of the event in the log and in history."""
    return str(event.__struct_config__.tag)


def payload_digest(plan: Plan, bundle: str, options: JobOptions) -> str:
    """Return a digest that a repeated key is checked against: equal for equal submissions.

    The id of the secrets is new in each submission. The timeout of a part of a global job is what
    is left of that job's time, so it shrinks with each repetition of the assignment."""
    timeout_s = options.timeout_s if options.part_of is None else None
    same = msgspec.structs.replace(options, secrets="", timeout_s=timeout_s)
    encoded = _sorted.encode((plan, bundle, same))
    return hashlib.sha256(encoded).hexdigest()[:32]
