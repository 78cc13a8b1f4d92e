"""The messages between a pool and an executor, and their framing.

A frame is a 4-byte big-endian length and that many bytes of msgpack: one tagged struct, keyed by
field name. Local runs and the workers of a cluster use the same messages.

The executor sends `ExecutorHello` once. It answers each `PrepareSlot` with exactly one
`SlotPrepared` or `SlotRefused` (after `SlotSetUp` and `ShareContext`, if its role is to run setup
or to await it), and each `SlotPrepared` is followed by exactly one `SlotFinished`,
whether the slot was started, stopped or failed. Each `SlotReport` in between is cumulative: losing
one loses no statistics.
"""

from enum import Enum
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from hyperscale._native import Report
from hyperscale.errors import RunError
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.changes import AppliedChange
from hyperscale.plan.rows import RowBounds
from hyperscale.plan.status import PartStatus

FRAME_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES = 4


class FrameError(RunError):
    """A frame that is too large, or that is no message of this protocol."""


class RefusalKind(Enum):
    INPUT = "input"  # the user's file or class is wrong: nothing ran
    FAILED = "failed"  # user code failed while the slot was prepared
    STOPPED = "stopped"  # stopped before it was ready


class SlotRole(Enum):
    """What a slot does besides its load."""

    LOAD = "load"  # nothing: setup has run, or there is none
    SET_UP = "set_up"  # it runs the setup hooks of the workflow
    AWAIT_SETUP = "await_setup"  # another slot does
    TEAR_DOWN = "tear_down"  # it runs the teardown hooks of the workflow, and has no load


def role_of(plan: WorkflowPlan, slot: int, set_up: bytes) -> SlotRole:
    """Return the role of a slot with load; `set_up` is empty until setup has run."""
    if set_up or not plan.is_set_up_once:
        return SlotRole.LOAD
    return SlotRole.AWAIT_SETUP if slot else SlotRole.SET_UP


# --- to the executor ---------------------------------------------------------------------


class PrepareSlot(Struct, tag="prepare", frozen=True, kw_only=True):
    """Import the code, resolve and encode request parts, run setup hooks; do not start."""

    bundle: str  # path of the bundle; empty: `file` itself is imported
    file: str
    job: str = ""  # slots of one job share imported modules, those of different jobs do not
    workflow: str
    plan: WorkflowPlan
    slot: int = 0
    slots: int = 1
    role: SlotRole = SlotRole.LOAD
    context: bytes = b""  # what `plan.context.encode_received` made; values in it are opaque
    set_up: bytes = b""  # what `plan.context.encode_set_up` made; empty: setup has not run
    log_level: str = "info"
    elapsed_s: float = 0.0  # since the start of the workflow, when the last attempt ended
    iterations: int | None = None  # of this slot; None: its share of the plan's
    static: bool = True  # False: static steps run in Python too
    trace: bool = False  # print every request and response
    parameters: dict[str, str | int | float | bool] = {}  # values of `Param`s, by name
    secrets: dict[str, str] = {}  # values of secret ones: masked in everything that is shown

    # All changes of the load so far, in the own time of the slot (`plan.changes`).
    changes: list[AppliedChange] = []
    # Of a feed whose rows are dealt once over a cluster; None: the slot may use all its rows.
    rows: RowBounds | None = None


class ShareContext(Struct, tag="share", frozen=True, kw_only=True):
    """Setup has run, and this is the context it left: go on preparing the slot."""

    context: bytes


class StartSlot(Struct, tag="start", frozen=True, kw_only=True):
    start_in_ms: float = 0.0
    # Time since the start of the workflow, when the slot starts. None: `elapsed_s` of the slot.
    since_s: float | None = None


class ChangeSlot(Struct, tag="change", frozen=True, kw_only=True):
    """The load is changed: these are all changes so far, as in PrepareSlot."""

    changes: list[AppliedChange]


class GrantSlotRows(Struct, tag="rows", frozen=True, kw_only=True):
    """The slot may use its rows below this limit, which counts as in `RowBounds`."""

    limit: int


class RenewLease(Struct, tag="lease", frozen=True, kw_only=True):
    """Generate load until this time of CLOCK_BOOTTIME, not longer."""

    deadline_boottime_ns: int


class StopSlot(Struct, tag="stop", frozen=True, kw_only=True):
    """Start no new step; cut the steps in flight after `grace_s`."""

    reason: str
    grace_s: float


# --- from the executor -------------------------------------------------------------------


class ExecutorHello(Struct, tag="hello", frozen=True, kw_only=True):
    boxed: str = ""  # what is in force of its box; empty without one


class SlotPrepared(Struct, tag="prepared", frozen=True, kw_only=True):
    pass


class SlotSetUp(Struct, tag="set_up", frozen=True, kw_only=True):
    """The slot waits for `ShareContext`. With `context` it has run the setup hooks: from
    now on the receiver must have the teardown hooks run."""

    context: bytes = b""


class SlotRefused(Struct, tag="refused", frozen=True, kw_only=True):
    error: str
    kind: RefusalKind
    hint: str = ""
    tainted: bool = False  # as in SlotFinished


class SlotReport(Struct, tag="report", frozen=True, kw_only=True):
    report: Report
    drawn: int = 0  # rows that the slot has used, counted as in `RowBounds`


class SlotTearingDown(Struct, tag="tearing_down", frozen=True, kw_only=True):
    """The virtual users are done; teardown and Provide hooks run now."""


class SlotFinished(Struct, tag="finished", frozen=True, kw_only=True):
    status: PartStatus
    report: Report
    error: str | None = None
    hint: str = ""  # what the user can do about `error`
    provided: bytes = b""  # encoded context for other workflows, see `values`
    # User code that ignored its cancellation still runs: the pool replaces the process.
    tainted: bool = False
    drawn: int = 0  # as in SlotReport

    @property
    def reason(self) -> str | None:
        """`error` and `hint` as one sentence."""
        return f"{self.error} (hint: {self.hint})" if self.hint else self.error


# --- made by the pool, never on the wire ------------------------------------------------


class ExecutorOutput(Struct, frozen=True, kw_only=True):
    """What user code printed, whole lines where possible."""

    stream: str  # "stdout" or "stderr"
    text: str


class ExecutorDied(Struct, frozen=True, kw_only=True):
    """The executor ended while it held a slot and was not asked to exit."""

    reason: str
    blames_code: bool = False  # the slot's code is at fault: another executor would fail too


ToExecutor = (
    PrepareSlot | ShareContext | StartSlot | ChangeSlot | GrantSlotRows | RenewLease | StopSlot
)
FromExecutor = (
    ExecutorHello
    | SlotSetUp
    | SlotPrepared
    | SlotRefused
    | SlotReport
    | SlotTearingDown
    | SlotFinished
)
ExecutorEvent = FromExecutor | ExecutorOutput | ExecutorDied

_Message = TypeVar("_Message")


def _encode_report(value: object) -> bytes:
    if not isinstance(value, Report):
        raise NotImplementedError(f"a {type(value).__name__} does not travel")
    return value.encode()


def _decode_report(_: type, data: bytes) -> Report:
    return Report.decode(data)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_report)


def encode_frame(message: ToExecutor | FromExecutor) -> bytes:
    """Return the message as one frame. Raises `FrameError` if it is too large."""
    payload = _encoder.encode(message)
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a {type(message).__name__} message of {len(payload):,} bytes is over the limit of "
            f"{FRAME_BYTES_MAX:,}"
        )
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class ExecutorFrameDecoder(Generic[_Message]):
    """Decodes a stream of frames. Holds at most one frame and the bytes last fed."""

    def __init__(self, message_type: type[_Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type, dec_hook=_decode_report)
        self._buffer = bytearray()

    @property
    def is_mid_frame(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[_Message]:
        """Return the messages that `data` completes, in order.

        Raises `FrameError` for a frame that is too long or is no message; the decoder cannot find
        the next frame after that.
        """
        buffer = self._buffer
        buffer += data
        messages: list[_Message] = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
            # Refused by its header: no bytes are collected for a frame that is too long.
            if size > FRAME_BYTES_MAX:
                raise FrameError(
                    f"a frame of {size:,} bytes is over the limit of {FRAME_BYTES_MAX:,}"
                )
            end = start + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            payload = bytes(memoryview(buffer)[start + _LENGTH_BYTES : end])
            try:
                messages.append(self._decoder.decode(payload))
            except msgspec.MsgspecError as error:
                raise FrameError(f"a frame that is no message: {error}") from error
            start = end
        if start:
            del buffer[:start]
        return messages


def to_executor_decoder() -> ExecutorFrameDecoder[ToExecutor]:
    return ExecutorFrameDecoder(ToExecutor)  # type: ignore[arg-type]  # a union is no `type` to mypy


def from_executor_decoder() -> ExecutorFrameDecoder[FromExecutor]:
    return ExecutorFrameDecoder(FromExecutor)  # type: ignore[arg-type]  # as above
