"""`hyperscale pause`: pause the load of a run or job."""

import argparse

from hyperscale.cli.change_flags import EXIT_CODES, add_change_arguments, make_change
from hyperscale.cli.cluster_flags import CLUSTER_HELP
from hyperscale.graph.changes import pause

DESCRIPTION = """\
Pause the load of a run or job: users finish the iteration they are in and wait, and no iteration
begins until 'hyperscale resume'. Paused time is no part of the duration, and a workflow that
becomes ready meanwhile begins after it. The timeout of the job runs on.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale pause default.1-k5mz7vqjx2
  hyperscale pause --run hyperscale-results/shop-20260101-120000

{EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_change_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return make_change(args, pause())
