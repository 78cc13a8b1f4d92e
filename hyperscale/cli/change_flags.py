"""What `scale`, `pause` and `resume` share: the run or job they are for, and how it is reached."""

import argparse
from pathlib import Path

from hyperscale.cli.cluster_flags import add_client_flags, ask_cluster
from hyperscale.errors import InputError
from hyperscale.plan.changes import LoadChange
from hyperscale.reporting.exit_codes import ExitCode
from hyperscale.runner.control import change_run

EXIT_CODES = """\
exit codes: 0 done, 2 there is no such run or job, it has ended, or the change does not fit it,
3 the run or the cluster did not answer
"""


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    about = "job id, as printed by 'hyperscale submit'"
    parser.add_argument("job", metavar="JOB", nargs="?", help=about)
    about = "a run on this machine instead of a job: the directory that it writes its results to"
    parser.add_argument("--run", metavar="DIR", help=about)
    add_client_flags(parser)


def make_change(args: argparse.Namespace, change: LoadChange) -> int:
    """Make a change of the run or job that the arguments name; return the exit code."""
    if (args.job is None) == (args.run is None):
        raise InputError(
            "give a job or --run, and not both",
            hint="JOB for a job of a cluster, --run DIR for a run on this machine",
        )
    if args.run is not None:
        change_run(Path(args.run), change)
    else:
        job = str(args.job)
        ask_cluster(args, lambda client: client.change_load(job, change))
    print(change.describe())
    return ExitCode.PASSED
