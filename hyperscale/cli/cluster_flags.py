"""Commands that talk to a cluster: flags that find it, clients and queries, advice if it is down.

Client commands (`submit`, `jobs`, ...) open a client with `open_client`; operator commands
(`members`, `ledger`, `drain`) query one node with `query_node`.
"""

import argparse
import asyncio
import contextlib
import logging
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from hyperscale.cli.node_flags import add_connection_flags, connection_words, load_node
from hyperscale.cli.printing import print_warning
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_connection import UnknownJobError, ask_node
from hyperscale.client.cluster_file import DEFAULT_DIRECTORY, cluster_path, read_cluster
from hyperscale.client.manager_connections import (
    NoAnswerError,
    NoManagerError,
    WrongSecretError,
)
from hyperscale.config import parse_duration_s
from hyperscale.config.addresses import DEFAULT_PORT, format_address, parse_address, split_address
from hyperscale.config.loading import node_config
from hyperscale.config.schema import GATE_PORT, NodeConfig
from hyperscale.errors import InputError, RunError
from hyperscale.gates.messages import AskDatacenter, AskDatacenterReply
from hyperscale.wire.registry import REGISTRY

_REPEAT_S = 30.0
_WAITING_NOTE_S = 1.5

_T = TypeVar("_T")
_R = TypeVar("_R", bound="Struct")

CLUSTER_HELP = """\
Cluster: --dir names the directory of a local cluster ('hyperscale cluster up'), --manager a
manager of any other cluster, together with --secret-file (or HYPERSCALE_SECRET_FILE) or a
certificate with the role client or operator. Without these flags the command uses the local
cluster in ./hyperscale-cluster if there is one, else the manager on this machine. --gate names a
gate of many datacenters instead of a manager; --dir finds the gates of a local cluster.
"""
QUERY_HELP = """\
Cluster: --dir names the directory of a local cluster ('hyperscale cluster up'), whose gates answer
if it has some, else its managers; --connect names a node of any other cluster. If the cluster has
a secret or certificates, give the same flags as to its nodes; the certificate must have the role
operator.
"""


# -- local clusters -----------------------------------------------------------------------


def find_local_cluster(given: str | None, addresses: Sequence[str], *, flag: str) -> Path | None:
    """Return the directory of the local cluster to talk to, or None for a remote cluster.

    Without `--dir` and without addresses the default directory counts if a cluster is there.
    """
    if given is not None and addresses:
        raise InputError(f"--dir and {flag} cannot be combined", hint="give one of them")
    if given is not None:
        return cluster_directory(given)
    default = Path(DEFAULT_DIRECTORY)
    return default if not addresses and cluster_path(default).exists() else None


def cluster_directory(given: str) -> Path:
    """Return the value of `--dir` as a path; refuse an empty one."""
    if not given:  # as from an unset shell variable: it would mean the working directory
        raise InputError("--dir: is empty", hint="name the directory of the cluster")
    return Path(given)


@contextlib.contextmanager
def cluster_hints(directory: Path | None, flags: str = "") -> Iterator[None]:
    """Add to errors of a client how to restart a local cluster that does not answer, and to the
    commands that their hints name the flags that reach this cluster."""
    try:
        yield
    except UnknownJobError as error:
        raise UnknownJobError(error.job, flags=flags) from error
    except NoAnswerError as error:
        raise NoAnswerError(error.message, flags=flags) from error
    except (NoManagerError, WrongSecretError) as error:
        if directory is None:
            raise
        if isinstance(error, NoManagerError):
            raise RunError(error.message, hint=_restart_hint(directory)) from error
        hint = _restart_hint(directory, "does another cluster use these ports now?")
        raise InputError(error.message, hint=hint) from error


def _restart_hint(directory: Path, question: str = "is the cluster still running?") -> str:
    where = shlex.quote(str(directory))
    return f"{question} 'hyperscale cluster up --dir {where}' starts it again"


# -- client commands ----------------------------------------------------------------------


def add_job_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="job id, as printed by 'hyperscale submit'")


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("cluster").add_argument
    add("--dir", metavar="DIR", help="directory of a local cluster")
    about = f"manager of the cluster (default port: {DEFAULT_PORT}); repeat the flag for more"
    add("--manager", metavar="HOST:PORT", action="append", default=[], help=about)
    about = f"gate of many datacenters (default port: {GATE_PORT}); repeat the flag for more"
    add("--gate", metavar="HOST:PORT", action="append", default=[], help=about)
    # `--key` is the submission key here.
    add_connection_flags(parser, key_flags=("--certificate-key",))


def cluster_words(args: argparse.Namespace) -> str:
    """Return the flags that reach the same cluster again, for commands shown in messages."""
    if args.dir is not None:
        return f" --dir {shlex.quote(args.dir)}"
    managers = args.manager if "manager" in args else args.connect
    words = [word for each in managers for word in ("--manager", each)]
    words += [word for each in vars(args).get("gate", ()) for word in ("--gate", each)]
    words += connection_words(args, key_flag="--certificate-key")
    return "".join(f" {shlex.quote(word)}" for word in words)


def _local_cluster(args: argparse.Namespace) -> Path | None:
    flag = "--gate" if args.gate else "--manager"
    return find_local_cluster(args.dir, args.manager or args.gate, flag=flag)


def has_gates(args: argparse.Namespace) -> bool:
    """Return True if the flags name gates, or a local cluster that has gates."""
    directory = _local_cluster(args)
    return bool(args.gate) if directory is None else bool(read_cluster(directory).gates)


@contextlib.asynccontextmanager
async def open_client(args: argparse.Namespace) -> AsyncIterator[HyperscaleClient]:
    """Open a client of the cluster that the flags name."""
    _silence_log()
    if args.gate and args.manager:
        raise InputError("--gate and --manager cannot be combined", hint="give one of them")
    directory = _local_cluster(args)
    warnings = RepeatedWarnings(print_warning)
    if directory is not None:
        client = HyperscaleClient(directory=directory, on_trouble=warnings)
    else:
        config = load_node(args, "manager").require()
        managers = _addresses(args.manager, "--manager")
        gates = _addresses(args.gate, "--gate", GATE_PORT)
        client = HyperscaleClient(
            managers, gate_tcp_addrs=gates, settings=config, on_trouble=warnings
        )
    async with client:
        with cluster_hints(directory, cluster_words(args)):
            yield client


def ask_cluster(
    args: argparse.Namespace, question: Callable[[HyperscaleClient], Awaitable[_T]]
) -> _T:
    """Open a client, ask one question with it and return the answer."""

    async def ask() -> _T:
        async with open_client(args) as client:
            return await question(client)

    return asyncio.run(ask())


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


# -- operator commands --------------------------------------------------------------------


def add_query_flags(parser: argparse.ArgumentParser, *, timeout: str = "10s") -> None:
    add = parser.add_argument
    add(
        "--connect",
        "--manager",
        "--gate",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="node to query; repeat the flag to name fallbacks (default: the local cluster in "
        f"./hyperscale-cluster if there is one, else 127.0.0.1:{DEFAULT_PORT})",
    )
    add("--dir", metavar="DIR", help="query the gates or managers of the local cluster in DIR")
    about = "ask the managers of this datacenter; the node that is queried is a gate"
    add("--datacenter", metavar="NAME", help=about)
    add("--json", action="store_true", help="print JSON")
    add("--timeout", metavar="D", default=timeout, help="how long to wait (default: %(default)s)")
    add_connection_flags(parser, key_flags=("--key", "--certificate-key"))


def query_node(args: argparse.Namespace, request: Struct, reply_type: type[_R]) -> _R:
    """Send the request to the nodes of the command line, in order, and return the first reply; or
    have a gate send it to the datacenter of the command line."""
    if args.datacenter is None:
        return _query(args, request, reply_type)
    asked = AskDatacenter(datacenter=args.datacenter, request=REGISTRY.pack(request))
    reply = REGISTRY.unpack(_query(args, asked, AskDatacenterReply).reply)
    if not isinstance(reply, reply_type):
        raise RunError(f"the gate answered with {type(reply).__name__}")
    return reply


def _query(args: argparse.Namespace, request: Struct, reply_type: type[_R]) -> _R:
    _silence_log()
    directory = find_local_cluster(args.dir, args.connect, flag="--connect")
    config, addresses = nodes_to_query(args, directory)
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    problems: list[RunError] = []

    async def send(host: str, port: int) -> _R:
        note = f"no answer yet from {format_address(host, port)}; waiting"
        timer = asyncio.get_running_loop().call_later(_WAITING_NOTE_S, print_warning, note)
        try:
            return await ask_node(config, host, port, request, reply_type, timeout_s=timeout_s)
        finally:
            timer.cancel()

    for host, port in addresses:
        try:
            with cluster_hints(directory):
                return asyncio.run(send(host, port))
        except RunError as error:
            problems.append(error)
    is_down = all(isinstance(each.__cause__, ConnectionRefusedError) for each in problems)
    if directory is not None and is_down:
        raise RunError(
            f"no node of the cluster in {directory} can be reached: connection refused",
            hint=_restart_hint(directory),
        )
    raise problems[0]  # there is at least one address


def nodes_to_query(
    args: argparse.Namespace, directory: Path | None
) -> tuple[NodeConfig, list[tuple[str, int]]]:
    """Return the configuration to connect with, and the addresses to try in order."""
    if directory is not None:
        cluster = read_cluster(directory)
        config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
        return config, [split_address(node.tcp) for node in cluster.entrances]
    addresses = _addresses(args.connect or [f"127.0.0.1:{DEFAULT_PORT}"], "--connect")
    return load_node(args, "manager").require(), addresses


def _addresses(
    given: Sequence[str], flag: str, default_port: int = DEFAULT_PORT
) -> list[tuple[str, int]]:
    return [parse_address(each, default_port=default_port, where=flag) for each in given]


def _silence_log() -> None:
    """Discard what the wire logs: the command itself reports it."""
    logging.getLogger("hyperscale").addHandler(logging.NullHandler())
