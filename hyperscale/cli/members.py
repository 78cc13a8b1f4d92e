"""`hyperscale members`: every member of a cluster, as one of its nodes sees them."""

import argparse
from typing import Any

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Asks one node who is in its cluster and shows every member: its state, role, address, round
trip, since when it is in that state, and what it says about itself.
"""
_EPILOG = """\
States: alive; suspect (silent, being looked for); dead; left (said farewell); unconfirmed (heard
of, never met). WORK is what a manager does with a worker: route, investigate (no progress for a
while), hold (not ready), drain (stuck), evict.

With a cluster secret or certificates give the same flags as to a node; the certificate must be
of role operator.

examples:
  hyperscale members --connect 127.0.0.1:9000
  hyperscale members --dir hyperscale-cluster
  hyperscale members --connect 10.0.0.5:9000 --secret-file cluster.secret --json

exit codes: 0 told, 2 wrong input, 3 nobody could be asked
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_queries import add_asking_flags

    parser = subparsers.add_parser(
        "members",
        help="show every member of a cluster",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_asking_flags(parser, timeout="5s")


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import ask_node, print_json
    from hyperscale.nodes.messages import ListMembers, ListMembersReply

    told = ask_node(args, ListMembers(), ListMembersReply)
    if args.json:
        print_json(told)
    else:
        print(_table(told))
    return 0


_HEAD = (
    *("NODE", "ROLE", "STATE", "ADDRESS", "RTT", "FOR"),
    *("DATACENTER", "CORES", "READY", "LOAD", "WORK"),
)


def _table(told: Any) -> str:
    from hyperscale.cli.node_queries import table

    members = sorted(told.members, key=lambda row: (row.role, row.node))
    alive = sum(row.state == "alive" for row in members)
    summary = f"{alive} of {len(members)} alive in {told.cluster}/{told.environment}"
    return "\n".join([table(_HEAD, [_cells(row) for row in members]), "", summary])


def _cells(row: Any) -> tuple[str, ...]:
    from hyperscale.config import format_duration

    about = row.metadata
    rtt = "self" if row.is_self else "-" if row.rtt_s is None else f"{row.rtt_s * 1000:.1f}ms"
    said = ("-", "-", "-", "-")
    if about is not None:
        ready = "yes" if about.is_ready else "no"
        said = (about.datacenter, str(about.cores or "-"), ready, about.overload)
    since = format_duration(row.since_s)
    return (row.node, row.role, row.state, row.address, rtt, since, *said, row.routing)
