"""`hyperscale ledger`: inspect and change the ledger of a cluster."""

import argparse
from typing import Any

from hyperscale.cli.node_query import QUERY_HELP, add_query_flags, query_node
from hyperscale.cli.parser import Parser
from hyperscale.cli.printing import print_json, table

DESCRIPTION = """\
Inspect and change the ledger of a cluster: the replicated log of jobs that its managers keep in
Raft groups. A committed entry survives the loss of any minority of a group's managers.
"""
EPILOG = f"""\
{QUERY_HELP}
examples:
  hyperscale ledger status --connect 127.0.0.1:9000
  hyperscale ledger groups --json
  hyperscale ledger history dc1.3-k5mzq2xw7hrt4yab6cde
  hyperscale ledger history --since 2h
  hyperscale ledger members remove manager-4
  hyperscale ledger verify

exit codes: 0 done, 1 'verify' found replicas that differ or could not be compared, 2 invalid
input, 3 no node could be reached, or the change was refused
"""
_HISTORY = """\
List the committed events of one job, or of all jobs, oldest first. Events are kept for
ledger.history_days (30 days by default), also after a job has ended.
"""
_MEMBERS = """\
Managers join the ledger on their own and become voters of groups as needed. 'add' cancels the
drain of a manager; 'remove' removes a manager that is dead for good; 'promote' makes a manager the
leader of a group. To take out a manager that is alive, use 'hyperscale drain NODE'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", title="actions", parser_class=Parser)
    status = actions.add_parser(
        "status", help="show the groups of this node: role, term, commit, applied, voters"
    )
    groups = actions.add_parser(
        "groups", help="show all nodes and groups of the ledger, and the key slots of each group"
    )
    history = actions.add_parser(
        "history", help="list the committed events of a job, or of all jobs", description=_HISTORY
    )
    history.add_argument(
        "job", metavar="JOB", nargs="?", default="", help="job id (default: all jobs)"
    )
    history.add_argument(
        "--since",
        metavar="T",
        default="",
        help="only events since then: a duration (2h) or an ISO time (2026-01-31T12:00:00Z)",
    )
    history.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=1_000,
        help="at most N events (default: %(default)s)",
    )
    members = actions.add_parser(
        "members", help="add, remove or promote a manager", description=_MEMBERS
    )
    members.add_argument("change", metavar="add|remove|promote", choices=_CHANGES)
    members.add_argument("node", metavar="NODE", help="node id of a manager")
    members.add_argument(
        "--group",
        metavar="G",
        type=int,
        default=0,
        help="promote: the group to lead (default: %(default)s, the management group)",
    )
    snapshot = actions.add_parser(
        "snapshot", help="take snapshots on this node and compact its logs"
    )
    verify = actions.add_parser("verify", help="compare the state of all replicas by hash")
    for action, function in (
        (status, _status),
        (groups, _groups),
        (history, _history),
        (members, _change),
        (snapshot, _snapshot),
        (verify, _verify),
    ):
        add_query_flags(action)
        action.set_defaults(function=function)
    parser.set_defaults(function=None, parser=parser)


_CHANGES = ("add", "remove", "promote")


def run(args: argparse.Namespace) -> int:
    if args.function is None:
        args.parser.print_help()
        return 0
    code: int = args.function(args)
    return code


# -- status and groups --------------------------------------------------------------------


def _fetch_status(args: argparse.Namespace) -> Any:
    from hyperscale.ledger.server.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    return query_node(args, GetLedgerStatus(), GetLedgerStatusReply)


def _status(args: argparse.Namespace) -> int:
    reply = _fetch_status(args)
    if args.json:
        print_json(reply)
        return 0
    head = ("GROUP", "ROLE", "TERM", "LEADER", "COMMIT", "APPLIED", "LAG", "LOG", "VOTERS")
    rows = [
        (
            *(str(row.group), row.role, str(row.term), row.leader, str(row.commit)),
            *(str(row.applied), str(row.commit - row.applied), _size(row.log_bytes)),
            ", ".join(row.voters) + "".join(f", ({name})" for name in row.learners),
        )
        for row in reply.replicas
    ]
    print(table(head, rows))
    print(
        f"\n{reply.node} is node {reply.number} of ledger {reply.ledger}; "
        "learners (in brackets) do not vote"
    )
    if reply.mismatches:
        print(f"its state differed from a leader's {reply.mismatches} times; snapshots replaced it")
    return 0


def _groups(args: argparse.Namespace) -> int:
    reply = _fetch_status(args)
    if args.json:
        print_json({"nodes": reply.nodes, "groups": reply.groups, "migrations": reply.migrations})
        return 0
    nodes = [(str(row.number), row.name, row.domain, row.state) for row in reply.nodes]
    print(table(("NUMBER", "NODE", "DOMAIN", "STATE"), nodes))
    groups = [
        (
            *(str(row.group), row.state, str(row.key_slots), row.leader),
            ", ".join(row.voters),
            "" if row.voters == row.settled else f"from {', '.join(row.settled)}",
            str(row.heir or ""),
        )
        for row in reply.groups
    ]
    print()
    print(table(("GROUP", "STATE", "SLOTS", "LEADER", "VOTERS", "CHANGING", "HEIR"), groups))
    for row in reply.migrations:
        print(f"{row.key_slots} key slots move from group {row.source} to group {row.target}")
    if not reply.groups:
        print(f"no groups yet: {len(reply.nodes)} of {reply.awaited} founding managers are here")
    return 0


# -- history ------------------------------------------------------------------------------


def _history(args: argparse.Namespace) -> int:
    from hyperscale.errors import InputError, RunError
    from hyperscale.jobs.committed.keys import parse_job_id
    from hyperscale.ledger.server.operator_messages import ListEvents, ListEventsReply

    if args.job:
        parse_job_id(args.job)  # raises if it is not a job id
    if args.limit < 1:
        raise InputError(f"--limit: {args.limit} is less than 1")
    request = ListEvents(job=args.job, since_ms=_since_ms(args.since), limit=args.limit)
    reply = query_node(args, request, ListEventsReply)
    if args.job and not reply.rows and not args.since:
        raise RunError(
            f"the ledger has no events of job {args.job}",
            hint="events are kept for ledger.history_days; see 'hyperscale ledger history'",
        )
    if args.json:
        print_json([_event(row) for row in reply.rows])
    else:
        rows = [
            (_time(row[3]), row[0], str(row[1]), str(row[2]), row[4], _about(_event(row)))
            for row in reply.rows
        ]
        print(table(("TIME", "JOB", "GROUP", "INDEX", "EVENT", "ABOUT"), rows))
        if reply.has_more:
            print(f"only the first {len(rows)} events are shown: narrow --since or raise --limit")
    return 0


def _since_ms(text: str) -> int:
    import time
    from datetime import UTC, datetime

    from hyperscale.config import parse_duration_s
    from hyperscale.errors import InputError

    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            ago_s = parse_duration_s(text, where="--since")
        except InputError as error:
            raise InputError(
                f"--since {text!r} is neither a duration nor a time",
                hint="2h, 30m, or 2026-01-31T12:00:00Z",
            ) from error
        return int((time.time() - ago_s) * 1000)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _event(row: tuple[str, int, int, int, str, bytes]) -> dict[str, Any]:
    import msgspec

    job, group, index, stamp_ms, kind, data = row
    try:
        body = msgspec.msgpack.decode(data)
    except msgspec.MsgspecError:
        body = data
    return {
        "time": _time(stamp_ms),
        "job": job,
        "group": group,
        "index": index,
        "event": kind,
        "data": body,
    }


def _about(event: dict[str, Any]) -> str:
    """Return the fields of an event that fit into a line."""
    data = event["data"] if isinstance(event["data"], dict) else {}
    wanted = ("workflow", "part", "attempt", "status", "reason", "error", "by", "key")
    fields = [f"{name}={data[name]}" for name in wanted if data.get(name) not in (None, "")]
    return " ".join(fields)[:100]


def _time(stamp_ms: int) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(stamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- changes ------------------------------------------------------------------------------


def _change(args: argparse.Namespace) -> int:
    change_member(args, args.change, args.node, args.group)
    return 0


def change_member(args: argparse.Namespace, change: str, node: str, group: int = -1) -> None:
    """Request a change of the ledger's members and print its outcome."""
    from hyperscale.errors import RunError
    from hyperscale.ledger.server.operator_messages import (
        ChangeMember,
        ChangeMemberReply,
        MemberChange,
    )

    reply = query_node(
        args, ChangeMember(change=MemberChange(change), node=node, group=group), ChangeMemberReply
    )
    if reply.refused:
        raise RunError(reply.refused, hint=reply.hint)
    if args.json:
        print_json({"done": reply.done})
    else:
        print(reply.done)


def _snapshot(args: argparse.Namespace) -> int:
    from hyperscale.ledger.server.operator_messages import Compact, CompactReply

    reply = query_node(args, Compact(), CompactReply)
    if args.json:
        print_json([{"group": group, "index": index} for group, index in reply.taken])
        return 0
    for group, index in reply.taken:
        print(f"group {group}: snapshot at entry {index}")
    return 0


# -- verify -------------------------------------------------------------------------------


def _verify(args: argparse.Namespace) -> int:
    from hyperscale.ledger.server.operator_messages import Verify, VerifyReply

    reply = query_node(args, Verify(), VerifyReply)
    found: dict[int, set[str]] = {}
    for row in reply.rows:
        found.setdefault(row.group, set()).add(row.digest)
    verdicts = {
        group: "incomplete" if "" in digests else "differ" if len(digests) > 1 else "equal"
        for group, digests in found.items()
    }
    for group, digests in found.items():
        if len(digests - {""}) > 1:
            verdicts[group] = "differ"
    is_whole = all(verdict == "equal" for verdict in verdicts.values())
    if args.json:
        print_json({"is_whole": is_whole, "verdicts": verdicts, "replicas": reply.rows})
        return 0 if is_whole else 1
    rows = [
        (str(row.group), str(row.index), row.node, row.digest or row.why_not, verdicts[row.group])
        for row in reply.rows
    ]
    print(table(("GROUP", "ENTRY", "NODE", "STATE", "REPLICAS"), rows))
    count = sum(verdict == "equal" for verdict in verdicts.values())
    print(f"\n{count} of {len(verdicts)} groups: all replicas answered and are equal")
    return 0 if is_whole else 1


def _size(count: int) -> str:
    for unit in ("B", "KiB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} MiB"
