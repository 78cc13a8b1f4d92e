"""A job to submit: what the user chose, and the plan and bundle made of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a client that only asks questions does not load what builds runs
    from hyperscale.plan import Plan
    from hyperscale.reporting.reporter import Sink
    from hyperscale.runner.local import Given


@dataclass(frozen=True, kw_only=True)
class JobSubmission:
    """A test file or workflows, and the options of the job."""

    workflows: "Iterable[Given | tuple[Iterable[str], Given]]" = ()
    file: str | Path | None = None
    test_name: str = ""
    vus: int | None = None
    duration: str | float | None = None
    only: Sequence[str] = ()
    timeout: str | float | None = None
    dispatch_timeout: str | float | None = None
    key: str = ""
    target_datacenters: Sequence[str] = ()
    on_isolation: str = "stop"
    log_level: str = "info"
    static: bool = True
    by: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A plan and the bundle of its code. It may be submitted more than once."""

    plan: "Plan"
    payload: bytes
    sha256: str
    reporters: "tuple[Sink, ...]" = ()
