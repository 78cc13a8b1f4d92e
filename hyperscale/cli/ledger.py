"""`hyperscale ledger`: the ledger of a tier, as one of its nodes sees it."""

import argparse
from typing import Any

from hyperscale.cli.parser import Parser

_DESCRIPTION = """\
Asks a manager about the ledger of its tier: what is committed there survives any minority of
its machines.
"""
_EPILOG = """\
With a cluster secret or certificates give the same flags as to a node; the certificate must be
of role operator. Exit code 1: 'verify' found replicas that differ or cannot be compared.

examples:
  hyperscale ledger status --connect 127.0.0.1:9000
  hyperscale ledger groups --json
  hyperscale ledger history dc1.3-k5mzq2xw7hrt4yab6cde
  hyperscale ledger history --since 2h
  hyperscale ledger members remove manager-4
  hyperscale ledger verify
"""
_HISTORY = """\
What was committed about one job, or about all jobs, oldest first. It is kept for
ledger.history_days (30), also after the job has ended.
"""
_MEMBERS = """\
Managers join the ledger by themselves and get seats as they are needed. 'add' takes back a
drain; 'remove' gives up a manager that is dead, whose number is never used again; 'promote' has
a manager lead a group. To take out a manager that is alive: 'hyperscale drain NODE'.
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_queries import add_asking_flags

    parser = subparsers.add_parser(
        "ledger",
        help="look at the ledger of a tier",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions", parser_class=Parser)
    status = actions.add_parser(
        "status", help="the groups the node takes part in: role, term, commit, applied, voters"
    )
    groups = actions.add_parser("groups", help="all nodes and groups of the tier, and their slots")
    history = actions.add_parser(
        "history", help="what was committed about a job, or all jobs", description=_HISTORY
    )
    history.add_argument("job", metavar="JOB", nargs="?", default="", help="id of a job")
    history.add_argument(
        "--since",
        metavar="T",
        default="",
        help="from when on: a duration ago (2h) or an ISO time (2026-01-31T12:00:00Z)",
    )
    history.add_argument(
        "--limit", metavar="N", type=int, default=1_000, help="rows at most (default %(default)s)"
    )
    members = actions.add_parser(
        "members", help="add, remove or promote a node", description=_MEMBERS
    )
    members.add_argument("change", metavar="add|remove|promote", choices=_CHANGES)
    members.add_argument("node", metavar="NODE", help="id of a manager")
    members.add_argument(
        "--group",
        metavar="G",
        type=int,
        default=0,
        help="promote: which group it is to lead (default %(default)s, the management group)",
    )
    snapshot = actions.add_parser(
        "snapshot", help="have the node take snapshots and let its logs before them go"
    )
    verify = actions.add_parser("verify", help="compare the states of all replicas, by hash")
    for action, function in (
        (status, _status),
        (groups, _groups),
        (history, _history),
        (members, _change),
        (snapshot, _snapshot),
        (verify, _verify),
    ):
        add_asking_flags(action)
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


def _told(args: argparse.Namespace) -> Any:
    from hyperscale.cli.node_queries import ask_node
    from hyperscale.nodes.ledger.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    return ask_node(args, GetLedgerStatus(), GetLedgerStatusReply)


def _status(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import print_json, table

    told = _told(args)
    if args.json:
        print_json(told)
        return 0
    head = ("GROUP", "ROLE", "TERM", "LEADER", "COMMIT", "APPLIED", "LAG", "LOG", "VOTERS")
    rows = [
        (
            *(str(row.group), row.role, str(row.term), row.leader, str(row.commit)),
            *(str(row.applied), str(row.commit - row.applied), _size(row.log_bytes)),
            ", ".join(row.voters) + "".join(f", ({name})" for name in row.learners),
        )
        for row in told.replicas
    ]
    print(table(head, rows))
    print(f"\n{told.node} is node {told.number} of ledger {told.ledger}; (learners) do not vote")
    if told.mismatches:
        print(f"it differed from a leader {told.mismatches} times, and was mended by a snapshot")
    return 0


def _groups(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import print_json, table

    told = _told(args)
    if args.json:
        print_json({"nodes": told.nodes, "groups": told.groups, "moves": told.moves})
        return 0
    nodes = [(str(row.number), row.name, row.domain, row.state) for row in told.nodes]
    print(table(("NUMBER", "NODE", "DOMAIN", "STATE"), nodes))
    groups = [
        (
            *(str(row.group), row.state, str(row.slots), row.leader),
            ", ".join(row.voters),
            "" if row.voters == row.settled else f"from {', '.join(row.settled)}",
            str(row.heir or ""),
        )
        for row in told.groups
    ]
    print()
    print(table(("GROUP", "STATE", "SLOTS", "LEADER", "VOTERS", "CHANGING", "HEIR"), groups))
    for row in told.moves:
        print(f"{row.slots} slots move from group {row.source} to group {row.target}")
    if not told.groups:
        print(f"no groups yet: {told.awaited} nodes are awaited, {len(told.nodes)} are here")
    return 0


# -- history ------------------------------------------------------------------------------


def _history(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import ask_node, print_json, table
    from hyperscale.errors import InputError, RunError
    from hyperscale.jobs.committed.keys import parse_job_id
    from hyperscale.nodes.ledger.operator_messages import ListEvents, ListEventsReply

    if args.job:
        parse_job_id(args.job)  # raises for what is none
    if args.limit < 1:
        raise InputError(f"--limit {args.limit}: at least 1")
    asked = ListEvents(job=args.job, since_ms=_since_ms(args.since), limit=args.limit)
    told = ask_node(args, asked, ListEventsReply)
    if args.job and not told.rows and not args.since:
        raise RunError(f"nothing is known of job {args.job}", hint="history is kept for a while")
    if args.json:
        print_json([_event(row) for row in told.rows])
    else:
        rows = [
            (_time(row[3]), row[0], str(row[1]), str(row[2]), row[4], _about(_event(row)))
            for row in told.rows
        ]
        print(table(("TIME", "JOB", "GROUP", "INDEX", "EVENT", "ABOUT"), rows))
        if told.has_more:
            print(f"there are more than these {len(rows)}: narrow --since or raise --limit")
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
    """What a line has room for."""
    data = event["data"] if isinstance(event["data"], dict) else {}
    wanted = ("workflow", "part", "attempt", "status", "reason", "error", "by", "key")
    said = [f"{name}={data[name]}" for name in wanted if data.get(name) not in (None, "")]
    return " ".join(said)[:100]


def _time(stamp_ms: int) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(stamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- changes ------------------------------------------------------------------------------


def _change(args: argparse.Namespace) -> int:
    change_member(args, args.change, args.node, args.group)
    return 0


def change_member(args: argparse.Namespace, change: str, node: str, group: int = -1) -> None:
    """Asks for a change and says what came of it."""
    from hyperscale.cli.node_queries import ask_node, print_json
    from hyperscale.errors import RunError
    from hyperscale.nodes.ledger.operator_messages import ChangeMember, ChangeMemberReply

    told = ask_node(args, ChangeMember(change=change, node=node, group=group), ChangeMemberReply)
    if told.refused:
        raise RunError(told.refused, hint=told.hint)
    if args.json:
        print_json({"done": told.done})
    else:
        print(told.done)


def _snapshot(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import ask_node, print_json
    from hyperscale.nodes.ledger.operator_messages import Compact, CompactReply

    told = ask_node(args, Compact(), CompactReply)
    if args.json:
        print_json([{"group": group, "index": index} for group, index in told.taken])
        return 0
    for group, index in told.taken:
        print(f"group {group}: a snapshot at entry {index}")
    return 0


# -- verify -------------------------------------------------------------------------------


def _verify(args: argparse.Namespace) -> int:
    from hyperscale.cli.node_queries import ask_node, print_json, table
    from hyperscale.nodes.ledger.operator_messages import Verify, VerifyReply

    told = ask_node(args, Verify(), VerifyReply)
    found: dict[int, set[str]] = {}
    for row in told.rows:
        found.setdefault(row.group, set()).add(row.digest)
    verdicts = {
        group: "not all" if "" in digests else "differ" if len(digests) > 1 else "equal"
        for group, digests in found.items()
    }
    for group, digests in found.items():
        if len(digests - {""}) > 1:
            verdicts[group] = "differ"
    is_whole = all(verdict == "equal" for verdict in verdicts.values())
    if args.json:
        print_json({"is_whole": is_whole, "verdicts": verdicts, "replicas": told.rows})
        return 0 if is_whole else 1
    rows = [
        (str(row.group), str(row.index), row.node, row.digest or row.why_not, verdicts[row.group])
        for row in told.rows
    ]
    print(table(("GROUP", "ENTRY", "NODE", "STATE", "REPLICAS"), rows))
    count = sum(verdict == "equal" for verdict in verdicts.values())
    print(f"\n{count} of {len(verdicts)} groups: all replicas answer and are equal")
    return 0 if is_whole else 1


def _size(count: int) -> str:
    for unit in ("B", "KiB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} MiB"
