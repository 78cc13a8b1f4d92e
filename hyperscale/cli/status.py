"""`hyperscale status JOB`: show the state of a job, once."""

import argparse

from hyperscale.cli.cluster_flags import (
    CLUSTER_HELP,
    add_client_flags,
    add_job_argument,
    ask_cluster,
)
from hyperscale.cli.printing import age, print_reply, print_warning, printable, table
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.messages import WatchJobUpdate
from hyperscale.client.updates import queue_note
from hyperscale.errors import RunError
from hyperscale.reporting.results import RunResult

DESCRIPTION = """\
Show the state of a job, its place in the queue, its workflows and their workers.
"""
EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale status default.1-k5mz7vqjx2
  hyperscale status default.1-k5mz7vqjx2 --json

exit codes: 0 shown, 2 invalid input or no such job, 3 no manager could be reached
"""

_RESULT_WAIT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    update, result = ask_cluster(args, lambda client: _fetch(client, args))
    print_reply(args, update, _text(update, result))
    return 0


async def _fetch(
    client: HyperscaleClient, args: argparse.Namespace
) -> tuple[WatchJobUpdate, RunResult | None]:
    """Return the state of the job and, if it has ended and they arrive in time, its results."""
    update = await client.get_job(args.job)
    if not update.job.ended_ms or args.json:
        return update, None
    try:
        return update, await client.get_results(args.job, within_s=_RESULT_WAIT_S)
    except RunError as error:
        print_warning(f"shown without request counts: {error}")
        return update, None


def _text(update: WatchJobUpdate, result: RunResult | None) -> str:
    job = update.job
    lines = [f"{job.job}  {job.status.value}  {printable(job.file)}"]
    note = queue_note(job) or job.reason
    if note:
        lines.append(f"  {printable(note)}")
    ages = {
        "submitted": job.submitted_ago_s,
        "started": job.started_ago_s,
        "ended": job.ended_ago_s,
    }
    facts = [f"{what} {age(ago_s)} ago" for what, ago_s in ages.items() if ago_s is not None]
    lines.append(f"  {', '.join(facts)}")
    if job.reported is not None:
        receivers = ", ".join(job.reported.sent) or "no reporter"
        lines.append(f"  results sent by {job.reported.by} to {printable(receivers)}")
        lines += [f"  not sent: {printable(failure)}" for failure in job.reported.failed]
    lines.append("")
    views = () if update.live is None else update.live.workflows
    figures = {each.name: (each.sent, each.failed, each.requests_now) for each in views}
    if result is not None:
        ended = result.workflows
        figures = {each.name: (each.sent, each.failed, each.requests_per_second) for each in ended}
    rows = []
    for row in job.workflows:
        numbers = ["-", "-", "-"]
        if row.name in figures:
            sent, failed, rate = figures[row.name]
            numbers = [f"{sent:,}", f"{failed:,}", f"{rate:,.0f}/s"]
        cores = f"{row.shared_cores} shared" if row.shared_cores else str(row.cores)
        facts = [row.name, row.status.value, cores, str(row.attempts)]
        rows.append([*facts, *numbers, ", ".join(row.workers)])
    head = ("WORKFLOW", "STATE", "CORES", "ATTEMPTS", "REQUESTS", "FAILED", "RATE", "WORKERS")
    lines.append(table(head, rows))
    reasons = {row.name: [row.error] for row in job.workflows if row.error}
    if result is not None:
        reasons = {each.name: [why.text for why in each.reasons] for each in result.workflows}
    lines += [f"{name}: {printable(why)}" for name, each in reasons.items() for why in each]
    return "\n".join(lines)
