"""The result types of steps. A step whose return annotation is one of them is a test.

Clients make `CallResult`s, users make `CustomResult`s.
"""

from typing import ClassVar


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
