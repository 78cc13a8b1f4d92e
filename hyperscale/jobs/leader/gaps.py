"""When an attempt's load ran, as far as its leader knows, and the bound of an unreported gap.

A worker that dies has sent requests that it did not report. The leader bounds them: the seconds
between the last instant that reports cover and the instant the load was certainly over, times
the highest rate that was measured, and never more than its virtual users can send in that time.
Pure arithmetic on instants of the leader's clock.
"""

import math
from dataclasses import dataclass, field

RATE_PER_CORE_MAX = 100_000
"""Requests a core can send in a second, where no rate was measured."""
TAKEOVER_S = 1.0
"""How much older than it seems to a new leader a committed entry may be: the leader knows when it
applied the entry, but not when the last leader proposed it."""
_RATE_MARGIN = 1.25
_OTHERS_MARGIN = 2.0  # if only the rate of other parts of the workflow is known
_MERGE_S = 0.15  # how much older one core's share of a report may be than another's
RATE_SPAN_S = 0.4  # rates over shorter spans are noise
_RATES_KEPT = 10
_ROUNDING = 1e-6  # 0.3 / 0.05 is a little less than 6


@dataclass(frozen=True, slots=True)
class UnreportedLoad:
    """How long an attempt may have sent load without reporting it, and at most how much."""

    seconds: float
    requests_max: int


@dataclass(frozen=True, slots=True)
class UserPace:
    """How fast one virtual user can send, by its plan and by what was seen of the workflow."""

    in_flight: int = 1  # requests of one user at a time
    fastest_s: float | None = None  # the fastest response, if all requests wait for a measured one
    interval_s: float | None = None  # between iterations
    per_iteration: int = 1  # requests of one iteration

    def requests_max(self, seconds: float) -> int | None:
        """Return the most requests one user sends in this time; None if nothing limits it."""
        limits = []
        # The first request at once, each further one after a response or an interval.
        if self.fastest_s:
            limits.append(self.in_flight * (int(seconds / self.fastest_s + _ROUNDING) + 1))
        if self.interval_s:
            limits.append(self.per_iteration * (int(seconds / self.interval_s + _ROUNDING) + 1))
        return min(limits, default=None)

    def users_max(self, seconds: float, *, vus: int) -> int | None:
        """Return the most requests some users send in this time; None if nothing limits them."""
        of_user = self.requests_max(seconds)
        return None if of_user is None else vus * of_user


@dataclass(slots=True)
class LoadTimeline:
    """The load of one attempt. Every instant is None until it is known."""

    started_s: float | None = None  # when the load began
    may_run_since_s: float | None = None  # earliest instant at which it may have begun
    # Not later than the load began: the start command, or as the fastest report has it.
    origin_s: float | None = None
    reported_s: float | None = None  # when the last report arrived
    elapsed_s: float = 0.0  # of the attempt, in its last report
    since_s: float | None = None  # time since the start of the workflow when it began
    iterations: int = 0
    sent: int = 0
    rates: list[float] = field(default_factory=list)  # requests/s between reports, newest last

    def report(self, *, sent: int, iterations: int, elapsed_s: float, now_s: float) -> None:
        """Take the figures of a new report."""
        span_s = elapsed_s - self.elapsed_s
        if self.reported_s is None:
            if elapsed_s > RATE_SPAN_S:
                self.rates.append(sent / elapsed_s)
        elif span_s >= RATE_SPAN_S:
            self.rates.append((sent - self.sent) / span_s)
            if len(self.rates) > _RATES_KEPT:
                del self.rates[0]
        self.sent = sent
        self.iterations = iterations
        self.elapsed_s = max(self.elapsed_s, elapsed_s)
        self.reported_s = now_s
        began_s = now_s - elapsed_s
        self.origin_s = began_s if self.origin_s is None else min(self.origin_s, began_s)
        if self.started_s is None:
            self.started_s = began_s

    def inherit(self, *, since_s: float, doubt_s: float) -> None:
        """Take over an attempt of which only a dispatch or checkpoint is known. It was committed at
        `since_s`, or at most `doubt_s` earlier."""
        self.may_run_since_s = since_s
        self.origin_s = since_s - doubt_s

    def inherit_report(
        self, *, sent: int, iterations: int, elapsed_s: float, reported_s: float, doubt_s: float
    ) -> None:
        """Take over the figures of a committed report."""
        self.sent, self.iterations, self.elapsed_s = sent, iterations, elapsed_s
        if elapsed_s > 0:
            self.rates = [sent / elapsed_s]
        self.reported_s = reported_s
        self.origin_s = reported_s - elapsed_s - doubt_s

    def not_begun(self) -> None:
        """Note that the load has not begun, as the worker says; no earlier leader can start it."""
        self.may_run_since_s = self.origin_s = None

    def start_sent(self, at_s: float) -> None:
        """Note that a start command was sent: the load may begin at `at_s`."""
        if self.may_run_since_s is None:
            self.may_run_since_s = self.origin_s = at_s

    @property
    def rate(self) -> float:
        """The latest measurement, in requests per second."""
        return self.rates[-1] if self.rates else 0.0

    def known_until_s(self) -> float | None:
        """Return the last instant that reports cover; None if the load never began.

        A report may have been on its way for long, so its arrival alone proves nothing.
        """
        if self.reported_s is not None:
            if self.origin_s is None:
                return self.reported_s
            return min(self.reported_s, self.origin_s + self.elapsed_s)
        begun_s = [each for each in (self.may_run_since_s, self.started_s) if each is not None]
        return min(begun_s, default=None)

    def unreported(
        self,
        until_s: float | None,
        *,
        cores: int,
        vus: int,
        others_rate: float,
        pace: UserPace,
    ) -> UnreportedLoad:
        """Bound what was sent after the last report and before `until_s`, when the load was over
        (None: it never began). `others_rate`: requests per core and second of the other parts."""
        since_s = self.known_until_s()
        if since_s is None or until_s is None or until_s <= since_s:
            return UnreportedLoad(0.0, 0)
        seconds = until_s - since_s
        if self.rates:
            rate = max(self.rates) * _RATE_MARGIN
        else:
            rate = cores * (others_rate * _OTHERS_MARGIN or RATE_PER_CORE_MAX)
        most = rate * (seconds + merge_s(cores))
        reported = bool(self.rates)
        of_users = pace.users_max(seconds + (merge_s(cores) if reported else 0.0), vus=vus)
        if of_users is not None:
            most = min(most, of_users)
        # Even at a low rate, each virtual user may have sent one request since the last report.
        return UnreportedLoad(seconds, max(vus, math.ceil(most)))


def merge_s(cores: int) -> float:
    """Return how much older the share of one core may be than the report of all of them."""
    return _MERGE_S if cores > 1 else 0.0
