"""How the commands that talk to a cluster find it: their flags, and the client they lead to."""

import argparse
import contextlib
import logging
import math
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from hyperscale.config.addresses import DEFAULT_PORT, parse_address
from hyperscale.errors import InputError
from hyperscale.ui.stream import write_through

if TYPE_CHECKING:
    from hyperscale.client.client import HyperscaleClient


_AGAIN_S = 30.0

CLUSTER_HELP = """\
Which cluster: --dir names the directory of a local one ('hyperscale cluster up'), --manager the
managers of any other, with --secret-file, HYPERSCALE_SECRET_FILE or a certificate of role client
or operator. Without either: the local cluster below the working directory, or the manager on this
machine.
"""


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    from hyperscale.cli.node_flags import add_connection_flags

    group = parser.add_argument_group("the cluster")
    group.add_argument("--dir", metavar="DIR", help="directory of a local cluster")
    group.add_argument(
        "--manager",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"a manager of the cluster (port {DEFAULT_PORT} if left out); repeat it for more",
    )
    group.add_argument(
        "--gate", metavar="HOST:PORT", action="append", default=[], help="there are none yet"
    )
    # `--key` is that of a submission here.
    add_connection_flags(parser, key_flags=("--certificate-key",))


def where(args: argparse.Namespace) -> str:
    """The flags that lead to the same cluster again, for messages."""
    from hyperscale.cli.node_flags import connection_words

    if args.dir is not None:
        return f" --dir {shlex.quote(args.dir)}"
    words = [word for each in args.manager for word in ("--manager", each)]
    words += connection_words(args, key_flag="--certificate-key")
    return "".join(f" {shlex.quote(word)}" for word in words)


@contextlib.asynccontextmanager
async def open_client(args: argparse.Namespace) -> "AsyncIterator[HyperscaleClient]":
    from hyperscale.cli.node_flags import load_node
    from hyperscale.cli.node_queries import local_cluster, telling_of
    from hyperscale.client.client import HyperscaleClient

    # What the wire would log is what these commands say themselves, as their error.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    if args.gate:
        raise InputError("--gate: there are no gates yet", hint="give --manager or --dir")
    directory = local_cluster(args.dir, args.manager, flag="--manager")
    troubles = Troubles(_say)
    if directory is not None:
        client = HyperscaleClient(directory=directory, on_trouble=troubles)
    else:
        config = load_node(args, "manager").require()
        managers = [
            parse_address(each, default_port=DEFAULT_PORT, where="--manager")
            for each in args.manager
        ]
        client = HyperscaleClient(managers, settings=config, on_trouble=troubles)
    async with client:
        with telling_of(directory):
            yield client


class Troubles:
    """Tells of a trouble that goes on now and then, however often it is met."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._told: dict[str, float] = {}  # when

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._told.get(text, -math.inf) >= _AGAIN_S:
            self._told[text] = now_s
            self._say(f"{text}; trying on")


def _say(text: str) -> None:
    write_through(sys.stderr, f"hyperscale: {text}\n")


def ago(stamp_ms: int, now_s: float) -> str:
    """How long ago, for people; - if never."""
    from hyperscale.config import format_duration

    if not stamp_ms:
        return "-"
    since_s = round(now_s - stamp_ms / 1000)
    return format_duration(since_s) if since_s > 0 else "0s"
