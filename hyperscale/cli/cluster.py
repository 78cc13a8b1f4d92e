"""`hyperscale cluster`: run a local cluster of real node processes, to try things out."""

import argparse
import sys
from pathlib import Path

import msgspec

from hyperscale.cli.cluster_flags import cluster_directory
from hyperscale.cli.parser import whole_number
from hyperscale.cli.printing import print_line
from hyperscale.client.cluster_file import DEFAULT_DIRECTORY
from hyperscale.config.loading import load
from hyperscale.config.schema import SECTIONS
from hyperscale.errors import InputError
from hyperscale.lab.cluster import restart_node, run_cluster
from hyperscale.lab.layout import ClusterOptions
from hyperscale.ui.stream import write_through

DESCRIPTION = """\
Run a local cluster: real node processes on this machine, on loopback, with their own secret.
"""
_UP_DESCRIPTION = """\
Start managers and workers on this machine, print 'ready' and their addresses, and write
DIR/cluster.json, which client commands read with --dir. With --gates there are also gates, which
run jobs over one or more datacenters. Nodes keep their data in DIR/data and their logs in DIR/logs;
starting again with the same DIR continues the same cluster. A node that dies is reported and not
restarted. Ctrl-C stops all nodes; a second Ctrl-C stops them at once.
"""
_UP_EPILOG = """\
examples:
  hyperscale cluster up
  hyperscale cluster up --managers 1 --workers 2 --cores 2 --dir /tmp/lab
  hyperscale cluster up --gates 3 --datacenters 2 --managers 3 --workers 2
  hyperscale submit shop.py --dir /tmp/lab --watch          in another terminal

exit codes: 0 stopped by Ctrl-C or SIGTERM, 2 invalid input (nothing was started), 3 a node did
not start
"""
_START_DESCRIPTION = """\
Restart a node of a running local cluster after it was killed.
"""
_START_EPILOG = """\
examples:
  hyperscale cluster start worker-2
  hyperscale cluster start manager-1 --dir /tmp/lab

exit codes: 0 started, 2 no such node or no such cluster, 3 the node is running already, or the
'hyperscale cluster up' of this cluster is not running
"""
EPILOG = """\
examples:
  hyperscale cluster up                         three managers, three workers, until Ctrl-C
  hyperscale cluster up --workers 2 --cores 2
  hyperscale cluster up --gates 1 --datacenters 2 --managers 1 --workers 1
  hyperscale cluster start worker-2             after it was killed
"""
_NODES_MAX = 64
_ALLOWED_SECTIONS = ("membership", "ledger", "queue", "retries", "reporting", "log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", title="actions", dest="action")
    up = actions.add_parser(
        "up",
        help="start a local cluster and run it until Ctrl-C",
        description=_UP_DESCRIPTION,
        epilog=_UP_EPILOG,
    )
    add = up.add_argument
    add("--managers", metavar="N", help="managers of a datacenter (default: 3, or as before)")
    add("--workers", metavar="N", help="workers of a datacenter (default: 3, or as before)")
    add("--cores", metavar="N", help="cores of each worker (default: 1, or as before)")
    about = "gates, which run jobs over all datacenters (default: none, or as before)"
    add("--gates", metavar="N", help=about)
    about = "datacenters, named dc1, dc2, ...; needs gates (default: 1, or as before)"
    add("--datacenters", metavar="N", help=about)
    about = "first of the ports, two per node (default: any free ports, or as before)"
    add("--base-port", metavar="P", help=about)
    about = f"TOML file with settings for all nodes, sections {', '.join(_ALLOWED_SECTIONS)}"
    add("--config", metavar="FILE", help=about)
    start = actions.add_parser(
        "start",
        help="restart a node that was killed",
        description=_START_DESCRIPTION,
        epilog=_START_EPILOG,
    )
    start.add_argument("node", metavar="NODE", help="node id, such as worker-2")
    for action in (up, start):
        about = "directory of the cluster (default: %(default)s)"
        action.add_argument("--dir", metavar="DIR", default=DEFAULT_DIRECTORY, help=about)
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "up":
            _up(args)
        case "start":
            pid = restart_node(cluster_directory(args.dir), args.node)
            print(f"{args.node} started, pid {pid}")
        case _:
            args.parser.print_help()
    return 0


def _up(args: argparse.Namespace) -> None:
    wanted = ClusterOptions(
        gates=_given(args.gates, "--gates", low=0),
        datacenters=_given(args.datacenters, "--datacenters"),
        managers=_given(args.managers, "--managers"),
        workers=_given(args.workers, "--workers", low=0),
        cores=_given(args.cores, "--cores", most=4096),
        base_port=_given(args.base_port, "--base-port", most=65535),
        config=None if args.config is None else _checked(Path(args.config)),
    )
    run_cluster(cluster_directory(args.dir), wanted, print_line, _note)


def _checked(file: Path) -> Path:
    """Return the file if nodes can start with it and it only sets what a local cluster allows."""
    given = msgspec.structs.asdict(load("manager", file=file).require())
    default = msgspec.structs.asdict(load("manager").require())
    fixed = [name for name in SECTIONS if name not in _ALLOWED_SECTIONS]
    wrong = [f"[{name}]" for name in fixed if given[name] != default[name]]
    if wrong:
        raise InputError(
            f"--config: {file}: {', '.join(wrong)} cannot be set: a local cluster chooses its own "
            "names, ports and secret",
            hint=f"sections that can be set: {', '.join(_ALLOWED_SECTIONS)}",
        )
    return file


def _given(text: str | None, flag: str, *, low: int = 1, most: int = _NODES_MAX) -> int | None:
    return None if text is None else whole_number(text, flag, low=low, most=most)


def _note(text: str) -> None:
    """Show progress to a person; scripts wait for 'ready'."""
    if sys.stderr.isatty():
        write_through(sys.stderr, f"{text}\n")
