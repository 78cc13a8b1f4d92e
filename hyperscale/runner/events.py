"""Events and effects of a run on one machine."""

from dataclasses import dataclass
from typing import Any

from hyperscale.config import GRACE_S
from hyperscale.errors import InputError, RunError
from hyperscale.execution.protocol import ExecutorEvent
from hyperscale.plan.changes import AppliedChange, LoadChange
from hyperscale.sansio.core import Tick

# --- events ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolReady:
    """The pool has started its executors."""


@dataclass(frozen=True, slots=True)
class WorkflowPrepared:
    """Every slot of the workflow is ready to start, or with `error` none of them is held."""

    workflow: str
    error: RunError | InputError | None = None


@dataclass(frozen=True, slots=True)
class ExecutorReported:
    """An executor sent a message about the slot it holds, or died."""

    executor: int
    event: ExecutorEvent


@dataclass(frozen=True, slots=True)
class RunInterrupted:
    """A signal asked the run to end: the first stops it gracefully, the second kills it."""

    by: str


@dataclass(frozen=True, slots=True)
class LoadChangeRequested:
    """The load is to be scaled, paused or resumed. `ChangeAnswered` returns the token."""

    change: LoadChange
    token: Any = None


RunEvent = (
    PoolReady | WorkflowPrepared | ExecutorReported | LoadChangeRequested | RunInterrupted | Tick
)

# --- effects -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareWorkflow:
    workflow: str
    executors: tuple[int, ...]  # in order of slots; from the number of cores on: further ones
    received: bytes  # context, encoded for executors


@dataclass(frozen=True, slots=True)
class ShareSetup:
    """Every slot waits for the context that setup left."""

    executors: tuple[int, ...]
    context: bytes


@dataclass(frozen=True, slots=True)
class PrepareTeardown:
    """`WorkflowPrepared` follows, as for the workflow itself."""

    workflow: str
    executor: int
    slots: int
    context: bytes  # what setup left


@dataclass(frozen=True, slots=True)
class WeighExecutors:
    """Other executors share the cores of these from now on."""

    executors: tuple[int, ...]
    nice: int


@dataclass(frozen=True, slots=True)
class StartExecutors:
    executors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangeExecutors:
    """Change the load of slots; these are all changes so far."""

    executors: tuple[int, ...]
    changes: tuple[AppliedChange, ...]


@dataclass(frozen=True, slots=True)
class ChangeAnswered:
    """A change was made, or with `error` it does not fit."""

    token: Any
    error: InputError | None = None


@dataclass(frozen=True, slots=True)
class StopExecutors:
    executors: tuple[int, ...]
    reason: str
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class KillExecutors:
    executors: tuple[int, ...]
    reason: str


RunEffect = (
    PrepareWorkflow
    | ShareSetup
    | PrepareTeardown
    | WeighExecutors
    | StartExecutors
    | ChangeExecutors
    | ChangeAnswered
    | StopExecutors
    | KillExecutors
)
