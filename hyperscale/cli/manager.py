"""`hyperscale manager`: runs a manager until it is told to stop."""

import argparse

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Runs a manager node: it finds the other nodes of its cluster, takes jobs, gives them to workers
and keeps what is known of them, together with the other managers, and shows itself at /metrics,
/healthz and /readyz. Events go to standard error as JSON, one per line.
"""
_EPILOG = """\
Without a secret or certificates it listens on loopback only. SIGTERM or SIGINT makes it say
farewell and end with exit code 0. Settings come from flags, HYPERSCALE_* variables and a TOML
file, in this order; 'hyperscale config check' shows what they add up to.

examples:
  hyperscale manager                                     on 127.0.0.1:9000
  hyperscale manager --port 9200 --http-port 9201 --seed 127.0.0.1:9000
  hyperscale manager --host 0.0.0.0 --secret-file cluster.secret --dns managers.internal
  hyperscale members --connect 127.0.0.1:9000            who is there
  hyperscale submit shop.py --manager 127.0.0.1:9000     a job for its workers
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_flags import add_node_flags

    parser = subparsers.add_parser(
        "manager",
        help="run a manager node",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_node_flags(parser, role="manager")


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_flags import announce, load_node
    from hyperscale.nodes.manager import manager_duties
    from hyperscale.nodes.server import as_config, run_process

    config = as_config("manager", load_node(args, "manager").require())
    run_process(config, manager_duties(config), announce)
    return 0
