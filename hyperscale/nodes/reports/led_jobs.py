"""The jobs that a node leads, as reports see them: jobs at managers, global jobs at gates."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from hyperscale.jobs.committed.state import Reported
from hyperscale.stats.workflow import WorkflowStats


class Loss(NamedTuple):
    """A worker or a datacenter that a job has lost."""

    workflow: str  # empty: of the whole job
    reason: str


class RunningJob(NamedTuple):
    """A job that has load."""

    id: str
    file: str
    started_unix_ms: int
    statistics: Callable[[], Sequence[WorkflowStats]]
    losses: Sequence[Loss]  # oldest first
    # A new leader that has not heard from everybody yet knows less than the last one.
    is_complete: bool


class EndedJob(NamedTuple):
    """The totals of a job that has ended."""

    status: str
    totals: Sequence[WorkflowStats]
    losses: Sequence[Loss]


class UnreportedJob(NamedTuple):
    """A job that has ended and whose result was sent by nobody."""

    id: str
    reporters: Sequence[str]  # by name; empty: all


class LedJobs(Protocol):
    """What reports ask of the jobs of a node."""

    @property
    def node(self) -> str: ...

    def running(self) -> Iterable[RunningJob]:
        """Return the jobs with load that this node leads."""
        ...

    def leads(self, job: str) -> bool:
        """Return True if this node leads the job, or led it when it ended."""
        ...

    async def ended(self, job: str) -> EndedJob | None:
        """Return how a job ended; None as long as its final record is not written."""
        ...

    def unreported(self) -> Iterable[UnreportedJob]:
        """Return the jobs whose results this node is to send."""
        ...

    async def record(self, job: str) -> bytes | None:
        """Return the final record of a job, as that of one datacenter; None until it is written."""
        ...

    async def commit(self, job: str, reported: Reported) -> None:
        """Commit that the result was sent. Raises HyperscaleError without a quorum."""
        ...
