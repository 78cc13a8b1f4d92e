"""GraphQL queries and mutations against strawberry, a server that is not ours."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import strawberry
from strawberry.asgi import GraphQL

from hyperscale.clients.graphql import GraphQLClient
from hyperscale.testing import GraphQLResponse, SubscriptionResponse
from tests.conftest import RunningTarget
from tests.lab.asgi import serving
from tests.lab.clients import Lab, in_lab


@strawberry.type
class Query:
    @strawberry.field
    def hello(self, name: str = "you") -> str:
        return f"hello {name}"

    @strawberry.field
    def broken(self) -> str | None:
        raise ValueError("out of stock")


@strawberry.type
class Mutation:
    @strawberry.mutation
    def add(self, price: int) -> int:
        return price + 1


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @strawberry.subscription
    async def broken(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("out of prices")


@dataclass
class Shop:
    """A GraphQL server and what it was asked."""

    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    graphql: Any = GraphQL(strawberry.Schema(Query, Mutation, Subscription))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def listen() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                shop.asked.append(json.loads(message["body"]))
            return message

        await graphql(scope, listen, send)

    with serving(application) as port:
        shop.port = port
        yield shop


def test_queries_and_mutations_return_their_data(shop: Shop) -> None:
    async def work(lab: Lab) -> list[GraphQLResponse]:
        graphql = GraphQLClient(lab.http)
        document = "query Hi($name: String) { hello(name: $name) } query Other { hello }"
        return [
            await graphql.query(shop.url, "{ hello }"),
            await graphql.query(shop.url, "{ hello }"),
            await graphql.query(shop.url, document, variables={"name": "ann"}, operation="Hi"),
            await graphql.query(shop.url, document, variables={"name": "bob"}, operation="Hi"),
            await graphql.mutate(shop.url, "mutation { add(price: 4) }"),
        ]

    responses = in_lab(work)
    assert [each.data for each in responses] == [
        {"hello": "hello you"},
        {"hello": "hello you"},
        {"hello": "hello ann"},
        {"hello": "hello bob"},
        {"add": 5},
    ]
    assert all(each.ok and each.status == 200 and not each.errors for each in responses)
    assert len(shop.asked) == 5
    assert shop.asked[0] == {"query": "{ hello }"}
    assert shop.asked[2]["operationName"] == "Hi"


def test_errors_in_a_good_reply_are_failures_of_class_graphql(shop: Shop) -> None:
    async def work(lab: Lab) -> GraphQLResponse:
        return await GraphQLClient(lab.http).query(shop.url, "{ hello broken }")

    response = in_lab(work)
    assert response.status == 200
    assert not response.ok
    assert response.data == {"hello": "hello you", "broken": None}
    assert response.failure() == ("graphql", "out of stock")


def test_subscriptions_end_after_their_events(shop: Shop) -> None:
    url = shop.url.replace("http://", "ws://")

    async def work(lab: Lab) -> list[SubscriptionResponse]:
        graphql = GraphQLClient(lab.http)
        document = "subscription Count($n: Int!) { count(upto: $n) }"
        return [
            await graphql.subscribe(url, document, events=3, variables={"n": 100}),
            await graphql.subscribe(url, document, events=2, variables={"n": 2}),
            await graphql.subscribe(url, "subscription { broken }", events=2),
            await graphql.subscribe(url, "subscription { nothing }", events=1),
        ]

    first, second, broken, wrong = in_lab(work)
    assert [each["data"]["count"] for each in first.payloads] == [0, 1, 2]
    assert [each["data"]["count"] for each in second.payloads] == [0, 1]
    assert first.failure() is None
    assert len(first.gaps_s) == 2
    assert broken.failure() == ("graphql", "out of prices")
    failure = wrong.failure()
    assert failure is not None
    assert "nothing" in failure[1]


def test_a_body_that_is_no_reply_fails_as_protocol(target: RunningTarget) -> None:
    async def work(lab: Lab) -> GraphQLResponse:
        return await GraphQLClient(lab.http).query(f"{target.url}/json", "{ hello }")

    response = in_lab(work)
    failure = response.failure()
    assert failure is not None
    assert failure[0] == "protocol"


def test_the_body_is_read_even_if_no_step_can_see_it(shop: Shop) -> None:
    async def work(lab: Lab) -> GraphQLResponse:
        return await GraphQLClient(lab.http).query(shop.url, "{ broken }")

    failure = in_lab(work, sees_body=False).failure()
    assert failure is not None
    assert failure[0] == "graphql"


def test_a_persisted_query_is_sent_whole_only_if_the_server_does_not_know_it() -> None:
    asked: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        asked.append(body)
        known = any("query" in each for each in asked)
        reply = {"data": {"hello": "you"}}
        if not known:
            code = {"code": "PERSISTED_QUERY_NOT_FOUND"}
            reply = {"errors": [{"message": "PersistedQueryNotFound", "extensions": code}]}  # type: ignore[dict-item]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(reply).encode()})

    async def work(lab: Lab, url: str) -> list[GraphQLResponse]:
        graphql = GraphQLClient(lab.http)
        return [await graphql.query(url, "{ hello }", persisted=True) for _ in range(2)]

    with serving(application) as port:
        responses = in_lab(lambda lab: work(lab, f"http://127.0.0.1:{port}/"))
    assert [each.ok for each in responses] == [True, True]
    assert ["query" in each for each in asked] == [False, True, False]
    assert len({each["extensions"]["persistedQuery"]["sha256Hash"] for each in asked}) == 1


# --- over HTTP/2, and as server-sent events ----------------------------------------------


def test_queries_and_mutations_go_over_http2(target: RunningTarget) -> None:
    url = f"{target.url}/graphql"

    async def work(lab: Lab) -> list[GraphQLResponse]:
        client = GraphQLClient(lab.http)
        return [
            await client.query(url, "{ shop { name } }", version=2),
            await client.mutate(url, "mutation { buy(id: 1) { id } }", version=2),
            await client.query(url, "{ fail }", version=2),
        ]

    shop, bought, failed = in_lab(work)
    assert shop.exchange.version == "HTTP/2"
    assert shop.data["shop"]["name"] == "Hyperscale"
    assert bought.data == {"buy": {"id": 1}}
    assert failed.failure() == ("graphql", "as the document asked")
    assert target.counts()["routes"]["/graphql"] == {"POST": 3}


async def _events(scope: Any, receive: Any, send: Any) -> None:
    """Serve subscriptions as graphql-sse asks for it, with the executor of graphql-core."""
    assert scope["type"] == "http"
    body = json.loads((await receive())["body"])
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(event: str, data: object) -> None:
        text = f"event: {event}\ndata: {json.dumps(data) if data else ''}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    found = await strawberry.Schema(Query, subscription=Subscription).subscribe(
        body["query"], variable_values=body.get("variables")
    )
    if hasattr(found, "__aiter__"):
        async for result in found:
            errors = [error.formatted for error in result.errors or ()]
            await write("next", {"data": result.data} | ({"errors": errors} if errors else {}))
    else:
        await write("next", {"errors": [error.formatted for error in found.errors]})
    await write("complete", None)
    await send({"type": "http.response.body", "body": b""})


def test_a_subscription_as_server_sent_events_collects_its_events() -> None:
    async def work(lab: Lab) -> list[SubscriptionResponse]:
        client = GraphQLClient(lab.http)
        text = "subscription Count($n: Int!) { count(upto: $n) }"
        return [
            await client.subscribe(url, text, events=3, variables={"n": 5}),
            await client.subscribe(url, text, events=10, variables={"n": 2}),
            await client.subscribe(url, "subscription { broken }", events=2),
            await client.subscribe(url, "subscription { none }", events=1),
        ]

    with serving(_events) as port:
        url = f"http://127.0.0.1:{port}/"
        three, two, broken, wrong = in_lab(work)
    assert [payload["data"]["count"] for payload in three.payloads] == [0, 1, 2]
    assert (three.ok, len(three.times_s), three.failure()) == (True, 3, None)
    assert [payload["data"]["count"] for payload in two.payloads] == [0, 1]
    assert broken.failure() == ("graphql", "out of prices")
    assert wrong.failure() is not None
