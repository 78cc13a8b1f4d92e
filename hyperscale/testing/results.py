"""What steps return: the annotation that makes a step a test, and the value it yields.

`CallResult` types are made by clients, `CustomResult` types by users. Knows no engine:
an HTTP response reads from any object with the attributes of `Exchange`.
"""

from typing import ClassVar


class CallResult:
    """Base of what a client call returns. A step annotated with one is measured as a test."""

    __slots__ = ()
    protocol: ClassVar[str] = ""  # name under `self.client`
    comes_with: ClassVar[str | None] = None  # the client still to come, if any


class CustomResult:
    """Base of a user's own result: the step is a test, timed from its call to its return.

    Set `ok` to False on an instance to count it as failed, and `error` to name its class
    in the results.
    """

    ok: bool = True
    error: str | None = None


class HTTP2Response(CallResult):
    __slots__ = ()
    protocol = "http2"
    comes_with = "HTTP/2"


class HTTP3Response(CallResult):
    __slots__ = ()
    protocol = "http3"
    comes_with = "HTTP/3"


class GraphQLResponse(CallResult):
    __slots__ = ()
    protocol = "graphql"
    comes_with = "GraphQL"


class GRPCResponse(CallResult):
    __slots__ = ()
    protocol = "grpc"
    comes_with = "gRPC"


class MySQLResponse(CallResult):
    __slots__ = ()
    protocol = "mysql"
    comes_with = "MySQL"


class PostgresResponse(CallResult):
    __slots__ = ()
    protocol = "postgres"
    comes_with = "Postgres"


class MongoDBResponse(CallResult):
    __slots__ = ()
    protocol = "mongodb"
    comes_with = "MongoDB"


class RedisResponse(CallResult):
    __slots__ = ()
    protocol = "redis"
    comes_with = "Redis"


class KafkaResponse(CallResult):
    __slots__ = ()
    protocol = "kafka"
    comes_with = "Kafka"


class RabbitMQResponse(CallResult):
    __slots__ = ()
    protocol = "rabbitmq"
    comes_with = "RabbitMQ"


class WebsocketResponse(CallResult):
    __slots__ = ()
    protocol = "websocket"
    comes_with = "WebSocket"


class UDPResponse(CallResult):
    __slots__ = ()
    protocol = "udp"
    comes_with = "UDP"
