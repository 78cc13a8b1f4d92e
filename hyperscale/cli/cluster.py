"""`hyperscale cluster`: a whole cluster of real processes on this machine, for trying things."""

import argparse
import sys
from pathlib import Path

from hyperscale.cli.node_queries import named_directory
from hyperscale.cli.parser import Parser
from hyperscale.config import parse_whole
from hyperscale.config.schema import SECTIONS
from hyperscale.errors import InputError
from hyperscale.ui.stream import write_through

_DESCRIPTION = """\
Runs a cluster of real node processes on this machine, on loopback, with a secret of its own.
"""
_UP_DESCRIPTION = """\
Starts managers and workers, prints 'ready' and their addresses, and writes DIR/cluster.json,
which every client command reads with --dir. Nodes keep their data in DIR/data and their logs
in DIR/logs; the same DIR again continues the same cluster. A node that dies by itself is told
and not restarted. Ctrl-C ends all of them, a second one at once.
"""
_UP_EPILOG = """\
examples:
  hyperscale cluster up
  hyperscale cluster up --managers 1 --workers 2 --cores 2 --dir /tmp/lab
  hyperscale submit shop.py --dir /tmp/lab --watch          in another terminal

exit codes: 0 ended by Ctrl-C or SIGTERM, 2 wrong input: nothing was started, 3 a node did not
start
"""
_START_DESCRIPTION = """\
Starts a node of a running local cluster again, after it was killed.
"""
_START_EPILOG = """\
examples:
  hyperscale cluster start worker-2
  hyperscale cluster start manager-1 --dir /tmp/lab

exit codes: 0 started, 2 there is no such node or no such cluster, 3 it is running, or 'cluster up'
is not
"""
_EPILOG = """\
examples:
  hyperscale cluster up                         three managers, three workers, until Ctrl-C
  hyperscale cluster up --workers 2 --cores 2
  hyperscale cluster start worker-2             after it was killed
"""
_NODES_MAX = 64
_YOURS_TO_SET = ("membership", "ledger", "queue", "log")


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.client.cluster_file import DEFAULT_DIRECTORY

    parser = subparsers.add_parser(
        "cluster",
        help="run a whole cluster on this machine",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions", dest="action")
    up = actions.add_parser(
        "up",
        help="start a cluster and keep it until Ctrl-C",
        description=_UP_DESCRIPTION,
        epilog=_UP_EPILOG,
    )
    up.add_argument("--managers", metavar="N", help="how many; default: 3, or as DIR has")
    up.add_argument("--workers", metavar="N", help="how many; default: 3, or as DIR has")
    up.add_argument("--cores", metavar="N", help="of each worker; default: 1, or as DIR has")
    up.add_argument("--datacenters", metavar="N", default="1", help="only 1 so far")
    up.add_argument("--gates", metavar="N", default="0", help="only 0 so far")
    up.add_argument(
        "--base-port",
        metavar="P",
        help="first of the ports, two for each node; default: any free, or those "
        "the cluster in DIR had",
    )
    up.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings for all nodes: {', '.join(_YOURS_TO_SET)}",
    )
    start = actions.add_parser(
        "start",
        help="start a killed node again",
        description=_START_DESCRIPTION,
        epilog=_START_EPILOG,
    )
    start.add_argument("node", metavar="NODE", help="as worker-2")
    for action in (up, start):
        action.add_argument(
            "--dir",
            metavar="DIR",
            default=DEFAULT_DIRECTORY,
            help="directory of the cluster (default %(default)s)",
        )
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "up":
            return _up(args)
        case "start":
            from hyperscale.lab.control import start_again

            pid = start_again(named_directory(args.dir), args.node)
            print(f"{args.node} started, pid {pid}")
        case _:
            args.parser.print_help()
    return 0


def _up(args: argparse.Namespace) -> int:
    from hyperscale.lab.cluster import open_cluster
    from hyperscale.lab.layout import Wanted

    if _whole(args.gates, "--gates", low=0) > 0:
        raise InputError(
            f"--gates: {args.gates}: not possible yet; it comes with gates", hint="leave it out"
        )
    if _whole(args.datacenters, "--datacenters") > 1:
        raise InputError(
            f"--datacenters: {args.datacenters}: more than one comes with gates, which are not "
            "built yet",
            hint="leave it out",
        )
    wanted = Wanted(
        managers=_given(args.managers, "--managers"),
        workers=_given(args.workers, "--workers", low=0),
        cores=_given(args.cores, "--cores", most=4096),
        base_port=_given(args.base_port, "--base-port", most=65535),
        config=None if args.config is None else _checked(Path(args.config)),
    )
    with open_cluster(named_directory(args.dir), wanted, _say, _note) as cluster:
        cluster.run()
    return 0


def _checked(file: Path) -> Path:
    """The file, if nodes would start with it."""
    import msgspec

    from hyperscale.config.loading import load

    given = msgspec.structs.asdict(load("manager", file=file).require())
    default = msgspec.structs.asdict(load("manager").require())
    theirs = [name for name in SECTIONS if name not in _YOURS_TO_SET]
    wrong = [f"[{name}]" for name in theirs if given[name] != default[name]]
    if wrong:
        raise InputError(
            f"--config: {file}: {', '.join(wrong)} cannot be set here: a local cluster has its "
            "own names, ports and secret",
            hint=f"what can be set: {', '.join(_YOURS_TO_SET)}",
        )
    return file


def _given(text: str | None, flag: str, *, low: int = 1, most: int = _NODES_MAX) -> int | None:
    return None if text is None else _whole(text, flag, low=low, most=most)


def _whole(text: str, flag: str, *, low: int = 1, most: int = _NODES_MAX) -> int:
    number = parse_whole(text, low=low, most=most)
    if number is None:
        raise InputError(f"{flag}: {text!r} is not a whole number from {low} to {most}")
    return number


def _say(text: str) -> None:
    """A cluster does not end because nobody reads what it says."""
    write_through(sys.stdout, f"{text}\n")


def _note(text: str) -> None:
    if sys.stderr.isatty():  # whoever waits for 'ready' in a file does not wonder
        write_through(sys.stderr, f"{text}\n")
