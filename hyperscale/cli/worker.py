"""`hyperscale worker`: run a worker node."""

import argparse

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Run a worker node. A worker joins its cluster through a manager, offers its cores and generates load
on them. It keeps results in its data directory until a manager has stored them. The node serves
/metrics, /healthz and /readyz over HTTP and logs to standard error as JSON, one event per line.
"""
_NOTES = """\
A worker needs the address of a manager (--seed or --dns); managers and workers may start in any
order.

"""
_EXAMPLES = """\
  hyperscale worker --seed 127.0.0.1:9000
  hyperscale worker --port 0 --http-port 0 --cores 2 --seed 127.0.0.1:9000
  hyperscale worker --host 0.0.0.0 --secret-file cluster.secret --dns managers.internal
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_flags import add_node_parser

    add_node_parser(
        subparsers, "worker", description=_DESCRIPTION, notes=_NOTES, examples=_EXAMPLES
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_flags import run_node

    return run_node(args, "worker")
