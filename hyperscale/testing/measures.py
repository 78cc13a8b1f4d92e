"""Return annotations of checks and custom metrics: `-> Check`, `-> Metric[COUNT]`.

A type checker sees the plain type the method returns; the marker inside tells the graph
what the method is.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar


class CheckMark:
    """Marks a return annotation as a check's."""


class MetricMark:
    """Marks a return annotation as a metric's, with its kind where it is given."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind


class MetricType:
    """Base of the kinds a metric can be annotated with."""

    kind: ClassVar[str]


class COUNT(MetricType):
    """The sum of the returned numbers."""

    kind = "count"


class RATE(MetricType):
    """The sum of the returned numbers per second of the run."""

    kind = "rate"


class GAUGE(MetricType):
    """The last returned number."""

    kind = "gauge"


class DISTRIBUTION(MetricType):
    """Minimum, mean, maximum and percentiles of the returned numbers."""

    kind = "distribution"


class TIMER(MetricType):
    """The same, of durations in seconds."""

    kind = "timer"


SAMPLE = DISTRIBUTION

Check: TypeAlias = Annotated[bool | None, CheckMark()]

if TYPE_CHECKING:
    _K = TypeVar("_K", bound=MetricType)
    # The kind has to be a parameter of the alias and float what a method may return.
    Metric: TypeAlias = float | _K
else:

    class Metric:
        def __class_getitem__(cls, kind: Any) -> Any:
            return Annotated[float, MetricMark(getattr(kind, "kind", kind))]
