"""The messages between a pool and an executor, and their framing.

A frame is a 4-byte big-endian length and that many bytes of msgpack: one tagged struct,
keyed by field name, so a newer side may add fields with defaults. The same messages are
used below a local run and below a worker of a cluster. This module knows no socket.

The executor says `ExecutorHello` once. Then, for each slot of a workflow it is given, it answers
`PrepareSlot` with exactly one `SlotPrepared` or `SlotRefused`, and every `SlotPrepared` is followed
by exactly one `SlotFinished`, whether the slot was started, stopped or failed. Each `SlotReport`
in between is cumulative: losing one loses no statistics.
"""

from enum import Enum
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from hyperscale.errors import RunError
from hyperscale.plan import WorkflowPlan
from hyperscale.plan.status import PartStatus
from hyperscale.stats.report import Report

FRAME_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES = 4


class FrameError(RunError):
    """The peer sent what is not a frame of this protocol: drop it."""


class RefusalKind(Enum):
    INPUT = "input"  # the user's file or class is wrong: nothing ran
    FAILED = "failed"  # user code failed while the part was being prepared
    STOPPED = "stopped"  # stopped before it was ready


# --- to the executor ---------------------------------------------------------------------


class PrepareSlot(Struct, tag="prepare", frozen=True, kw_only=True):
    """Import the code, resolve and encode request parts, run setup hooks; do not start."""

    bundle: str  # path of the bundle; empty: `file` itself is imported
    file: str
    job: str = ""  # parts of the same one share what modules hold, those of others do not
    workflow: str
    plan: WorkflowPlan
    slot: int = 0
    slots: int = 1
    context: bytes = b""  # what `plan.context.encode_received` made; values in it are opaque
    log_level: str = "info"
    attempt: int = 1
    # Of the workflow's duration, what was run before, by an attempt that was lost.
    elapsed_s: float = 0.0
    iterations: int | None = None  # of this slot; None: its share of the plan's
    static: bool = True  # False: steps that need no interpreter are run by it all the same
    trace: bool = False  # print every request and response

    @property
    def offset_s(self) -> float:
        """Where in the workflow's duration it begins."""
        return self.plan.offset_s(self.elapsed_s)

    @property
    def run_s(self) -> float:
        """How long it runs."""
        return self.plan.duration_s - self.offset_s


class StartSlot(Struct, tag="start", frozen=True, kw_only=True):
    start_in_ms: float = 0.0


class RenewLease(Struct, tag="lease", frozen=True, kw_only=True):
    """Load may be generated until this instant of CLOCK_BOOTTIME, not longer."""

    deadline_boottime_ns: int


class StopSlot(Struct, tag="stop", frozen=True, kw_only=True):
    """No new step starts; those in flight get `grace_s`, then are cut."""

    reason: str
    grace_s: float


class ExitExecutor(Struct, tag="exit", frozen=True, kw_only=True):
    """Leave. A part still running is stopped first."""


# --- from the executor -------------------------------------------------------------------


class ExecutorHello(Struct, tag="hello", frozen=True, kw_only=True):
    pid: int


class SlotPrepared(Struct, tag="prepared", frozen=True, kw_only=True):
    pass


class SlotRefused(Struct, tag="refused", frozen=True, kw_only=True):
    error: str
    kind: RefusalKind
    hint: str = ""
    tainted: bool = False  # as in SlotFinished


class SlotReport(Struct, tag="report", frozen=True, kw_only=True):
    report: Report


class SlotTearingDown(Struct, tag="tearing_down", frozen=True, kw_only=True):
    """The virtual users are done; teardown and Provide hooks run now."""


class SlotFinished(Struct, tag="finished", frozen=True, kw_only=True):
    status: PartStatus
    report: Report
    error: str | None = None
    hint: str = ""  # what the user can do about `error`
    provided: bytes = b""  # context this part provides, see `values`
    # User code that ignored its cancellation still runs in the process: the pool ends the
    # process and starts another.
    tainted: bool = False

    @property
    def reason(self) -> str | None:
        """`error` and `hint` as one sentence, for people."""
        return f"{self.error} (hint: {self.hint})" if self.hint else self.error


# --- made by the pool, never on the wire ------------------------------------------------


class ExecutorOutput(Struct, frozen=True, kw_only=True):
    """What user code printed, whole lines where possible."""

    stream: str  # "stdout" or "stderr"
    text: str


class ExecutorDied(Struct, frozen=True, kw_only=True):
    """The executor ended while it held a slot and was not told to exit."""

    pid: int
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    blames_code: bool = False  # the slot's code is at fault: another executor would fail too


ToExecutor = PrepareSlot | StartSlot | RenewLease | StopSlot | ExitExecutor
FromExecutor = (
    ExecutorHello | SlotPrepared | SlotRefused | SlotReport | SlotTearingDown | SlotFinished
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
    """The message as one frame; `FrameError` if it is larger than any peer would take."""
    payload = _encoder.encode(message)
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a {type(message).__name__} message of {len(payload):,} bytes is over the limit of "
            f"{FRAME_BYTES_MAX:,}"
        )
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class ExecutorFrameDecoder(Generic[_Message]):
    """Bytes in, messages out. Never holds more than one frame and the bytes last fed."""

    def __init__(self, message_type: type[_Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type, dec_hook=_decode_report)
        self._buffer = bytearray()

    @property
    def is_mid_frame(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[_Message]:
        """The messages completed by `data`, in order.

        A frame announced as too long, or one that is no message, raises `FrameError`; the
        stream has no next boundary to find, so the connection is of no further use.
        """
        buffer = self._buffer
        buffer += data
        messages: list[_Message] = []
        start = 0
        while len(buffer) - start >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big")
            # Judged by its header: nothing is gathered for a frame that will be refused.
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
