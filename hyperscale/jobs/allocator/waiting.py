"""What a waiting request is answered: its position in the queue, and why it waits.

A `QueueSnapshot` describes queue and pool at one moment. It is built once and used for every
request that is repeated before the queue is served again: each is repeated every second.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from hyperscale.jobs.allocator.queue import Place, QueuedRequest, WorkflowOfJob
from hyperscale.jobs.provisioner import Provisioner

NO_WORKERS = "there are no workers that take work"


@dataclass(slots=True)
class QueueSnapshot:
    """Queue and pool as they were when the first waiting request was answered."""

    places: list[Place]  # sorted
    first: QueuedRequest
    pool_size: int
    free: int
    exclusive: WorkflowOfJob | None  # must run alone, and has begun
    running: list[WorkflowOfJob]
    silent: list[str]  # workers that have not announced their cores
    certain_at_s: float  # from then on no grant of an earlier allocator can be unknown

    def add(self, place: Place) -> None:
        """Add a request that arrived after the snapshot was made."""
        insort(self.places, place)

    def position(self, place: Place) -> int:
        """Return the position in the queue; 1 is served next."""
        return bisect_left(self.places, place) + 1

    def why_rebuilding(self, request: QueuedRequest) -> str:
        """Say why a new allocator grants nothing yet."""
        return f"{request.message.workflow} {self._waits_for_silent()}"

    def why_waiting(self, request: QueuedRequest, now_s: float) -> str:
        """Say why the request waits; empty if it is about to be granted."""
        reason = self._reason(request, now_s)
        return f"{request.message.workflow} {reason}" if reason else ""

    # --- predicates of sentences whose subject is the workflow ------------------------------

    def _reason(self, request: QueuedRequest, now_s: float) -> str:
        taken = self.pool_size - self.free
        busy = f"{taken} of {self.pool_size} {'is' if taken == 1 else 'are'} busy"
        if request.message.is_recovery:
            return f"needs {_cores(request.message.cores)} on another worker, and {busy}"
        if self.exclusive is not None:
            return f"waits for the EXCLUSIVE {_name(self.exclusive)} to end"
        if request.is_exclusive and (reason := self._why_not_alone(now_s)):
            return reason
        least, _ = Provisioner(self.pool_size).range_of(request.claim)
        if least > self.free and not request.is_exclusive:
            return f"needs {_cores(least)}, and {busy}"
        if self.first is request:
            return ""
        return f"waits behind {_name(self.first.workflow)}"

    def _why_not_alone(self, now_s: float) -> str:
        """Say what keeps an exclusive workflow from getting the pool; empty if nothing does."""
        if others := self.running:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f"is EXCLUSIVE and waits for {_name(others[0])}{more} to end"
        if self.silent:
            return self._waits_for_silent()
        if now_s < self.certain_at_s:
            left_s = max(1, round(self.certain_at_s - now_s))
            return (
                f"is EXCLUSIVE and waits {left_s} s more, because the previous allocator may have "
                "granted cores that no worker holds yet"
            )
        return ""

    def _waits_for_silent(self) -> str:
        return f"waits until {', '.join(self.silent)} announced which cores are in use"


def no_worker_for(cores: int) -> str:
    """Say that no other worker can take a lost part."""
    return f"no other worker can take a part of {_cores(cores)}"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _name(workflow: WorkflowOfJob) -> str:
    job, name = workflow
    return f"{name} of {job}"
