"""The structs of a plan. Durations are seconds; names are the user's own."""

from enum import Enum

from msgspec import Struct


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


class StepKind(Enum):
    """What a hook does in a run. Only TEST makes a workflow a test workflow."""

    TEST = "test"
    ACTION = "action"
    CHECK = "check"
    METRIC = "metric"
    SETUP = "setup"
    TEARDOWN = "teardown"


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


class StepPlan(Struct, frozen=True, kw_only=True):
    name: str
    kind: StepKind
    after: tuple[str, ...] = ()
    layer: int = 0


class MetricPlan(Struct, frozen=True, kw_only=True):
    name: str
    kind: MetricKind


class StatePlan(Struct, frozen=True, kw_only=True):
    """A `@state` hook: the values it provides to, or uses from, which workflows."""

    name: str
    kind: StateKind
    workflows: tuple[str, ...]
    keys: tuple[str, ...] = ()  # USE: the parameters it takes; PROVIDE: its own name
    required: tuple[str, ...] = ()  # USE: those without a default
    is_list: bool = False  # PROVIDE: a list of every part's values, not the first part's value


class ThresholdPlan(Struct, frozen=True, kw_only=True):
    """One pass/fail line: `name` is `[step.]p99`, `checks` or a metric's name."""

    name: str
    limit: str  # as written: "<250ms", "<1%", ">500/s"
    abort_on_fail: bool = False


class WorkflowPlan(Struct, frozen=True, kw_only=True):
    name: str
    vus: int
    duration_s: float
    timeout_s: float
    priority: Priority = Priority.AUTO
    interval_s: float | None = None
    iterations: int | None = None  # for the workflow as a whole, shared over its VUs
    connections: Connections = Connections.PER_VU
    tags: tuple[str, ...] = ()
    is_test: bool = True
    depends: tuple[str, ...] = ()
    steps: tuple[StepPlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    states: tuple[StatePlan, ...] = ()
    thresholds: tuple[ThresholdPlan, ...] = ()
    hosts: tuple[str, ...] = ()  # "host:port" of literal URLs, resolved before anything runs
    files: dict[str, str] = {}  # `File` defaults as written: full path

    def offset_s(self, elapsed_s: float) -> float:
        """Return where in the duration an attempt begins, after earlier attempts ran for
        `elapsed_s`. A workflow that runs once, and not for a time, begins anew."""
        is_timed = self.is_test or self.iterations is not None
        return min(max(0.0, elapsed_s), self.duration_s) if is_timed else 0.0


class Plan(Struct, frozen=True, kw_only=True):
    schema: int = 1
    file: str
    workflows: tuple[WorkflowPlan, ...]
    warnings: tuple[str, ...] = ()  # what is legal but probably not meant, for people to read
