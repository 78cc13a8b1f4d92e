"""`hyperscale jobs`: list the jobs of a cluster."""

import argparse

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, ask_cluster
from hyperscale.cli.page_flags import after_of, place_text, since_ms
from hyperscale.cli.parser import whole_number
from hyperscale.cli.printing import age, print_reply, print_warning, table
from hyperscale.client.inputs import JOBS_MOST
from hyperscale.client.messages import ListJobsReply
from hyperscale.errors import InputError

DESCRIPTION = """\
List the jobs of a cluster, newest first: jobs that run or wait, and jobs that ended in the last
ten minutes. --since lists all jobs that ended since then, in the order of their end, page by page:
they are kept for ledger.history_days (30 days by default), and 'hyperscale status' and 'hyperscale
results' show them.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale jobs
  hyperscale jobs --live --json
  hyperscale jobs --since 7d
  hyperscale jobs --since 2026-01-31 --limit 1000 --json

exit codes: 0 shown, 2 invalid input, 3 no manager could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--live", action="store_true", help="only jobs that have not ended")
    about = "jobs that ended since then: a duration (7d) or an ISO time (2026-01-31T12:00:00Z)"
    add("--since", metavar="T", help=about)
    about = "with --since, the next page: what the last one ended with"
    add("--after", metavar="PLACE", default="", help=about)
    add("--limit", metavar="N", default="100", help="at most N jobs (default: 100)")
    add("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    limit = whole_number(args.limit, "--limit", most=JOBS_MOST)
    if args.since is None:
        if args.after:
            raise InputError("--after needs --since", hint="the --since of the first page")
        reply = ask_cluster(args, lambda client: client.get_jobs(limit=limit, live_only=args.live))
        print_reply(args, reply, _text(reply))
    else:
        reply = _ended(args, limit)
    if reply.missing:
        print_warning(f"{', '.join(reply.missing)} did not answer: jobs may be missing")
    return 0


def _ended(args: argparse.Namespace, limit: int) -> ListJobsReply:
    """Show a page of the jobs that ended since a time."""
    if args.live:
        raise InputError("--live and --since cannot be combined", hint="give one of them")
    since, after = since_ms(args.since), after_of(args.after)
    reply = ask_cluster(
        args, lambda client: client.get_ended_jobs(since_ms=since, limit=limit, after=after)
    )
    rows = [
        (job.job, job.status.value, f"{age(job.ended_ago_s)} ago", job.file, job.by, job.reason)
        for job in reply.jobs
    ]
    text = table(("JOB", "STATE", "ENDED", "FILE", "BY", "REASON"), rows)
    next_page = "" if reply.after is None else place_text(reply.after)
    if next_page:
        text += f"\nthere is more: --after {next_page}"
    print_reply(args, {"jobs": reply.jobs, "after": next_page}, text)
    return reply


def _text(reply: ListJobsReply) -> str:
    rows = [
        (
            *(job.job, job.status.value, str(job.position or ""), age(job.submitted_ago_s)),
            *(job.file, job.reason),
        )
        for job in reply.jobs
    ]
    return table(("JOB", "STATE", "QUEUE", "AGE", "FILE", "REASON"), rows)
