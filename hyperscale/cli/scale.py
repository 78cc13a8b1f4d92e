"""`hyperscale scale`: change the load of a run or job while it runs."""

import argparse

from hyperscale.cli.change_flags import EXIT_CODES, add_change_arguments, make_change
from hyperscale.cli.cluster_flags import CLUSTER_HELP
from hyperscale.graph.changes import scale_to

DESCRIPTION = """\
Change the users or the rate of a run or job while it runs. The new target is for all cores and
workers together, replaces the rest of the shape, and holds until the workflow ends. On a cluster
the change is committed before this command returns: no death of a node loses it.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale scale default.1-k5mz7vqjx2 --vus 500            a job: 500 users from now on
  hyperscale scale default.1-k5mz7vqjx2 --rate 2000/s --over 30s
  hyperscale scale --run hyperscale-results/shop-20260101-120000 --vus 50
  hyperscale scale JOB --workflow Browse --vus 100           one of several workflows

Workflows that share a total (Mix) are scaled together, by their weights.

{EXIT_CODES}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("load").add_argument
    add("--vus", metavar="N", help="the new number of users, for a workflow with users")
    add("--rate", metavar="R", help='the new rate, such as "500/s", for a workflow with a rate')
    add("--over", metavar="D", help='how long it takes to get there, such as "30s" (default: 0)')
    add("--workflow", metavar="NAME", default="", help="the workflow, if there are several")
    add_change_arguments(parser)


def run(args: argparse.Namespace) -> int:
    change = scale_to(
        vus=args.vus, rate=args.rate, over=args.over, workflow=args.workflow, flags="--"
    )
    return make_change(args, change)
