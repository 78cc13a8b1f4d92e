"""`hyperscale worker`: run a worker node."""

import argparse

from hyperscale.cli.node_flags import NODE_HELP, add_node_flags, run_node

DESCRIPTION = """\
Run a worker node. A worker joins its cluster through a manager, offers its cores and generates load
on them. It keeps results in its data directory until a manager has stored them. The node serves
/metrics, /healthz and /readyz over HTTP and logs to standard error as JSON, one event per line.
"""
EPILOG = f"""\
A worker needs the address of a manager (--seed or --dns); managers and workers may start in any
order.

{NODE_HELP.format(role="worker")}
examples:
  hyperscale worker --seed 127.0.0.1:9000
  hyperscale worker --port 0 --http-port 0 --cores 2 --seed 127.0.0.1:9000
  hyperscale worker --host 0.0.0.0 --secret-file cluster.secret --dns managers.internal
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node_flags(parser, role="worker")


def run(args: argparse.Namespace) -> int:
    return run_node(args, "worker")
