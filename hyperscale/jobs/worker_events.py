"""Membership events about workers, shared by the allocator and the job leader."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """Membership sees the worker as alive."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerDown:
    """Membership has declared the worker dead, or the worker has left."""

    worker: str
    is_certain: bool = False  # it left or its address refuses connections; else it is only silent
    ended_s: float | None = None  # when its address began to refuse connections, if known
