"""`hyperscale cancel JOB`: end a job early."""

import argparse

from hyperscale.cli.cluster_flags import (
    CLUSTER_HELP,
    add_client_flags,
    add_job_argument,
    ask_cluster,
)
from hyperscale.cli.printing import print_warning
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.reporting.exit_codes import ExitCode

DESCRIPTION = """\
End a job early, whether it runs or waits in the queue. Its load stops within two seconds, and the
results so far are kept. Cancelling a job twice is harmless.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale cancel default.1-k5mz7vqjx2 --reason "wrong environment"

exit codes: 0 the job is being cancelled or is already cancelled, 2 there is no such job, 3 the job
had already ended, or no manager could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    parser.add_argument("--reason", metavar="TEXT", default="", help="reason to show with the job")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    reply = ask_cluster(args, lambda client: client.cancel_job(args.job, args.reason))
    is_cancelled = reply.status == JobStatus.CANCELLED.value
    if reply.accepted or is_cancelled:
        print(f"job {args.job} is {'cancelled' if is_cancelled else 'being cancelled'}")
        return ExitCode.PASSED
    print_warning(f"job {args.job} had already ended: {reply.status}")
    return ExitCode.RUN_FAILED
