"""What a leader knows of the workers themselves: contact, leases, distance.

A lease counts from a stamp of the worker's own clock that the leader has echoed. So once the
leader has heard no new stamp for as long as a lease lasts, the worker has stopped by itself,
whatever became of renewals on the way.
"""

from dataclasses import dataclass, field

from hyperscale.jobs.timing import Timing


@dataclass(slots=True)
class Link:
    """One worker."""

    stamp_ms: int = 0  # the latest of its clock
    heard_s: float = float("-inf")  # when that came, on ours
    renewed_s: float = float("-inf")  # when the last renewal or question went out
    rtt_s: float = 0.0
    cpu: float = 0.0  # shares in use, as it says
    memory: float = 0.0
    has_answered: bool = False  # said what it runs, to this leader
    is_up: bool = False  # membership sees it
    is_gone: bool = False  # its process has certainly ended
    ended_s: float | None = None  # by when it had ended, as far as is known
    is_doubtful: bool = False  # a process of it has; perhaps not the one that runs things now
    is_held: bool = False  # many fell silent at once: it is the network's fault


@dataclass(slots=True)
class Links:
    timing: Timing
    took_over_s: float = 0.0
    _links: dict[str, Link] = field(default_factory=dict)

    def lead(self, workers: list[str], *, now_s: float) -> None:
        """A new leader: what its predecessor has promised is unknown, so it waits longer."""
        self.took_over_s = now_s
        self._links = {worker: self._fresh(now_s, is_up=True) for worker in workers}

    def _fresh(self, now_s: float, *, is_up: bool) -> Link:
        return Link(heard_s=now_s + self.timing.takeover_margin_s, is_up=is_up)

    def get(self, worker: str, *, now_s: float) -> Link:
        link = self._links.get(worker)
        if link is None:
            since_s = max(now_s, self.took_over_s)
            link = self._links[worker] = self._fresh(since_s, is_up=False)
        return link

    def all(self) -> dict[str, Link]:
        return self._links

    def forget(self, worker: str) -> None:
        self._links.pop(worker, None)

    def heard(self, worker: str, stamp_ms: int, *, now_s: float) -> None:
        """A stamp came. Older ones, overtaken on the way, say nothing."""
        link = self.get(worker, now_s=now_s)
        if stamp_ms > link.stamp_ms:
            link.stamp_ms = stamp_ms
            link.ended_s = None
            link.heard_s = max(now_s, link.heard_s)

    def unanswered(self, worker: str, *, refused_s: float | None, now_s: float) -> None:
        """No answer. That nobody listens proves that a process has ended; if membership sees
        no other, and has had the time to hear of one, it was the one in question."""
        if refused_s is None:
            return
        link = self.get(worker, now_s=now_s)
        link.ended_s = refused_s if link.ended_s is None else link.ended_s
        is_settled = now_s >= self.took_over_s + self.timing.settle_s
        if link.is_doubtful or (not link.is_up and is_settled):
            link.is_gone = True

    def measured(self, worker: str, rtt_s: float, *, now_s: float) -> None:
        """A round trip. The lowest of late counts: queues on the way are no distance."""
        link = self.get(worker, now_s=now_s)
        link.rtt_s = rtt_s if not link.rtt_s else min(rtt_s, link.rtt_s * 1.1)

    def stopped_at_s(self, worker: str, *, since_s: float, now_s: float) -> float:
        """From when on the worker has certainly stopped what it was given at `since_s`, if it
        stays silent."""
        heard_s = max(self.get(worker, now_s=now_s).heard_s, since_s)
        return heard_s + self.timing.lease_s + self.timing.silence_margin_s
