"""`hyperscale worker`: runs a worker until it is told to stop."""

import argparse

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Runs a worker node: it joins its cluster through a manager, offers its cores, generates load on
them for the jobs it is given, and shows itself at /metrics, /healthz and /readyz. Results are
kept in its data directory until a manager has them. Events go to standard error as JSON, one
per line.
"""
_EPILOG = """\
It needs to know where a manager is (--seed or --dns); managers and workers may start in any
order. Without a secret or certificates it listens on loopback only. SIGTERM or SIGINT makes it
hand its work over, say farewell and end with exit code 0. Settings come from flags,
HYPERSCALE_* variables and a TOML file, in this order; 'hyperscale config check --role worker'
shows what they add up to.

examples:
  hyperscale worker --seed 127.0.0.1:9000
  hyperscale worker --port 0 --http-port 0 --cores 2 --seed 127.0.0.1:9000
  hyperscale worker --host 0.0.0.0 --secret-file cluster.secret --dns managers.internal
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_flags import add_node_flags

    parser = subparsers.add_parser(
        "worker",
        help="run a worker node",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_node_flags(parser, role="worker")


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_flags import announce, load_node
    from hyperscale.nodes.server import as_config, run_process
    from hyperscale.nodes.worker import worker_duties

    config = as_config("worker", load_node(args, "worker").require())
    run_process(config, worker_duties(config), announce)
    return 0
