"""Code of the test that holds the event loop: how much of the run, and what to do about it.

While one step holds the loop, no request is sent and no response is read. Latencies of HTTP
requests do not contain that time: the kernel notes when responses arrive. It cannot cover bodies
that do not fit into the receive buffer and connections that were opened meanwhile, and steps with
results of their own are timed here; those count as `held`. Pure; the numbers come from merged
reports.
"""

from dataclasses import dataclass

from hyperscale._native import HoldReport
from hyperscale.plan import StepKind
from hyperscale.stats.workflow import WorkflowStats

# Below these, holds are left to the results: a single pause may be a garbage collection or an
# import, and a share this small moves no percentile that people look at.
COUNT_NAMED = 3
SHARE_NAMED = 0.005


@dataclass(frozen=True, slots=True)
class LoopHold:
    """How one hook held the loops of a workflow, for 10 ms or more each time."""

    name: str
    what: str  # "step", "check", …
    count: int
    seconds: float
    max_s: float
    cpu_s: float
    share: float  # of the time that the loops ran
    location: str

    @property
    def is_notable(self) -> bool:
        return self.count >= COUNT_NAMED and self.share >= SHARE_NAMED

    @property
    def is_blocking(self) -> bool:
        """True if the code waited most of the time; False if it computed."""
        return self.cpu_s < self.seconds / 2

    @property
    def mean_ms(self) -> float:
        return self.seconds / self.count * 1000 if self.count else 0.0

    def text(self) -> str:
        where = f" ({self.location})" if self.location else ""
        if self.is_blocking:
            verb, remedy = "blocks", "use asyncio or `await asyncio.to_thread`"
        else:
            verb = "computes"
            remedy = "compute less, or once before the load, or share it among more cores"
        return (
            f"{self.what} `{self.name}` {verb} for {self.mean_ms:.0f} ms at a time{where}: "
            f"{self.share:.0%} of the run; {remedy}"
        )


def loop_holds(stats: WorkflowStats) -> list[LoopHold]:
    """Return who held the loops of a workflow, the longest first."""
    kinds = {step.name: step.kind for step in stats.plan.steps}
    loop_s = stats.loop_s
    found = [_hold(row, kinds.get(row.name), loop_s) for row in stats.holds()]
    return sorted(found, key=lambda hold: -hold.seconds)


def _hold(row: HoldReport, kind: StepKind | None, loop_s: float) -> LoopHold:
    match kind:
        case StepKind.TEST | StepKind.ACTION:
            what = "step"
        case None:
            what = "function"
        case _:
            what = kind.value
    return LoopHold(
        name=row.name,
        what=what,
        count=row.count,
        seconds=row.seconds,
        max_s=row.max_s,
        cpu_s=row.cpu_s,
        share=min(1.0, row.seconds / loop_s) if loop_s > 0 else 0.0,
        location=row.location,
    )


def hold_warnings(stats: WorkflowStats) -> dict[str, str]:
    """Return a warning for each hook that holds the loop for a notable share of the run."""
    name = stats.plan.name
    notable = [hold for hold in loop_holds(stats) if hold.is_notable]
    effect = "latencies contain that time" if is_loop_held(stats) else "meanwhile nothing is sent"
    return {f"{name}.{hold.name}": f"{name}: {hold.text()}; {effect}" for hold in notable}


def is_loop_held(stats: WorkflowStats) -> bool:
    """Return True if many latencies contain time in which the test's own code held the loop."""
    counts = stats.total_counts()
    is_notable = counts.held >= max(COUNT_NAMED, SHARE_NAMED * counts.total)
    return is_notable and any(hold.is_notable for hold in loop_holds(stats))
