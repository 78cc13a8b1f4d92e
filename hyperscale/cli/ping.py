"""`hyperscale ping URL`: send one request and show its timings."""

import argparse
import asyncio
import sys
from typing import Any

from hyperscale._native import Exchange, Recorder
from hyperscale.cli.parser import Parser, UsageError, whole_number
from hyperscale.clients import ClientHub, RequestError
from hyperscale.clients.trace import format_exchange
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.plan import WorkflowPlan
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.testing.arguments import split_url

BODY_CHARS_MAX = 1000
_REDIRECTS_MOST = 1000

DESCRIPTION = """\
Send one request and show its timings, TLS parameters, headers and the start of the body, and every
redirect on the way.
"""
EPILOG = """\
examples:
  hyperscale ping http://localhost:8080/json
  hyperscale ping https://shop.test/ --insecure --timeout 2s
  hyperscale ping http://localhost:8080/echo --method POST --data '{"a": 1}' \\
      --header "Content-Type: application/json"

exit codes: 0 a status below 400, 1 a status of 400 or more, 2 invalid input, 3 no response
"""


def add_arguments(parser: Parser) -> None:
    parser.ignored_word = "http"  # the protocol: there is only one
    add = parser.add_argument
    about = "URL with http:// or https:// ('ping http URL', as in earlier versions, works too)"
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
    exchange = asyncio.run(_ping(args))
    print(format_exchange(exchange, body_chars_max=BODY_CHARS_MAX))
    sys.stdout.flush()
    if exchange.error is not None:
        return ExitCode.RUN_FAILED
    return ExitCode.NOT_PASSED if exchange.status >= 400 else ExitCode.PASSED


async def _ping(args: argparse.Namespace) -> Exchange:
    split_url(args.url)
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
    hub = ClientHub(plan, Recorder(1), trace=seen.append)
    try:
        await hub.client(0).http.request(args.method, args.url, **call)
    except RequestError as error:
        return error.exchange
    finally:
        hub.close()
    return seen[-1]


def _url(text: str) -> str:
    if text.isalnum():
        raise UsageError(
            "hyperscale ping",
            f"{text!r} is not a URL",
            hint=f"type: hyperscale ping http://{text}; the only protocol is http",
        )
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise InputError(f"--header: {text!r} is not a header", hint='write "Name: value"')
    return name.strip(), value.strip()
