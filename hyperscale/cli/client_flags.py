"""Commands that are clients of a cluster: the flags that find it, and the client they open."""

import argparse
import contextlib
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from hyperscale.cli.local_cluster import find_local_cluster, restart_hints
from hyperscale.cli.node_flags import add_connection_flags, connection_words, load_node
from hyperscale.cli.printing import print_warning
from hyperscale.config.addresses import DEFAULT_PORT, parse_address
from hyperscale.errors import InputError

if TYPE_CHECKING:
    from hyperscale.client.client import HyperscaleClient


_REPEAT_S = 30.0

CLUSTER_HELP = """\
Cluster: --dir names the directory of a local cluster ('hyperscale cluster up'), --manager a
manager of any other cluster, together with --secret-file (or HYPERSCALE_SECRET_FILE) or a
certificate with the role client or operator. Without these flags the command uses the local
cluster in ./hyperscale-cluster if there is one, else the manager on this machine.
"""


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, as printed by 'hyperscale submit'")


def add_client_flags(parser: argparse.ArgumentParser) -> None:

    group = parser.add_argument_group("cluster")
    group.add_argument("--dir", metavar="DIR", help="directory of a local cluster")
    group.add_argument(
        "--manager",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help=f"manager of the cluster (default port: {DEFAULT_PORT}); repeat the flag for more",
    )
    group.add_argument(
        "--gate", metavar="HOST:PORT", action="append", default=[], help="not available yet"
    )
    # `--key` is the submission key here.
    add_connection_flags(parser, key_flags=("--certificate-key",))


def cluster_words(args: argparse.Namespace) -> str:
    """Return the flags that reach the same cluster again, for commands shown in messages."""

    if args.dir is not None:
        return f" --dir {shlex.quote(args.dir)}"
    words = [word for each in args.manager for word in ("--manager", each)]
    words += connection_words(args, key_flag="--certificate-key")
    return "".join(f" {shlex.quote(word)}" for word in words)


@contextlib.asynccontextmanager
async def open_client(args: argparse.Namespace) -> "AsyncIterator[HyperscaleClient]":
    """Open a client of the cluster that the flags name."""
    from hyperscale.client.client import HyperscaleClient

    # The command itself reports what the wire would log.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    if args.gate:
        raise InputError("--gate: there are no gates yet", hint="use --manager or --dir")
    directory = find_local_cluster(args.dir, args.manager, flag="--manager")
    warnings = RepeatedWarnings(print_warning)
    if directory is not None:
        client = HyperscaleClient(directory=directory, on_trouble=warnings)
    else:
        config = load_node(args, "manager").require()
        managers = [
            parse_address(each, default_port=DEFAULT_PORT, where="--manager")
            for each in args.manager
        ]
        client = HyperscaleClient(managers, settings=config, on_trouble=warnings)
    async with client:
        with restart_hints(directory):
            yield client


class RepeatedWarnings:
    """Shows a warning at most once in 30 s, however often the client repeats it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._shown_s: dict[str, float] = {}  # warning -> when it was shown last

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        shown_s = self._shown_s.get(text)
        if shown_s is None or now_s - shown_s >= _REPEAT_S:
            self._shown_s[text] = now_s
            self._show(f"{text}; still trying")
