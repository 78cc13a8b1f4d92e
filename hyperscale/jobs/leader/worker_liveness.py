"""What a leader knows of the workers themselves: contact, leases, distance.

A lease counts from a stamp of the worker's own clock that the leader has echoed. So once the
leader has heard no new stamp for as long as a lease lasts, the worker has stopped by itself,
whatever became of renewals on the way.

A stamp is echoed only when it is *sure*: it had been heard when most managers confirmed this
leader for the last time. A successor cannot have been elected before that, so whatever leases
its predecessors have given, though they be frozen, cut off or slow to notice, count from before
its own beginning: it waits as long as if it had heard every worker just then, and no longer.
"""

from dataclasses import dataclass, field

from hyperscale.jobs.leader.timeouts import Timing

STILL_S = 1.0
"""A leader has something to do four times a second. If it did nothing for so long, it could not."""

Stamps = dict[str, tuple[int, float]]
"""By worker: a stamp, and when it came."""


@dataclass(slots=True)
class Link:
    """One worker."""

    stamp_ms: int = 0  # the latest of its clock
    heard_s: float = float("-inf")  # when that came, on ours
    sure_ms: int = 0  # the latest when managers were last asked and confirmed: may be echoed
    sure_s: float = float("-inf")
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
    _awake_s: float = 0.0
    _links: dict[str, Link] = field(default_factory=dict)

    def lead(self, workers: list[str], *, now_s: float) -> None:
        """A new leader: whatever its predecessors have echoed was said before."""
        self.took_over_s = self._awake_s = now_s
        self._links = {worker: Link(heard_s=now_s, is_up=True) for worker in workers}

    def get(self, worker: str, *, now_s: float) -> Link:
        link = self._links.get(worker)
        if link is None:
            link = self._links[worker] = Link(heard_s=now_s)
        return link

    def all(self) -> dict[str, Link]:
        return self._links

    def forget(self, worker: str) -> None:
        self._links.pop(worker, None)

    def awake(self, *, now_s: float) -> None:
        """Call it before anything is concluded from silence: what came while this node stood
        still has not been read yet."""
        still_s = now_s - self._awake_s
        self._awake_s = now_s
        if still_s > STILL_S:
            for link in self._links.values():
                link.heard_s = min(now_s, link.heard_s + still_s)

    def heard(self, worker: str, stamp_ms: int, *, now_s: float) -> None:
        """A stamp came. Older ones, overtaken on the way, say nothing."""
        link = self.get(worker, now_s=now_s)
        if stamp_ms > link.stamp_ms:
            link.stamp_ms = stamp_ms
            link.ended_s = None
            link.heard_s = now_s

    def stamps(self) -> Stamps:
        """The latest of all: sure, if managers are asked now and confirm this leader."""
        return {
            worker: (link.stamp_ms, link.heard_s)
            for worker, link in self._links.items()
            if link.stamp_ms
        }

    def confirmed(self, stamps: Stamps) -> None:
        """Most of them did."""
        for worker, (stamp_ms, heard_s) in stamps.items():
            link = self._links.get(worker)
            if link is not None and link.sure_ms < stamp_ms <= link.stamp_ms:
                link.sure_ms, link.sure_s = stamp_ms, heard_s

    def is_sure(self, worker: str, *, now_s: float) -> bool:
        """Whether a lease that counts from the sure stamp has at least half its time left."""
        return now_s <= self.get(worker, now_s=now_s).sure_s + self.timing.lease_s / 2

    def unanswered(self, worker: str, *, refused_s: float | None, now_s: float) -> bool:
        """No answer. That nobody listens proves that a process has ended; if membership sees
        no other, and has had the time to hear of one, it was the one in question. True if
        that is news."""
        if refused_s is None:
            return False
        link = self.get(worker, now_s=now_s)
        was_gone = link.is_gone
        link.ended_s = refused_s if link.ended_s is None else link.ended_s
        if link.is_doubtful or (not link.is_up and now_s >= self._settled_s):
            link.is_gone = True
        return link.is_gone and not was_gone

    @property
    def _settled_s(self) -> float:
        """From when on membership has heard what the last leader knew."""
        return self.took_over_s + self.timing.settle_s

    def is_due(self, link: Link, *, now_s: float) -> bool:
        """Whether a worker is to be renewed or asked: each second, and where nobody listened
        also as soon as that is proof."""
        if link.ended_s is not None and link.renewed_s < self._settled_s <= now_s:
            return True
        # Half a tick early rather than a whole one late.
        return now_s >= link.renewed_s + self.timing.renew_s * 7 / 8

    def measured(self, worker: str, rtt_s: float, *, now_s: float) -> None:
        """A round trip. The lowest of late counts: queues on the way are no distance."""
        link = self.get(worker, now_s=now_s)
        link.rtt_s = rtt_s if not link.rtt_s else min(rtt_s, link.rtt_s * 1.1)

    def stopped_at_s(self, worker: str, *, since_s: float, now_s: float) -> float:
        """From when on the worker has certainly stopped what it was given at `since_s`, if it
        stays silent."""
        heard_s = max(self.get(worker, now_s=now_s).heard_s, since_s)
        return heard_s + self.timing.lease_s + self.timing.silence_margin_s
