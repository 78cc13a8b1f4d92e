"""Commands that query one running node (`members`, `ledger`, `drain`): flags and the request."""

import argparse
import sys
from pathlib import Path
from typing import Any

from hyperscale.cli.local_cluster import find_local_cluster, restart_hint, restart_hints
from hyperscale.cli.node_flags import add_connection_flags, load_node
from hyperscale.config.addresses import (
    DEFAULT_PORT,
    format_address,
    parse_address,
    split_address,
)

_WAITING_NOTE_S = 1.5

QUERY_HELP = """\
Cluster: --dir names the directory of a local cluster ('hyperscale cluster up'), --connect a
manager of any other cluster. If the cluster has a secret or certificates, give the same flags as
to its nodes; the certificate must have the role operator.
"""


def add_query_flags(parser: argparse.ArgumentParser, *, timeout: str = "10s") -> None:

    parser.add_argument(
        "--connect",
        "--manager",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="node to query; repeat the flag to name fallbacks (default: the local cluster in "
        f"./hyperscale-cluster if there is one, else 127.0.0.1:{DEFAULT_PORT})",
    )
    parser.add_argument("--dir", metavar="DIR", help="query a manager of the local cluster in DIR")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout",
        metavar="D",
        default=timeout,
        help="how long to wait (default: %(default)s)",
    )
    add_connection_flags(parser, key_flags=("--key", "--certificate-key"))


def query_node(args: argparse.Namespace, request: Any, reply_type: Any) -> Any:
    """Send the request to the nodes of the command line, in order, and return the first reply."""
    import asyncio
    import logging

    from hyperscale.client.query import ask
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError

    # The command itself reports what the wire would log.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    directory = find_local_cluster(args.dir, args.connect, flag="--connect")
    config, addresses = _nodes_to_query(args, directory)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    problems: list[RunError] = []

    async def send(host: str, port: int) -> Any:
        note = f"hyperscale: no answer yet from {format_address(host, port)}; waiting"
        timer = asyncio.get_running_loop().call_later(
            _WAITING_NOTE_S, lambda: print(note, file=sys.stderr, flush=True)
        )
        try:
            return await ask(config, host, port, request, reply_type, timeout_s=timeout_s)
        finally:
            timer.cancel()

    for host, port in addresses:
        try:
            with restart_hints(directory):
                return asyncio.run(send(host, port))
        except RunError as error:
            problems.append(error)
    is_down = all(isinstance(each.__cause__, ConnectionRefusedError) for each in problems)
    if directory is not None and is_down:
        raise RunError(
            f"no manager of the cluster in {directory} can be reached: connection refused",
            hint=restart_hint(directory),
        )
    raise problems[0]  # there is at least one address


def _nodes_to_query(
    args: argparse.Namespace, directory: Path | None
) -> tuple[Any, list[tuple[str, int]]]:
    """Return the configuration to connect with, and the addresses to try in order."""
    from hyperscale.config.loading import node_config

    if directory is not None:
        from hyperscale.client.cluster_file import read_cluster

        cluster = read_cluster(directory)
        config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
        return config, [split_address(node.tcp) for node in cluster.managers]
    addresses = [
        parse_address(each, default_port=DEFAULT_PORT, where="--connect")
        for each in args.connect or [f"127.0.0.1:{DEFAULT_PORT}"]
    ]
    return load_node(args, "manager").require(), addresses
