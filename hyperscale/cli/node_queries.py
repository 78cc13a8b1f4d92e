"""What commands share that ask a running node something: where it is, how to be let in, tables."""

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hyperscale.config.addresses import (
    DEFAULT_PORT,
    format_address,
    parse_address,
    split_address,
)
from hyperscale.errors import InputError

_TELL_S = 1.5


def add_asking_flags(parser: argparse.ArgumentParser, *, timeout: str = "10s") -> None:
    from hyperscale.cli.node_flags import add_connection_flags

    parser.add_argument(
        "--connect",
        "--manager",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a node to ask; repeat it for more (default: the local cluster below the working "
        f"directory, or 127.0.0.1:{DEFAULT_PORT})",
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
    add_connection_flags(parser, key_flags=("--key", "--certificate-key"))


def ask_node(args: argparse.Namespace, question: Any, answer: Any) -> Any:
    """What the first node answers that can be asked."""
    import asyncio
    import logging

    from hyperscale.client.query import ask
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError

    # What the wire would log is what this command says itself, as its error.
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
    config, addresses = whom_to_ask(args)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    problems: list[RunError] = []

    async def asked(host: str, port: int) -> Any:
        late = f"hyperscale: no answer yet from {format_address(host, port)}; waiting"
        telling = asyncio.get_running_loop().call_later(
            _TELL_S, lambda: print(late, file=sys.stderr, flush=True)
        )
        try:
            return await ask(config, host, port, question, answer, timeout_s=timeout_s)
        finally:
            telling.cancel()

    directory = local_cluster(args.dir, args.connect, flag="--connect")
    for host, port in addresses:
        try:
            with telling_of(directory):
                return asyncio.run(asked(host, port))
        except RunError as error:
            problems.append(error)
    is_down = all(isinstance(each.__cause__, ConnectionRefusedError) for each in problems)
    if directory is not None and is_down:
        raise RunError(
            f"no manager of the cluster in {directory} can be reached: connection refused",
            hint=still_running(directory),
        )
    raise problems[0]  # there is at least one address


def whom_to_ask(args: argparse.Namespace) -> tuple[Any, list[tuple[str, int]]]:
    """The configuration that lets us in, and the nodes to try, in order."""
    from hyperscale.cli.node_flags import load_node
    from hyperscale.config.loading import node_config

    directory = local_cluster(args.dir, args.connect, flag="--connect")
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


def local_cluster(given: str | None, addresses: Sequence[str], *, flag: str) -> Path | None:
    """The directory of the local cluster that is meant, if one is."""
    from hyperscale.client.cluster_file import DEFAULT_DIRECTORY, cluster_path

    if given is not None and addresses:
        raise InputError(f"--dir and {flag} exclude each other")
    if given is not None:
        return named_directory(given)
    default = Path(DEFAULT_DIRECTORY)
    return default if not addresses and cluster_path(default).exists() else None


def named_directory(given: str) -> Path:
    if not given:  # a variable nobody set: it would be the working directory
        raise InputError("--dir: is empty", hint="name the directory of the cluster")
    return Path(given)


@contextlib.contextmanager
def telling_of(directory: Path | None) -> Iterator[None]:
    """Advice for a local cluster, if it is one that does not answer."""
    from hyperscale.client.manager_connections import NoManagerError, WrongSecretError
    from hyperscale.errors import RunError

    try:
        yield
    except NoManagerError as error:
        if directory is None:
            raise
        raise RunError(error.message, hint=still_running(directory)) from error
    except WrongSecretError as error:
        if directory is None:
            raise
        raise InputError(
            error.message, hint=f"another cluster has its ports now? {_again(directory)}"
        ) from error


def still_running(directory: Path) -> str:
    """The hint for a local cluster that is not there."""
    return f"is it still running? {_again(directory)}"


def _again(directory: Path) -> str:
    return f"'hyperscale cluster up --dir {shlex.quote(str(directory))}' starts it again"


def print_json(told: Any) -> None:
    """In UTF-8, as JSON is, whatever the terminal speaks."""
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them is on a terminal."""
    from hyperscale.ui.text import cell_width

    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_width(cell))
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """What a node says must not move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in text) or "-"
