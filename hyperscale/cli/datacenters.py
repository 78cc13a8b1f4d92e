"""`hyperscale datacenters`: list the datacenters that gates know; drain, resume and remove them."""

import argparse
import asyncio
import time

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, open_client
from hyperscale.cli.printing import print_reply, print_warning, table
from hyperscale.cli.signals import exit_on_interrupt
from hyperscale.client.client import HyperscaleClient
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError, RunError
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import DatacenterRow

DESCRIPTION = """\
List the datacenters that registered with the gates: whether a gate reaches them, their health, and
how many cores they have. A datacenter that is busy queues jobs; an unhealthy one gets none.

drain NAME     give it no new jobs and wait until those that run there have ended
resume NAME    give it jobs again, also after it was removed
remove NAME    forget it for good: jobs that run there are given up, its managers are refused
"""
EPILOG = f"""\
{CLUSTER_HELP}
A datacenter joins by itself: start its managers with --gates-seeds. Drained and removed is
committed by the gates, so it outlives restarts of gates and managers.

examples:
  hyperscale datacenters --dir lab                     of a local cluster with gates
  hyperscale datacenters --gate 127.0.0.1:9300
  hyperscale datacenters drain east --gate 127.0.0.1:9300
  hyperscale datacenters drain east --no-wait --gate 127.0.0.1:9300
  hyperscale datacenters remove east --gate 127.0.0.1:9300

exit codes: 0 done, 2 invalid input or no such datacenter, 3 refused, jobs still run there after
--timeout, or no gate could be reached; 130 interrupted (the drain continues)
"""

_STATES = {
    "drain": DatacenterState.DRAINED,
    "resume": DatacenterState.ACTIVE,
    "remove": DatacenterState.REMOVED,
}
_DONE = {
    "drain": "gets no new jobs",
    "resume": "takes jobs again",
    "remove": "was removed; its managers may be stopped",
}
_POLL_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", metavar="drain|resume|remove", nargs="?", help="what to do (default: list them)")
    add("name", metavar="NAME", nargs="?", help="the datacenter")
    add("--json", action="store_true", help="print JSON")
    add("--no-wait", action="store_true", help="drain: do not wait until its jobs have ended")
    add("--timeout", metavar="D", default="5m", help="drain: how long to wait (default: 5m)")
    add("--force", action="store_true", help="remove one that answers and takes jobs")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.action is not None and args.action not in _STATES:
        raise InputError(
            f"unknown action {args.action!r}", hint=f"it is one of {', '.join(_STATES)}"
        )
    if args.action is not None and not args.name:
        raise InputError(
            f"datacenters {args.action}: the name is missing",
            hint="'hyperscale datacenters' lists the names",
        )
    timeout_s = parse_duration_s(args.timeout, where="--timeout")
    with exit_on_interrupt("interrupted; what the gates have committed stays"):
        return asyncio.run(_run(args, timeout_s))


async def _run(args: argparse.Namespace, timeout_s: float) -> int:
    async with open_client(args) as client:
        if not client.has_gates:
            raise InputError(
                "this cluster has no gates", hint="only gates know datacenters; --gate names one"
            )
        if args.action is None:
            reply = await client.get_datacenter_list()
            print_reply(args, reply, _text(reply.datacenters))
            for warning in reply.warnings:
                print_warning(warning)
            return 0
        await client.change_datacenter(args.name, _STATES[args.action], force=args.force)
        if args.action == "drain" and not args.no_wait:
            await _until_idle(client, args, timeout_s)
        done = f"{args.name} {_DONE[args.action]}"
        print_reply(args, {"datacenter": args.name, "done": done}, done)
    return 0


async def _until_idle(client: HyperscaleClient, args: argparse.Namespace, timeout_s: float) -> None:
    """Wait until no job that has not ended runs in the datacenter."""
    deadline_s = time.monotonic() + timeout_s
    is_said = False
    while jobs := await _jobs_in(client, args.name):
        if time.monotonic() > deadline_s:
            raise RunError(
                f"{len(jobs)} jobs still run in {args.name} after {args.timeout}: {jobs[0]}",
                hint="it gets no new ones; ask again to wait longer",
            )
        if not is_said:
            is_said = True
            print_warning(f"waiting for {len(jobs)} jobs that run in {args.name}")
        await asyncio.sleep(_POLL_S)


async def _jobs_in(client: HyperscaleClient, datacenter: str) -> list[str]:
    jobs = (await client.get_jobs(live_only=True)).jobs
    return [
        job.job for job in jobs if any(datacenter in workflow.workers for workflow in job.workflows)
    ]


def _text(rows: list[DatacenterRow]) -> str:
    head = (
        "DATACENTER",
        "STATE",
        "REACHABLE",
        "HEALTH",
        "CORES",
        "FREE",
        "QUEUE",
        "WORKERS",
        "RTT",
    )
    return table(head, [_cells(row) for row in rows])


def _cells(row: DatacenterRow) -> tuple[str, ...]:
    return (
        *(row.datacenter, row.state, row.reachability, row.health),
        *(str(row.total_cores), str(row.available_cores), str(row.queue_depth), str(row.workers)),
        "" if row.rtt_ms is None else f"{row.rtt_ms:.1f} ms",
    )
