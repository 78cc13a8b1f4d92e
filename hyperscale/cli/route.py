"""`hyperscale route FILE`: say in which datacenters a job would run, and why."""

import argparse
import asyncio
from collections.abc import Sequence

from hyperscale.cli.cluster_flags import CLUSTER_HELP, add_client_flags, open_client
from hyperscale.cli.datacenter_flags import add_datacenter_flags, datacenter_options
from hyperscale.cli.load_flags import (
    add_only_flag,
    add_parameter_flag,
    add_placement_flags,
    parameters_of,
    placement_of,
)
from hyperscale.cli.printing import print_reply, table
from hyperscale.client.package import package_file
from hyperscale.errors import InputError
from hyperscale.gates.datacenters.routing import DatacenterScore
from hyperscale.gates.messages import RouteJobReply
from hyperscale.graph import Overrides

DESCRIPTION = """\
Ask the gates in which datacenters a test would run now, and how its virtual users would be split.
Nothing is submitted. With --job, show where a job went and what the gates knew when they chose.
"""
EPILOG = f"""\
{CLUSTER_HELP}
--explain shows what decides, in this order: health (a worse class is taken only if no better one is
left), failures a moment ago, free cores less what was just assigned, queue, circuit breaker, round
trip in steps of 50 ms. Equal ones are drawn by the submission key: give --key to see the draw of a
submission with that key.

examples:
  hyperscale route shop.py --gate 10.0.0.7:9300 --datacenters 2 --explain
  hyperscale route shop.py --gate 10.0.0.7:9300 --datacenter east --fallback
  hyperscale route --job global.1-k5mz7vqjx2 --gate 10.0.0.7:9300 --explain

exit codes: 0 shown, 2 invalid input or no datacenter can run the test, 3 no gate could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?", help="test file (Python)")
    add("--job", metavar="JOB", help="show where this job went")
    add("--explain", action="store_true", help="show every datacenter and what decided")
    add("--key", metavar="K", help="submission key (default: a random one)")
    add("--json", action="store_true", help="print JSON")
    group = parser.add_argument_group("load")
    group.add_argument("--vus", metavar="N", help="virtual users of each workflow")
    add_only_flag(group)
    add_parameter_flag(group)
    add_placement_flags(parser)
    add_datacenter_flags(parser)
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    if bool(args.file) == bool(args.job):
        raise InputError("give a test file or --job", hint="'hyperscale route --help' has examples")
    reply = asyncio.run(_ask(args))
    if reply.choice is None or (reply.refused and not args.job):
        raise InputError(reply.refused, hint=reply.hint)
    print_reply(args, reply, _text(reply, explain=args.explain))
    return 0


async def _ask(args: argparse.Namespace) -> RouteJobReply:
    async with open_client(args) as client:
        if args.job:
            return await client.get_route(args.job)
        options = datacenter_options(args, has_gates=client.has_gates) | placement_of(args)
        overrides = Overrides(vus=args.vus, only=args.only)
        package = package_file(args.file, overrides, parameters_of(args))
        return await client.route_job(package, key=args.key or "", **options)


def _text(reply: RouteJobReply, *, explain: bool) -> str:
    choice = reply.choice
    assert choice is not None
    fallback = ", ".join(choice.fallback) or "none"
    lines = [
        f"runs in     {', '.join(choice.primary)}",
        f"fallback    {fallback}",
        f"health      {choice.worst_health.name.lower()} at worst",
        f"decided by  {reply.by}",
    ]
    if reply.shares:
        lines += ["", _shares(reply)]
    if explain:
        lines += ["", _scores(choice.scores, choice.primary, choice.fallback)]
    return "\n".join(lines)


def _shares(reply: RouteJobReply) -> str:
    workflows = list(dict.fromkeys(name for shares in reply.shares.values() for name in shares))
    rows = [
        (name, *(f"{shares.get(workflow, 0):,}" for workflow in workflows))
        for name, shares in reply.shares.items()
    ]
    return table(("DATACENTER", *(f"VUS OF {name}" for name in workflows)), rows)


_HEAD = (
    *("DATACENTER", "CHOICE", "HEALTH", "FREE", "UNDER WAY", "QUEUE", "FAILED LATELY", "BREAKER"),
    *("RTT", "BECAUSE"),
)


def _scores(
    scores: Sequence[DatacenterScore], primary: Sequence[str], fallback: Sequence[str]
) -> str:
    rows = []
    for score in scores:
        name = score.datacenter
        is_chosen = name in primary
        word = "runs" if is_chosen else "fallback" if name in fallback else "no"
        rtt = "-" if score.rtt_ms is None else f"{score.rtt_ms:.1f} ms {score.rtt_source.value}"
        rows.append(
            (
                *(name, word, score.health.name.lower(), str(score.free_cores)),
                *(str(score.under_way), str(score.queue_depth)),
                "yes" if score.is_cooling else "no",
                "open" if score.is_breaker_open else "closed",
                rtt,
                score.excluded or (f"rank {score.rank + 1}" if word != "no" else "not needed"),
            )
        )
    return table(_HEAD, rows)
