"""`hyperscale gate`: run a gate node."""

import argparse

from hyperscale.cli.node_flags import NODE_HELP, add_node_flags, run_node

DESCRIPTION = """\
Run a gate node. Gates take jobs for several datacenters: they choose datacenters, split each job
over them, and merge their results. Managers register with gates (gates.seeds in their settings).
"""
EPILOG = f"""\
{NODE_HELP.format(role="gate")}
examples:
  hyperscale gate                                        on 127.0.0.1:9300
  hyperscale gate --founders 3 --region eu --seed gate-1.internal:9300 \\
      --host 0.0.0.0 --secret-file cluster.secret        one of three gates
  hyperscale manager --datacenter east --gates-seeds 127.0.0.1:9300
  hyperscale datacenters --gate 127.0.0.1:9300           list the datacenters it knows
  hyperscale submit shop.py --gate 127.0.0.1:9300        run a test in one of them
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_node_flags(parser, role="gate")


def run(args: argparse.Namespace) -> int:
    return run_node(args, "gate")
