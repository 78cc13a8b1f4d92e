"""Return annotations: results of test steps, `Check`, and `Metric[COUNT]`.

A step that returns a `CallResult`, which clients make, or a `CustomResult`, which users make, is a
test. For a type checker, `Check` and `Metric` are the plain types that the method returns.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar


class CallResult:
    """Base of what a client call returns."""

    __slots__ = ()
    protocol: ClassVar[str] = ""  # name under `self.client`
    comes_with: ClassVar[str | None] = None  # the client that will return it, not yet available


class CustomResult:
    """Base of a user's own result: the step is timed from its call to its return.

    Set `ok` to False on an instance to count it as failed, and `error` to name its error class
    in the results.
    """

    ok: bool = True
    error: str | None = None


class HTTP2Response(CallResult):
    comes_with = "HTTP/2"


class HTTP3Response(CallResult):
    comes_with = "HTTP/3"


class GraphQLResponse(CallResult):
    comes_with = "GraphQL"


class GRPCResponse(CallResult):
    comes_with = "gRPC"


class MySQLResponse(CallResult):
    comes_with = "MySQL"


class PostgresResponse(CallResult):
    comes_with = "Postgres"


class MongoDBResponse(CallResult):
    comes_with = "MongoDB"


class RedisResponse(CallResult):
    comes_with = "Redis"


class KafkaResponse(CallResult):
    comes_with = "Kafka"


class RabbitMQResponse(CallResult):
    comes_with = "RabbitMQ"


class WebsocketResponse(CallResult):
    comes_with = "WebSocket"


class UDPResponse(CallResult):
    comes_with = "UDP"


class CheckMark:
    """Marks a return annotation as a check's."""


class MetricMark:
    """Marks a return annotation as a metric's, with its kind if one is given."""

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
    """Like DISTRIBUTION, of durations in seconds."""

    kind = "timer"


SAMPLE = DISTRIBUTION

Check: TypeAlias = Annotated[bool | None, CheckMark()]

if TYPE_CHECKING:
    _K = TypeVar("_K", bound=MetricType)
    # The alias needs a parameter for the kind, and float as what a method returns.
    Metric: TypeAlias = float | _K
else:

    class Metric:
        def __class_getitem__(cls, kind: Any) -> Any:
            return Annotated[float, MetricMark(getattr(kind, "kind", kind))]
