"""What a supervisor and an executor say to each other, and how it is framed.

A frame is a 4-byte big-endian length and that many bytes of msgpack: one tagged struct,
keyed by field name, so a newer side may add fields with defaults. The same messages are
used below a local run and below a worker of a cluster. This module knows no socket.

The conversation: `Hello` once; then, for each part of a workflow the executor is given,
`Prepare` is answered by exactly one `Prepared` or `Refused`, and every `Prepared` ends in
exactly one `Finished`, whether it was started, stopped, or failed. `Report`s in between are
cumulative; losing any of them loses nothing.
"""

from enum import Enum
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from hyperscale.errors import RunError
from hyperscale.plan import WorkflowPlan
from hyperscale.stats.report import PartReport

FRAME_BYTES_MAX = 16 * 1024 * 1024
_LENGTH_BYTES = 4


class FrameError(RunError):
    """The peer sent what is not a frame of this protocol: drop it."""


class PartStatus(Enum):
    COMPLETED = "completed"
    STOPPED = "stopped"  # told to, before its time; `error` holds the reason
    FAILED = "failed"


class RefusalKind(Enum):
    INPUT = "input"  # the user's file or class is wrong: nothing ran
    FAILED = "failed"  # user code failed while the part was being prepared
    STOPPED = "stopped"  # told to stop before it was ready


# --- to the executor ---------------------------------------------------------------------


class Prepare(Struct, tag="prepare", frozen=True, kw_only=True):
    """Import the code, resolve and encode request parts, run setup hooks; do not start."""

    bundle: str  # path of the bundle; empty: `file` is imported as it lies
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


class Start(Struct, tag="start", frozen=True, kw_only=True):
    start_in_ms: float = 0.0


class Lease(Struct, tag="lease", frozen=True, kw_only=True):
    """Load may be generated until this instant of CLOCK_BOOTTIME, not longer."""

    deadline_boottime_ns: int


class Stop(Struct, tag="stop", frozen=True, kw_only=True):
    """No new step starts; those in flight get `grace_s`, then are cut."""

    reason: str
    grace_s: float


class Exit(Struct, tag="exit", frozen=True, kw_only=True):
    """Leave. A part still running is stopped first."""


# --- from the executor -------------------------------------------------------------------


class Hello(Struct, tag="hello", frozen=True, kw_only=True):
    pid: int


class Prepared(Struct, tag="prepared", frozen=True, kw_only=True):
    pass


class Refused(Struct, tag="refused", frozen=True, kw_only=True):
    error: str
    kind: RefusalKind
    hint: str = ""
    tainted: bool = False  # as in Finished


class Report(Struct, tag="report", frozen=True, kw_only=True):
    report: PartReport


class TearingDown(Struct, tag="tearing_down", frozen=True, kw_only=True):
    """The virtual users are done; teardown and Provide hooks run now."""


class Finished(Struct, tag="finished", frozen=True, kw_only=True):
    status: PartStatus
    report: PartReport
    error: str | None = None
    provided: bytes = b""  # context this part provides, see `values`
    # User code that would not let go is still running in the process, so nothing else may:
    # the supervisor ends it and starts another.
    tainted: bool = False


# --- made by the supervisor, never on the wire -------------------------------------------


class Output(Struct, frozen=True, kw_only=True):
    """What user code printed, whole lines where possible."""

    stream: str  # "stdout" or "stderr"
    text: str


class Died(Struct, frozen=True, kw_only=True):
    """The executor is gone without having been told to leave."""

    pid: int
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    blames_code: bool = False  # the part's own: another executor would fare no better


ToExecutor = Prepare | Start | Lease | Stop | Exit
FromExecutor = Hello | Prepared | Refused | Report | TearingDown | Finished
Event = FromExecutor | Output | Died

_Message = TypeVar("_Message")
_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: ToExecutor | FromExecutor) -> bytes:
    """The message as one frame; `FrameError` if it is larger than any peer would take."""
    payload = _encoder.encode(message)
    if len(payload) > FRAME_BYTES_MAX:
        raise FrameError(
            f"a {type(message).__name__} message of {len(payload):,} bytes is over the limit of "
            f"{FRAME_BYTES_MAX:,}"
        )
    return len(payload).to_bytes(_LENGTH_BYTES, "big") + payload


class FrameDecoder(Generic[_Message]):
    """Bytes in, messages out. Never holds more than one frame and the bytes last fed."""

    def __init__(self, message_type: type[_Message]) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type)
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


def to_executor_decoder() -> FrameDecoder[ToExecutor]:
    return FrameDecoder(ToExecutor)  # type: ignore[arg-type]  # a union is no `type` to mypy


def from_executor_decoder() -> FrameDecoder[FromExecutor]:
    return FrameDecoder(FromExecutor)  # type: ignore[arg-type]  # as above
