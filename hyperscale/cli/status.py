"""`hyperscale status JOB`: how a job is doing, once."""

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.parser import Parser

if TYPE_CHECKING:
    from hyperscale.client.messages import WatchJobUpdate
    from hyperscale.reporting.results import RunResult

_DESCRIPTION = """\
Shows how a job is doing: its state, its place in the queue, its workflows and their workers.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale status default.1-k5mz7vqjx2
  hyperscale status default.1-k5mz7vqjx2 --json

exit codes: 0 told, 2 wrong input, or there is no such job, 3 no manager could be reached
"""

_RESULT_S = 10.0


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "status", help="show how a job is doing", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("job", metavar="JOB", help="its id, as 'submit' printed it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import print_json

    news, result = asyncio.run(_ask(args))
    if args.json:
        print_json(news)
    else:
        print(_text(news, result))
    return 0


async def _ask(args: argparse.Namespace) -> "tuple[WatchJobUpdate, RunResult | None]":
    """What is known of it, and its result if it has one and that comes soon."""
    from hyperscale.cli.client_flags import open_client
    from hyperscale.errors import RunError

    async with open_client(args) as client:
        news = await client.get_job(args.job)
        if not news.job.ended_ms or args.json:
            return news, None
        try:
            return news, await client.get_results(args.job, within_s=_RESULT_S)
        except RunError as error:
            print(f"hyperscale: shown without numbers: {error}", file=sys.stderr)
            return news, None


def _text(news: "WatchJobUpdate", result: "RunResult | None") -> str:
    from hyperscale.cli.client_flags import ago
    from hyperscale.cli.node_queries import printable, table
    from hyperscale.client.job_display import queue_note

    job, now_s = news.job, time.time()
    lines = [f"{job.job}  {job.status.value}  {printable(job.file)}"]
    note = queue_note(job) or job.reason
    if note:
        lines.append(f"  {printable(note)}")
    facts = [f"submitted {ago(job.submitted_ms, now_s)} ago"]
    if job.started_ms:
        facts.append(f"started {ago(job.started_ms, now_s)} ago")
    if job.ended_ms:
        facts.append(f"ended {ago(job.ended_ms, now_s)} ago")
    lines += [f"  {', '.join(facts)}", ""]
    views = () if news.live is None else news.live.workflows
    figures = {view.name: (view.total, view.failed, view.rate_now) for view in views}
    if result is not None:
        ended = result.workflows
        figures = {each.name: (each.total, each.failed, each.rate_per_second) for each in ended}
    rows = []
    for row in job.workflows:
        numbers = ["-", "-", "-"]
        if row.name in figures:
            total, failed, rate = figures[row.name]
            numbers = [f"{total:,}", f"{failed:,}", f"{rate:,.0f}/s"]
        rows.append(
            [
                *(row.name, row.status.value, str(row.cores), str(row.attempts), *numbers),
                ", ".join(row.workers),
            ]
        )
    head = ("WORKFLOW", "STATE", "CORES", "ATTEMPTS", "REQUESTS", "FAILED", "RATE", "WORKERS")
    lines.append(table(head, rows))
    lines += [f"{row.name}: {printable(row.error)}" for row in job.workflows if row.error]
    return "\n".join(lines)
