"""`hyperscale resume`: let a paused run or job go on."""

import argparse

from hyperscale.cli.change_flags import EXIT_CODES, add_change_arguments, make_change
from hyperscale.cli.cluster_flags import CLUSTER_HELP
from hyperscale.graph.changes import resume

DESCRIPTION = """\
Let the load of a paused run or job go on where it was.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale resume default.1-k5mz7vqjx2
  hyperscale resume --run hyperscale-results/shop-20260101-120000

{EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_change_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return make_change(args, resume())
