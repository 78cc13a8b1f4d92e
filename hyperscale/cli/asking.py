"""What commands share that ask a running node something: where it is, how to be let in, tables."""

import argparse
from collections.abc import Sequence
from typing import Any

DEFAULT_PORT = 9000


def add_asking_flags(parser: argparse.ArgumentParser, *, timeout: str = "10s") -> None:
    from hyperscale.cli.node_flags import CONNECTION_SETTINGS, add_node_flags

    parser.add_argument(
        "--connect",
        metavar="HOST:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help="a node to ask (default %(default)s)",
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

    from hyperscale.cli.node_flags import load_node
    from hyperscale.config import parse_duration_s
    from hyperscale.config.addresses import parse_address
    from hyperscale.nodes.ask import ask

    # What the wire would log is what this command says itself, as its error.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    config = load_node(args, "manager").require()
    host, port = parse_address(args.connect, default_port=DEFAULT_PORT, where="--connect")
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    return asyncio.run(ask(config, host, port, question, answer, timeout_s=timeout_s))


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
