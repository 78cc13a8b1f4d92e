"""`hyperscale ping [NAME] URL`: send one request and show its timings."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

from hyperscale._native import Exchange, Recorder
from hyperscale.cli.parser import Parser, UsageError, whole_number
from hyperscale.clients import ClientError, ClientHub, RequestError
from hyperscale.clients.grpc import GRPCClient
from hyperscale.clients.libraries import ENGINE_CLIENTS
from hyperscale.clients.trace import format_exchange
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.plan import WorkflowPlan
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.testing.arguments import UrlValue, split_url
from hyperscale.testing.grpc import GRPCResponse
from hyperscale.testing.protocols import NATIVE_PROTOCOLS, PROTOCOLS, protocol_of
from hyperscale.testing.responses import LibraryResponse
from hyperscale.testing.services import list_services

BODY_CHARS_MAX = 1000
_HEALTH = "grpc.health.v1.Health/Check"
_HEALTH_STATUSES = {1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_REDIRECTS_MOST = 1000

_BY_SCHEME = {
    "ws": "websocket",
    "wss": "websocket",
    "tcp": "tcp",
    "tls": "tcp",
    "udp": "udp",
}

DESCRIPTION = """\
Send one request and show its timings, TLS parameters, headers and the start of the body, and every
redirect on the way. For a database, a broker and other servers: connect, make one round trip and
show the server's version and the timings.
"""
EPILOG = """\
examples:
  hyperscale ping http://localhost:8080/json
  hyperscale ping https://shop.test/ --insecure --timeout 2s
  hyperscale ping http://localhost:8080/echo --method POST --data '{"a": 1}' \\
      --header "Content-Type: application/json"
  hyperscale ping wss://shop.test/updates      a handshake, a ping and its pong
  hyperscale ping sse http://localhost:8080/sse/10/5
  hyperscale ping http2 https://shop.test/
  hyperscale ping http3 https://shop.test/
  hyperscale ping grpc http://localhost:8080         asks the server for its health and services
  hyperscale ping postgres postgresql://user:password@localhost/shop

exit codes: 0 a reply, with HTTP a status below 400, 1 a status of 400 or more, 2 invalid input,
3 no response
"""


def add_arguments(parser: Parser) -> None:
    parser.leading_words = (*NATIVE_PROTOCOLS, *ENGINE_CLIENTS, *PROTOCOLS)
    add = parser.add_argument
    names = ", ".join((*NATIVE_PROTOCOLS[1:], *ENGINE_CLIENTS, *PROTOCOLS))
    about = f"URL, after the name of its client if it is not http: {names}"
    add("url", metavar="URL", type=_url, help=about)
    add("--method", "-X", metavar="M", default="GET", help="request method (default: GET)")
    about = "request header; repeat the flag for more"
    add("--header", "-H", metavar="'NAME: VALUE'", action="append", default=[], help=about)
    add("--data", "-d", metavar="TEXT", help="request body")
    add("--timeout", metavar="D", default="30s", help="longest time to wait (default: 30s)")
    add("--redirects", metavar="N", default="10", help="follow at most N redirects (default: 10)")
    add("--insecure", "-k", action="store_true", help="do not verify the server certificate")
    add("--ca", metavar="FILE", help="certificate authorities to trust (PEM)")


def run(args: argparse.Namespace) -> int:
    row = protocol_of(args.url.partition("://")[0])
    name = args.leading_word or (row.name if row is not None else "http")
    name = _BY_SCHEME.get(args.url.partition("://")[0], name)
    if name in PROTOCOLS:
        return asyncio.run(_ping_server(name, args))
    exchange, remarks = asyncio.run(_ping(args, name))
    print(format_exchange(exchange, body_chars_max=BODY_CHARS_MAX))
    for remark in remarks:
        print(f"* {remark}")
    sys.stdout.flush()
    if exchange.error is not None:
        return ExitCode.RUN_FAILED
    is_good = exchange.status < 400 and not exchange.grpc_status
    return ExitCode.PASSED if is_good else ExitCode.NOT_PASSED


async def _ping_server(name: str, args: argparse.Namespace) -> int:
    """Make a round trip with the client of this name and print it."""
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    plan = WorkflowPlan(name="ping", vus=1, duration_s=timeout_s, timeout_s=timeout_s)
    hub = ClientHub(plan, Recorder(1))
    try:
        client = getattr(hub.client(0), name)
        response: LibraryResponse = await client.ping(args.url, timeout=timeout_s)
    except ClientError as error:
        print(f"> {error.request}\n< no reply: {error.error}: {error.detail}")
        return ExitCode.RUN_FAILED
    finally:
        await hub.drain()
        hub.close()
    connect_ms = (response.connect_ns or 0) / 1e6
    print(f"< {response.value}")
    print(f"* {response.latency_ns / 1e6:.2f} ms for a round trip, connect {connect_ms:.2f} ms")
    return ExitCode.PASSED


async def _ping(args: argparse.Namespace, name: str) -> tuple[Exchange, list[str]]:
    """Send a request, or make a round trip with another client that uses the engine; return it,
    and what else the server said."""
    if name in (*NATIVE_PROTOCOLS, "graphql", "sse"):
        split_url(args.url)
    else:
        UrlValue.wrap(args.url)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    redirects = whole_number(args.redirects, "--redirects", low=0, most=_REDIRECTS_MOST)
    call: dict[str, Any] = {"redirects": redirects, "verify": not args.insecure}
    if args.header:
        call["headers"] = dict(map(_header, args.header))
    if args.data is not None:
        call["data"] = args.data
    if args.ca is not None:
        call["ca"] = args.ca
    plan = WorkflowPlan(name="ping", vus=1, duration_s=timeout_s, timeout_s=timeout_s)
    seen: list[Exchange] = []
    remarks: list[str] = []
    hub = ClientHub(plan, Recorder(1), trace=seen.append)
    try:
        client = getattr(hub.client(0), name)
        few = {key: value for key, value in call.items() if key in ("verify", "headers", "ca")}
        if name in ("http", "http2", "http3"):
            await client.request(args.method, args.url, **call)
        elif name == "grpc":
            few.pop("headers", None)
            health = await client.unary(args.url, _HEALTH, b"", **few)
            remarks = await _grpc_remarks(client, args.url, health, few)
            return health.exchange, remarks
        else:
            await client.ping(args.url, **few)
    except RequestError as error:
        return error.exchange, remarks
    finally:
        hub.close()
    return seen[-1], remarks


async def _grpc_remarks(
    client: GRPCClient, url: str, health: GRPCResponse, call: dict[str, Any]
) -> list[str]:
    """Return what a server says of its health and of its services."""
    remarks = []
    if health.ok:
        # HealthCheckResponse: one number.
        status = (health.message or b"\x08\0")[-1]
        remarks.append(f"health: {_HEALTH_STATUSES.get(status, 'UNKNOWN')}")

    def ask(method: str, messages: list[bytes]) -> Awaitable[GRPCResponse]:
        return client.bidi_stream(url, method, messages, **call)

    try:
        remarks.append(f"services: {', '.join(await list_services(ask)) or 'none'}")
    except InputError as error:
        remarks.append(error.message)
    return remarks


def _url(text: str) -> str:
    if text.isalnum():
        raise UsageError(
            "hyperscale ping",
            f"{text!r} is not a URL",
            hint=f"type: hyperscale ping http://{text}; other clients: "
            f"{', '.join((*ENGINE_CLIENTS, *PROTOCOLS))}",
        )
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InputError(f"--header: {text!r} is not a header", hint='write "Name: value"')
    return name.strip(), value.strip()
