"""`hyperscale members`: list the members of a cluster as one of its nodes sees them."""

import argparse
from typing import Any

from hyperscale.cli.cluster_flags import QUERY_HELP, add_query_flags, query_node
from hyperscale.cli.printing import print_reply, table
from hyperscale.config import format_duration
from hyperscale.nodes.messages import ListMembers, ListMembersReply

DESCRIPTION = """\
List the members of a cluster as one of its nodes sees them: state, role, address, round-trip
time, time in that state, and what each member reports about itself.
"""
EPILOG = f"""\
{QUERY_HELP}
STATE: alive, suspect (does not answer probes), dead, left (shut down cleanly), unconfirmed (known
from others only). WORK is what a manager does with a worker: route (give it work), investigate (no
progress for a while), hold (not ready), drain (stuck), evict.

examples:
  hyperscale members --connect 127.0.0.1:9000
  hyperscale members --dir hyperscale-cluster
  hyperscale members --gate 10.0.0.7:9300                        the gates
  hyperscale members --gate 10.0.0.7:9300 --datacenter east      managers and workers there
  hyperscale members --connect 10.0.0.5:9000 --secret-file cluster.secret --json

exit codes: 0 shown, 2 invalid input, 3 no node could be reached
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_query_flags(parser, timeout="5s")


def run(args: argparse.Namespace) -> int:
    reply = query_node(args, ListMembers(), ListMembersReply)
    print_reply(args, reply, _table(reply))
    return 0


_HEAD = (
    *("NODE", "ROLE", "STATE", "ADDRESS", "RTT", "FOR"),
    *("DATACENTER", "VERSION", "CORES", "READY", "LOAD", "WORK"),
)


def _table(reply: Any) -> str:
    members = sorted(reply.members, key=lambda row: (row.role, row.node))
    alive = sum(row.state == "alive" for row in members)
    summary = f"{alive} of {len(members)} alive in {reply.cluster}/{reply.environment}"
    return "\n".join([table(_HEAD, [_cells(row) for row in members]), "", summary])


def _cells(row: Any) -> tuple[str, ...]:
    metadata = row.metadata
    rtt = "self" if row.is_self else "-" if row.rtt_s is None else f"{row.rtt_s * 1000:.1f}ms"
    reported: tuple[str, ...] = ("-", "-", "-", "-", "-")
    if metadata is not None:
        ready = "yes" if metadata.is_ready else "no"
        cores, version = str(metadata.cores or "-"), metadata.version or "-"
        reported = (metadata.datacenter, version, cores, ready, metadata.overload)
    since = format_duration(row.since_s)
    return (row.node, row.role, row.state, row.address, rtt, since, *reported, row.routing or "")
