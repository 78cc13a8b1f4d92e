"""`hyperscale manager`: run a manager node."""

import argparse

from hyperscale.cli.node_flags import NODE_HELP, add_node_flags, run_node

DESCRIPTION = """\
Run a manager node. Managers find each other, accept jobs, distribute them to workers and keep
their state in replicated logs. The node serves /metrics, /healthz and /readyz over HTTP and logs
to standard error as JSON, one event per line.
"""
EPILOG = f"""\
{NODE_HELP.format(role="manager")}
examples:
  hyperscale manager                                     on 127.0.0.1:9000
  hyperscale manager --port 9200 --http-port 9201 --seed 127.0.0.1:9000
  hyperscale manager --host 0.0.0.0 --secret-file cluster.secret --dns managers.internal
  hyperscale members --connect 127.0.0.1:9000            list the members of its cluster
  hyperscale submit shop.py --manager 127.0.0.1:9000     run a test on its workers
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node_flags(parser, role="manager")


def run(args: argparse.Namespace) -> int:
    return run_node(args, "manager")
