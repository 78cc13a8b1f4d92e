"""What commands share that ask a running node something: where it is, how to be let in, tables."""

import argparse
from collections.abc import Sequence
from typing import Any

from hyperscale.config.addresses import DEFAULT_PORT, parse_address, split_address


def add_asking_flags(parser: argparse.ArgumentParser, *, timeout: str = "10s") -> None:
    from hyperscale.cli.node_flags import CONNECTION_SETTINGS, add_node_flags

    parser.add_argument(
        "--connect",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help="a node to ask (default %(default)s)",
    )
    parser.add_argument(
        "--dir", metavar="DIR", help="a local cluster ('hyperscale cluster up'): its managers"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        default=timeout,
        help="how long to wait (default %(default)s)",
    )
    add_node_flags(parser, only=CONNECTION_SETTINGS)


def ask_node(args: argparse.Namespace, question: Any, answer: Any) -> Any:
    """What the node of `--connect` answers."""
    import asyncio
    import logging

    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError
    from hyperscale.nodes.ask import ask

    # What the wire would log is what this command says itself, as its error.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    config, addresses = whom_to_ask(args)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    problem: RunError | None = None
    for host, port in addresses:
        try:
            return asyncio.run(ask(config, host, port, question, answer, timeout_s=timeout_s))
        except RunError as error:
            problem = problem or error
    assert problem is not None  # there is at least one address
    raise problem


def whom_to_ask(args: argparse.Namespace) -> tuple[Any, list[tuple[str, int]]]:
    """The configuration that lets us in, and the nodes to try, in order."""
    from hyperscale.cli.node_flags import load_node
    from hyperscale.config.loading import node_config

    if args.dir is not None:
        from pathlib import Path

        from hyperscale.nodes.local.file import read_cluster

        cluster = read_cluster(Path(args.dir))
        config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
        return config, [split_address(node.tcp) for node in cluster.managers]
    address = parse_address(args.connect, default_port=DEFAULT_PORT, where="--connect")
    return load_node(args, "manager").require(), [address]


def print_json(told: Any) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """What a node says must not move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in text) or "-"
