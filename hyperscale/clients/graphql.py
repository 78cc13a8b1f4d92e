"""`self.client.graphql`: queries, mutations and subscriptions through the native engine."""

import hashlib
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from hyperscale.clients.bodies import encode_json
from hyperscale.clients.http import EngineCalls
from hyperscale.clients.library import ClientError
from hyperscale.clients.templates import PlainCall
from hyperscale.clients.websocket import SocketOptions, WebsocketClient
from hyperscale.errors import InputError
from hyperscale.testing.arguments import DataBytes, HeadersValue
from hyperscale.testing.graphql import GraphQLResponse, SubscriptionResponse

_HEADERS = HeadersValue({"Accept": "application/graphql-response+json, application/json;q=0.9"})
_HEADERS.optimized = _HEADERS
_SUBPROTOCOL = "graphql-transport-ws"
_NOT_FOUND = ("PersistedQueryNotFound", "PERSISTED_QUERY_NOT_FOUND")

# Requests without variables are the same every time: they are encoded once. Never taken out, as
# rendered requests are known by the identity of their parts.
_kept: dict[tuple[object, ...], DataBytes] = {}
_KEPT_MAX = 1024
_EVENTS_MAX = 1_000_000


class GraphQLClient:
    """The GraphQL client of one virtual user. It shares connections and cookies with `http`."""

    __slots__ = ("_calls",)

    def __init__(self, calls: EngineCalls) -> None:
        self._calls = calls

    async def query(
        self,
        url: str,
        query: str,
        *,
        variables: Mapping[str, Any] | None = None,
        operation: str | None = None,
        persisted: bool = False,
        **call: Unpack[PlainCall],
    ) -> GraphQLResponse:
        """Send a query: `await self.client.graphql.query(url, "{ shop { name } }")`.

        `operation` names the one to run if the document has several. With `persisted` only the
        hash of the document is sent, and the document itself if the server does not know it. The
        other arguments are those of `self.client.http.post`.
        """
        if not persisted:
            return await self._send(url, _body(query, variables, operation), call)
        digest = hashlib.sha256(query.encode()).hexdigest()
        response = await self._send(url, _body(None, variables, operation, digest), call)
        if not _is_unknown(response):
            return response
        return await self._send(url, _body(query, variables, operation, digest), call)

    async def subscribe(
        self,
        url: str,
        subscription: str,
        *,
        events: int,
        variables: Mapping[str, Any] | None = None,
        operation: str | None = None,
        **call: Unpack[SocketOptions],
    ) -> SubscriptionResponse:
        """Wait for `events` events of a subscription.

        With ws:// and wss:// over a WebSocket of its own (`graphql-transport-ws`), with http:// and
        https:// as server-sent events. The latency is the time until the last event.
        """
        if url.startswith(("http://", "https://")):
            return await self._subscribe_sse(url, subscription, events, variables, operation, call)
        socket = WebsocketClient(self._calls)
        call["subprotocols"] = (_SUBPROTOCOL,)
        opened = await socket.connect(url, **call)
        if opened.status >= 400:
            return SubscriptionResponse(opened.exchange)
        acknowledged = await socket.exchange(url, json={"type": "connection_init"}, **call)
        if acknowledged.json().get("type") != "connection_ack":
            detail = f"no connection_ack but {acknowledged.text}"
            raise ClientError("protocol", detail, request=f"subscribe {url}")
        fields = {"query": str(subscription), "variables": variables, "operationName": operation}
        payload = {name: value for name, value in fields.items() if value is not None}
        message = {"id": "1", "type": "subscribe", "payload": payload}
        response = await socket.exchange(url, json=message, count=events, **call)
        # Further events may be on their way: no other subscription may take them for its own.
        await socket.close(url, **call)
        return SubscriptionResponse(response.exchange)

    async def _subscribe_sse(
        self,
        url: str,
        subscription: str,
        events: int,
        variables: Mapping[str, Any] | None,
        operation: str | None,
        call: SocketOptions,
    ) -> SubscriptionResponse:
        """Subscribe with one request, whose response are the events (`graphql-sse`)."""
        if not 1 <= events <= _EVENTS_MAX:
            raise InputError(f"subscribe {url}: events={events} is not from 1 to {_EVENTS_MAX:,}")
        fields = {"query": str(subscription), "variables": variables, "operationName": operation}
        body = encode_json({name: value for name, value in fields.items() if value is not None})
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        options = {**call, "headers": {**headers, **(call.get("headers") or {})}}
        template = self._calls.book.stream_template(
            "POST",
            url,
            options,
            SubscriptionResponse,
            {
                "body": body.content,
                "content_type": body.content_type,
                "events": True,
                "count": events,
            },
        )
        response: SubscriptionResponse = await self._calls.send_template(template)
        return response

    async def ping(self, url: str, **call: Unpack[PlainCall]) -> GraphQLResponse:
        """Ask for the name of the type of queries."""
        return await self.query(url, "{ __typename }", **call)

    async def mutate(
        self,
        url: str,
        mutation: str,
        *,
        variables: Mapping[str, Any] | None = None,
        operation: str | None = None,
        **call: Unpack[PlainCall],
    ) -> GraphQLResponse:
        """Send a mutation: `await self.client.graphql.mutate(url, m, variables={"id": 1})`."""
        return await self._send(url, _body(mutation, variables, operation), call)

    async def _send(self, url: str, body: "_Body", call: PlainCall) -> GraphQLResponse:
        given = call.get("headers")
        headers = {**_HEADERS, **given} if given else _HEADERS
        options: dict[str, Any] = {**call, "headers": headers, **body}
        response = await self._calls.send("POST", url, options, needs_body=True)
        return GraphQLResponse(response.exchange)


class _Body(TypedDict, total=False):
    """The argument of `http.post` that is the body."""

    data: DataBytes
    json: Mapping[str, Any]


def _body(
    document: str | None,
    variables: Mapping[str, Any] | None,
    operation: str | None,
    digest: str | None = None,
) -> _Body:
    """Return the body of a request; `digest` is that of a document the server may know."""
    key = (document, operation, digest)
    if variables is None and key in _kept:
        return {"data": _kept[key]}
    # A request part is a kind of text that is not encoded as such.
    text = None if document is None else str(document)
    fields: dict[str, object] = {"query": text, "variables": variables}
    fields["operationName"] = operation
    fields = {name: value for name, value in fields.items() if value is not None}
    if digest is not None:
        fields["extensions"] = {"persistedQuery": {"version": 1, "sha256Hash": digest}}
    if variables is not None or len(_kept) >= _KEPT_MAX:
        return {"json": fields}
    encoded = encode_json(fields)
    body = _kept[key] = DataBytes(encoded.content)
    body.optimized = encoded
    return {"data": body}


def _is_unknown(response: GraphQLResponse) -> bool:
    """Return True if the server does not know the document of a hash."""
    for error in response.errors:
        code = (error.get("extensions") or {}).get("code")
        if error.get("message") in _NOT_FOUND or code in _NOT_FOUND:
            return True
    return False


CLIENT = GraphQLClient
