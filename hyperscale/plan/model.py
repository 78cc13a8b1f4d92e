"""The structs of a plan. Durations are seconds; names are the user's own."""

import zlib
from enum import Enum

from msgspec import Struct

from hyperscale.plan.placement import ANYWHERE, Placement
from hyperscale.plan.shapes import StagePlan
from hyperscale.plan.share import share


class Priority(Enum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    EXCLUSIVE = "exclusive"
    AUTO = "auto"


class Connections(Enum):
    PER_VU = "per-vu"
    SHARED = "shared"
    PER_REQUEST = "per-request"


class ArrivalKind(Enum):
    """How the arrivals of a rate are spread."""

    EVEN = "even"
    POISSON = "poisson"


class Take(Enum):
    """Which row of a feed comes next."""

    CIRCULAR = "circular"  # again from the first one
    RANDOM = "random"
    ONCE = "once"  # no row twice; without a row left, users end


class FeedPer(Enum):
    """What gets a row of a feed."""

    ITERATION = "iteration"
    VU = "vu"


class StepKind(Enum):
    """What a hook does in a run. Only TEST makes a workflow a test workflow."""

    TEST = "test"
    ACTION = "action"
    CHECK = "check"
    METRIC = "metric"
    SETUP = "setup"
    TEARDOWN = "teardown"


_AROUND = (StepKind.SETUP, StepKind.TEARDOWN)
RECORDED = (StepKind.TEST, StepKind.ACTION, *_AROUND)
"""Hooks whose calls are counted and timed; thresholds may name them."""


class Per(Enum):
    """How often a setup or teardown hook runs: once for each of these."""

    WORKFLOW = "workflow"
    EXECUTOR = "executor"  # each slot
    VU = "vu"


class MetricKind(Enum):
    COUNT = "count"  # sum of the returned numbers
    RATE = "rate"  # sum per second of run time
    GAUGE = "gauge"  # the last returned number
    DISTRIBUTION = "distribution"  # min, mean, max and percentiles of the numbers
    TIMER = "timer"  # the same, of seconds


SPREAD_KINDS = (MetricKind.DISTRIBUTION, MetricKind.TIMER)
"""The kinds whose distribution is recorded."""


class StateKind(Enum):
    PROVIDE = "provide"
    USE = "use"


class StepPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    kind: StepKind
    after: tuple[str, ...] = ()
    layer: int = 0
    where: str = ""  # file and line, for messages: "shop.py:12"
    per: Per = Per.WORKFLOW  # of a setup or teardown hook
    weight: float | None = None  # its share among the alternatives of which an iteration runs one

    @property
    def is_in_iteration(self) -> bool:
        """True for a step of every iteration; others run before, after or on its results."""
        return self.kind in (StepKind.TEST, StepKind.ACTION)


class MetricPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    kind: MetricKind


class StatePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `@state` hook: the values it provides to, or uses from, which workflows."""

    name: str
    kind: StateKind
    workflows: tuple[str, ...]
    keys: tuple[str, ...] = ()  # USE: the parameters it takes; PROVIDE: its own name
    required: tuple[str, ...] = ()  # USE: those without a default
    is_list: bool = False  # PROVIDE: a list of every part's values, not the first part's value


class FeedPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A feed: rows that users take. The rows themselves are in the bundle."""

    name: str
    take: Take
    per: FeedPer
    rows: int
    digest: int  # of all rows
    # Of a datacenter's part of a job: the rows from `first` on, `count` of them, are its own.
    first: int = 0
    count: int | None = None

    @property
    def dealt(self) -> int:
        """How many rows are dealt here, if each is dealt here or in another datacenter."""
        return self.rows if self.count is None else self.count

    @property
    def span(self) -> tuple[int, int]:
        """The first row of those that are dealt here, and how many they are. Random rows are any
        rows, and users that have one for good have it by their number in the whole job."""
        is_of_all = self.per is FeedPer.VU and self.take is Take.CIRCULAR
        return (0, self.rows) if is_of_all or self.take is Take.RANDOM else (self.first, self.dealt)


class ThresholdPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass/fail line: `name` is `[step.]p99`, `checks` or a metric's name."""

    name: str
    limit: str  # as written: "<250ms", "<1%", ">500/s"
    abort_on_fail: bool = False
    delay_s: float | None = None  # how long it cannot abort the run; None: the usual time


class WorkflowPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    vus: int  # the most that there are at once
    duration_s: float
    timeout_s: float
    grace_s: float | None = 1.0  # None: as long as the longest request took
    priority: Priority = Priority.AUTO
    interval_s: float | None = None
    think_s: tuple[float, float] | None = None  # the least and the most to pause
    iterations: int | None = None  # for the workflow as a whole, shared over its VUs
    iterations_per_vu: int | None = None
    stages: tuple[StagePlan, ...] = ()  # users over time; if it is open, arrivals per second
    is_open: bool = False  # iterations begin at a rate, whether or not earlier ones have ended
    arrivals: ArrivalKind = ArrivalKind.EVEN
    weight: float | None = None  # its share of a total; `vus` and `stages` are that share
    warmup_s: float = 0.0  # at the beginning of the duration: run, and not counted
    connections: Connections = Connections.PER_VU
    streams: int = 100  # requests at once on a connection of HTTP/2
    descriptors: bytes = b""  # of gRPC services: a `FileDescriptorSet`
    sources: int = 1  # local addresses that connections come from
    tracing: float = 0.0  # share of HTTP requests with a `traceparent` header
    tags: tuple[str, ...] = ()
    is_test: bool = True
    depends: tuple[str, ...] = ()
    steps: tuple[StepPlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    states: tuple[StatePlan, ...] = ()
    thresholds: tuple[ThresholdPlan, ...] = ()
    feeds: tuple[FeedPlan, ...] = ()
    allow_failures: bool = False  # neither a want of successes nor exceptions fail the run
    hosts: tuple[str, ...] = ()  # "host:port" of literal URLs, resolved before anything runs
    files: dict[str, str] = {}  # `File` defaults and feeds as written: full path
    first_vu: int = 0  # number of the first virtual user: of a datacenter's part of a job
    arrival_phase: float = 0.0  # its even arrivals come later by so much of their distance
    placement: Placement = ANYWHERE
    in_python: str = ""  # why its steps run in Python; empty: the native engine runs them

    def grace_s_after(self, longest_s: float | None) -> float:
        """Return how long steps in flight at the deadline may take, after requests took up to
        `longest_s` (None: no request has ended)."""
        grace_s = longest_s if self.grace_s is None else self.grace_s
        return self.timeout_s if grace_s is None else min(grace_s, self.timeout_s)

    @property
    def is_set_up_once(self) -> bool:
        """True if slot 0 sets the workflow up, and the others wait for the context it leaves."""
        return any(step.per is Per.WORKFLOW for step in self.steps if step.kind in _AROUND)

    @property
    def is_torn_down_once(self) -> bool:
        """True if teardown hooks run after the last slot."""
        hooks = (step for step in self.steps if step.kind is StepKind.TEARDOWN)
        return any(step.per is Per.WORKFLOW for step in hooks)

    @property
    def last_vu(self) -> int:
        """The number after that of the last virtual user."""
        return self.first_vu + self.vus

    @property
    def is_counted(self) -> bool:
        """True if a number of iterations ends the workflow."""
        return self.iterations is not None or self.iterations_per_vu is not None

    @property
    def seed(self) -> int:
        """Of everything random in the workflow: the same test has the same load."""
        return zlib.crc32(self.name.encode())

    @property
    def arrival_seed(self) -> int | None:
        """Of arrivals that are a Poisson process, another one in each datacenter; None: even."""
        if self.arrivals is not ArrivalKind.POISSON:
            return None
        return zlib.crc32(f"{self.name}: {self.first_vu}".encode()) if self.first_vu else self.seed

    def seed_of(self, feed: FeedPlan) -> int:
        """Of the rows that a feed with `take="random"` deals."""
        # Datacenters number their iterations alike, and must not draw the same rows.
        return zlib.crc32(f"{self.name}: {feed.name}".encode()) + (
            feed.first if feed.per is FeedPer.ITERATION else 0
        )

    @property
    def quiet_s(self) -> float:
        """The longest time in which the load may be so low that no action ends."""
        if self.stages:
            return self.duration_s
        return self.warmup_s + max(self.interval_s or 0.0, self.think_s[1] if self.think_s else 0.0)

    def iterations_of(self, slots: int, slot: int) -> int | None:
        """Return the iterations of the users of a slot together; None: as many as they can."""
        if self.iterations_per_vu is not None:
            return self.iterations_per_vu * share(self.vus, slots, slot)
        return None if self.iterations is None else share(self.iterations, slots, slot)

    @property
    def is_timed(self) -> bool:
        """True if users loop for a time; other workflows run their steps once."""
        return self.is_test or self.is_counted

    def offset_s(self, elapsed_s: float) -> float:
        """Return the time since the start of the workflow at which an attempt begins, `elapsed_s`
        into it. A workflow that runs once, and not for a time, begins anew."""
        return max(0.0, elapsed_s) if self.is_timed else 0.0


class ParameterPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter of the test and its value; the value of a secret is not in the plan."""

    name: str
    value: str | int | float | bool
    is_secret: bool = False


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    schema: int = 1
    file: str
    workflows: tuple[WorkflowPlan, ...]
    warnings: tuple[str, ...] = ()  # what is legal but probably not meant, for people to read
    parameters: tuple[ParameterPlan, ...] = ()  # in the order of their names

    @property
    def open_parameters(self) -> dict[str, str | int | float | bool]:
        """The values of all parameters that are not secret."""
        return {each.name: each.value for each in self.parameters if not each.is_secret}
