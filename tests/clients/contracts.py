"""What the contract tests need to know about each client that uses a library."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from hyperscale.clients import Client
from hyperscale.testing.responses import LibraryResponse
from tests.services.base import Service
from tests.services.databases import Postgres, Redis

Call = Callable[[Client, str, Any], Awaitable[LibraryResponse]]


@dataclass(frozen=True)
class Contract:
    """One client: a call, its reply, and how its server counts such calls."""

    name: str
    response: str  # the annotation of a step
    step: str  # the expression of a call in a step, with `url`
    call: Call  # the same with a number that the reply has to have
    reads: Callable[[LibraryResponse], Any]  # that number
    count: Callable[[Any], int]  # calls of `step` that the server has counted
    has_login: bool = True
    errors: frozenset[str] = frozenset({"connect", "reset", "timeout"})  # while it is down


def _postgres_count(service: Service) -> int:
    counted = cast(Postgres, service).psql(
        "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query LIKE 'SELECT name%'"
    )
    return int(counted)


def _redis_count(service: Service) -> int:
    for line in cast(Redis, service).cli("INFO", "commandstats").splitlines():
        if line.startswith("cmdstat_get:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0


CONTRACTS = {
    each.name: each
    for each in (
        Contract(
            name="postgres",
            response="PostgresResponse",
            step='self.client.postgres.query(url, "SELECT name FROM items WHERE id = $1", 7)',
            call=lambda client, url, n: client.postgres.query(url, "SELECT $1::int", n),
            reads=lambda response: cast(Any, response).scalar,
            count=_postgres_count,
        ),
        Contract(
            name="redis",
            response="RedisResponse",
            step='self.client.redis.get(url, "item")',
            call=lambda client, url, n: client.redis.command(url, "ECHO", n),
            reads=lambda response: int(response.value),
            count=_redis_count,
        ),
    )
}
