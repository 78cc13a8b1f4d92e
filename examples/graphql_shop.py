"""GraphQL: queries over HTTP/1.1 and HTTP/2, a mutation, and a subscription as server-sent events.

hyperscale target
hyperscale run examples/graphql_shop.py

The documents are validated against the schema before the run starts.
"""

from hyperscale import Workflow, check, step
from hyperscale.testing import (
    URL,
    Check,
    GraphQLResponse,
    GraphQLSchema,
    Mutation,
    Query,
    SubscriptionResponse,
)


class Shop(Workflow):
    vus = 5
    duration = "3s"
    interval = "10ms"
    schema = GraphQLSchema("protocols/shop.graphql")

    @step()
    async def look(
        self,
        url: URL = "http://localhost:8080/graphql",
        query: Query = "{ shop { name items } }",
    ) -> GraphQLResponse:
        return await self.client.graphql.query(url, query)

    @step("look")
    async def look_over_http2(
        self,
        url: URL = "http://localhost:8080/graphql",
        query: Query = "{ shop { name } }",
    ) -> GraphQLResponse:
        return await self.client.graphql.query(url, query, version=2)

    @step("look_over_http2")
    async def buy(
        self,
        url: URL = "http://localhost:8080/graphql",
        mutation: Mutation = "mutation Buy($id: ID!) { buy(id: $id) { id } }",
    ) -> GraphQLResponse:
        return await self.client.graphql.mutate(url, mutation, variables={"id": self.vu})

    @step("buy")
    async def sales(self, url: URL = "http://localhost:8080/graphql") -> SubscriptionResponse:
        return await self.client.graphql.subscribe(url, "subscription { sold { id } }", events=3)

    @check()
    async def sold_three(self, sales: SubscriptionResponse) -> Check:
        return [payload["data"]["sold"]["id"] for payload in sales.payloads] == [1, 2, 3]
