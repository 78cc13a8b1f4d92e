"""`hyperscale workers`: the workers of a cluster, their cores and what runs on them."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from hyperscale.cli.client_flags import CLUSTER_HELP, add_client_flags
from hyperscale.cli.parser import Parser

if TYPE_CHECKING:
    from hyperscale.client.messages import ListWorkersReply, WorkerRun

_DESCRIPTION = """\
Lists the workers of a cluster: their state, their cores, and what runs on them.
"""
_EPILOG = f"""\
{CLUSTER_HELP}
examples:
  hyperscale workers
  hyperscale workers --json

exit codes: 0 told, 2 wrong input, 3 no manager could be reached
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "workers", help="list the workers of a cluster", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import print_json

    told = asyncio.run(_ask(args))
    if args.json:
        print_json(told)
    else:
        print(_text(told))
    if told.unknown:
        print(
            f"hyperscale: {', '.join(told.unknown)}: what runs there is not known just now",
            file=sys.stderr,
        )
    return 0


async def _ask(args: argparse.Namespace) -> "ListWorkersReply":
    from hyperscale.cli.client_flags import open_client

    async with open_client(args) as client:
        return await client.get_workers()


def _text(told: "ListWorkersReply") -> str:
    from hyperscale.cli.node_queries import table

    rows = [
        (
            *(row.worker, row.state + (", draining" if row.is_draining else ""), row.address),
            *(str(row.cores), str(row.free), "; ".join(map(_run, row.runs))),
        )
        for row in sorted(told.workers, key=lambda row: row.worker)
    ]
    return table(("WORKER", "STATE", "ADDRESS", "CORES", "FREE", "RUNS"), rows)


def _run(run: "WorkerRun") -> str:
    cores = f"{run.cores} core{'' if run.cores == 1 else 's'}"
    return f"{run.workflow} of {run.job} on {cores}{' beside others' if run.is_shared else ''}"
