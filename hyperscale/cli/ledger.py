"""`hyperscale ledger`: inspect and change the ledger of a cluster."""

import argparse
from datetime import UTC, datetime
from typing import Any

import msgspec

from hyperscale.cli.cluster_flags import QUERY_HELP, add_query_flags, cluster_words, query_node
from hyperscale.cli.ledger_recovery import RECOVERY_ACTIONS, RECOVERY_DESCRIPTIONS
from hyperscale.cli.page_flags import after_of, place_text, since_ms
from hyperscale.cli.parser import whole_number
from hyperscale.cli.printing import is_confirmed, print_reply, table
from hyperscale.config import format_duration
from hyperscale.errors import InputError, RunError
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.ledger.audit import AUDIT, decode_audit
from hyperscale.ledger.replica import is_index
from hyperscale.ledger.server.operator_messages import (
    ChangeMember,
    ChangeMemberReply,
    Compact,
    CompactReply,
    GetLedgerStatus,
    GetLedgerStatusReply,
    ListEvents,
    ListEventsReply,
    MemberChange,
    RaiseVersion,
    Verify,
    VerifyReply,
)
from hyperscale.ledger.store import position_of
from hyperscale.ledger.topology import NodeState
from hyperscale.reporting.exit_codes import ExitCode

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
  hyperscale ledger audit --since 7d
  hyperscale ledger members remove manager-4
  hyperscale ledger verify
  hyperscale ledger version
  hyperscale ledger backup --out monday.backup
  hyperscale ledger restore monday.backup --data-dir m0

exit codes: 0 done, 1 'verify' found replicas that differ or could not be compared, 2 invalid
input, 3 no node could be reached, or the change was refused
"""
_DESCRIPTIONS = RECOVERY_DESCRIPTIONS | {
    "audit": """\
List who changed what, oldest first: jobs that were submitted, changed or cancelled, nodes and
datacenters that were drained, added or removed, snapshots and backups. An entry is committed
together with the change, and kept for ledger.history_days (30 days by default). A name is not
proven if the client has no credential of its own (docs/security.md).
""",
    "history": """\
List the committed events of one job, or of all jobs, oldest first. Events are kept for
ledger.history_days (30 days by default), also after a job has ended.
""",
    "members": """\
Managers join the ledger on their own and become voters of groups as needed. Where ledger.admit is
"approve", a new manager waits until 'approve' lets it take part. 'add' cancels the drain of a
manager; 'remove' removes a manager for good; 'promote' makes a manager the leader of a group. To
take a manager that is alive out of service, use 'hyperscale drain NODE'; 'remove --force' takes its
votes away at once. 'remove' asks for confirmation on a terminal. A removed manager keeps running,
is not ready and does no more work; with an empty data directory it joins as a new one.
""",
    "version": """\
Show the cluster version and the version of every manager and worker. The cluster version rises by
itself, ledger.upgrade_hold_s (10 minutes) after all of them announce a higher one; until then each
can go back to the older version, afterwards older nodes are refused. 'raise' does not wait.
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    for name, (function, summary) in _ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=_DESCRIPTIONS.get(name))
        action.set_defaults(function=function)
        add_query_flags(action)
    for name, (function, summary, add_flags) in RECOVERY_ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=_DESCRIPTIONS.get(name))
        action.set_defaults(function=function)
        add_flags(action)
    add = actions.choices["history"].add_argument
    add("job", metavar="JOB", nargs="?", default="", help="job id (default: all jobs)")
    about = "only events since then: a duration (2h) or an ISO time (2026-01-31T12:00:00Z)"
    add("--since", metavar="T", default="", help=about)
    about = "at most N events (default: %(default)s)"
    add("--limit", metavar="N", type=int, default=1_000, help=about)
    add = actions.choices["audit"].add_argument
    about = "only entries since then: a duration (2h) or an ISO time (2026-01-31T12:00:00Z)"
    add("--since", metavar="T", default="", help=about)
    add("--limit", metavar="N", default="100", help="at most N entries (default: %(default)s)")
    add("--after", metavar="PLACE", default="", help="the next page: what the last one ended with")
    add = actions.choices["members"].add_argument
    changes = ("add", "approve", "remove", "promote")
    add("change", metavar="|".join(changes), choices=changes)
    add("node", metavar="NODE", help="node id of a manager")
    about = "promote: the group to lead (default: %(default)s, the management group)"
    add("--group", metavar="G", type=int, default=0, help=about)
    add("--force", action="store_true", help="remove: also a manager that is alive")
    add("--yes", "-y", action="store_true", help="remove: do not ask for confirmation")
    add = actions.choices["version"].add_argument
    add("change", metavar="raise", nargs="?", choices=("raise",), help="raise it now, without hold")
    about = "raise: give up managers that are dead and older; they are refused when they come back"
    add("--force", action="store_true", help=about)
    parser.set_defaults(function=None, parser=parser)


def run(args: argparse.Namespace) -> int:
    if args.function is None:
        args.parser.print_help()
        return 0
    code: int = args.function(args)
    return code


def _status(args: argparse.Namespace) -> int:
    reply = query_node(args, GetLedgerStatus(), GetLedgerStatusReply)
    head = ("GROUP", "ROLE", "TERM", "LEADER", "COMMIT", "APPLIED", "LAG", "LOG", "VOTERS")
    rows = [
        (
            *(str(row.group), row.role, str(row.term), row.leader, str(row.commit)),
            *(str(row.applied), str(row.commit - row.applied), _size(row.log_bytes)),
            ", ".join(row.voters) + "".join(f", ({name})" for name in row.learners),
        )
        for row in reply.replicas
    ]
    ledger = f"{reply.node} is node {reply.number} of ledger {reply.ledger}"
    lines = [table(head, rows), "", f"{ledger}; learners (in brackets) do not vote"]
    if reply.mismatches:
        times = f"{reply.mismatches} times"
        lines.append(f"its state differed from a leader's {times}; snapshots replaced it")
    print_reply(args, reply, "\n".join(lines))
    return 0


def _groups(args: argparse.Namespace) -> int:
    reply = query_node(args, GetLedgerStatus(), GetLedgerStatusReply)
    nodes = [(str(row.number), row.name, row.domain, row.state) for row in reply.nodes]
    groups = [
        (
            *(str(row.group), row.state, str(row.key_slots), row.leader),
            ", ".join(row.voters),
            "" if row.voters == row.settled else f"from {', '.join(row.settled)}",
            str(row.heir or ""),
        )
        for row in reply.groups
    ]
    head = ("GROUP", "STATE", "SLOTS", "LEADER", "VOTERS", "CHANGING", "HEIR")
    lines = [table(("NUMBER", "NODE", "DOMAIN", "STATE"), nodes), "", table(head, groups)]
    lines += [
        f"{row.key_slots} key slots move from group {row.source} to group {row.target}"
        for row in reply.migrations
    ]
    if not reply.groups:
        here = f"{len(reply.nodes)} of {reply.awaited} founding managers are here"
        lines.append(f"no groups yet: {here}")
    data = {"nodes": reply.nodes, "groups": reply.groups, "migrations": reply.migrations}
    print_reply(args, data, "\n".join(lines))
    return 0


def _history(args: argparse.Namespace) -> int:
    if args.job:
        parse_job_id(args.job)  # raises if it is not a job id
    if args.limit < 1:
        raise InputError(f"--limit: {args.limit} is less than 1")
    request = ListEvents(job=args.job, since_ms=since_ms(args.since), limit=args.limit)
    reply = query_node(args, request, ListEventsReply)
    if args.job and not reply.rows and not args.since:
        raise RunError(
            f"the ledger has no events of job {args.job}",
            hint="events are kept for ledger.history_days; see 'hyperscale ledger history"
            f"{cluster_words(args)}'",
        )
    events = [_event(row) for row in reply.rows if not is_index(row[0])]
    columns = ("time", "job", "group", "index", "event")
    rows = [[*(str(event[name]) for name in columns), _about(event["data"])] for event in events]
    lines = [table(("TIME", "JOB", "GROUP", "INDEX", "EVENT", "ABOUT"), rows)]
    if reply.has_more:
        lines.append(
            f"only the first {len(rows)} events are shown: narrow --since or raise --limit"
        )
    print_reply(args, events, "\n".join(lines))
    return 0


def _audit(args: argparse.Namespace) -> int:
    """Show who changed what."""
    limit = whole_number(args.limit, "--limit", most=10_000)
    request = ListEvents(
        job=AUDIT, since_ms=since_ms(args.since), limit=limit, after=after_of(args.after)
    )
    reply = query_node(args, request, ListEventsReply)
    entries = [(row, decode_audit(row[5])) for row in reply.rows]
    rows = [
        (
            _event(row)["time"],
            entry.by if entry.is_proven else f"{entry.by} (not proven)",
            *(entry.role, entry.action, entry.subject, entry.detail),
        )
        for row, entry in entries
    ]
    lines = [table(("TIME", "BY", "ROLE", "ACTION", "SUBJECT", "DETAIL"), rows)]
    next_page = ""
    if reply.has_more and reply.rows:
        next_page = place_text(position_of(reply.rows[-1]))
        lines.append(f"there is more: --after {next_page}")
    shown = [
        {
            **{name: _event(row)[name] for name in ("time", "group", "index")},
            "by": entry.by,
            "is_proven": entry.is_proven,
            "role": entry.role,
            "action": entry.action,
            "subject": entry.subject,
            "detail": entry.detail,
        }
        for row, entry in entries
    ]
    print_reply(args, {"entries": shown, "after": next_page}, "\n".join(lines))
    return 0


def _event(row: tuple[str, int, int, int, str, bytes]) -> dict[str, Any]:
    job, group, index, stamp_ms, kind, data = row
    moment = datetime.fromtimestamp(stamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    try:
        body = msgspec.msgpack.decode(data)
    except msgspec.MsgspecError:
        body = data
    at = moment.replace("+00:00", "Z")
    return {"time": at, "job": job, "group": group, "index": index, "event": kind, "data": body}


def _about(data: object) -> str:
    """Return the fields of an event that fit into a line."""
    if not isinstance(data, dict):
        return ""
    wanted = ("workflow", "part", "attempt", "status", "reason", "error", "by", "key")
    fields = [f"{name}={data[name]}" for name in wanted if data.get(name) not in (None, "")]
    return " ".join(fields)[:100]


def _version(args: argparse.Namespace) -> int:
    if args.change == "raise":
        raised = query_node(args, RaiseVersion(is_forced=args.force), ChangeMemberReply)
        if raised.refused:
            raise RunError(raised.refused, hint=raised.hint)
        print_reply(args, {"done": raised.done}, raised.done)
        return 0
    reply = query_node(args, GetLedgerStatus(), GetLedgerStatusReply)
    nodes = [row for row in reply.nodes if row.state != NodeState.GONE]
    rows = [(row.name, "ledger", str(row.version)) for row in nodes]
    rows += [(name, "worker", str(version)) for name, version in sorted(reply.workers.items())]
    state = f"the cluster version is {reply.version}"
    if reply.agreed > reply.version:
        agreed_for = format_duration(reply.agreed_for_s)
        state += f"; all nodes have announced {reply.agreed} for {agreed_for}"
    versions = {name: version for name, _, version in rows}
    about = {
        "version": str(reply.version),
        "agreed": str(reply.agreed) if reply.agreed > reply.version else None,
        "agreed_for_s": reply.agreed_for_s if reply.agreed > reply.version else 0.0,
        "nodes": versions,
    }
    print_reply(args, about, f"{table(('NODE', 'PART', 'VERSION'), rows)}\n\n{state}")
    return 0


def _change(args: argparse.Namespace) -> int:
    question = (
        f"Remove {args.node} from the ledger for good? Its data directory cannot be used again: "
        "to come back, it has to join as a new manager."
    )
    if args.change == "remove" and not args.yes and not is_confirmed(question):
        print("nothing was changed")
        return 0
    change_member(args, args.change, args.node, group=args.group, is_forced=args.force)
    return 0


def change_member(
    args: argparse.Namespace, change: str, node: str, *, group: int = -1, is_forced: bool = False
) -> None:
    """Request a change of the ledger's members and print its outcome."""
    change_to = MemberChange(change)
    request = ChangeMember(change=change_to, node=node, group=group, is_forced=is_forced)
    reply = query_node(args, request, ChangeMemberReply)
    if reply.refused:
        raise RunError(reply.refused, hint=reply.hint)
    print_reply(args, {"done": reply.done}, reply.done)


def _snapshot(args: argparse.Namespace) -> int:
    reply = query_node(args, Compact(), CompactReply)
    lines = [f"group {group}: snapshot at entry {index}" for group, index in reply.taken]
    taken = [{"group": group, "index": index} for group, index in reply.taken]
    print_reply(args, taken, "\n".join(lines) or "this node has no groups")
    return 0


def _verify(args: argparse.Namespace) -> int:
    reply = query_node(args, Verify(), VerifyReply)
    found: dict[int, set[str]] = {}
    for row in reply.rows:
        found.setdefault(row.group, set()).add(row.digest)
    verdicts = {
        group: "differ" if len(digests - {""}) > 1 else "incomplete" if "" in digests else "equal"
        for group, digests in found.items()
    }
    rows = [
        (str(row.group), str(row.index), row.node, row.digest or row.why_not, verdicts[row.group])
        for row in reply.rows
    ]
    count = sum(verdict == "equal" for verdict in verdicts.values())
    is_whole = count == len(verdicts)
    summary = f"{count} of {len(verdicts)} groups: all replicas answered and are equal"
    text = f"{table(('GROUP', 'ENTRY', 'NODE', 'STATE', 'REPLICAS'), rows)}\n\n{summary}"
    print_reply(args, {"is_whole": is_whole, "verdicts": verdicts, "replicas": reply.rows}, text)
    return ExitCode.PASSED if is_whole else ExitCode.NOT_PASSED


def _size(count: int) -> str:
    for unit in ("B", "KiB"):
        if count < 10_000:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} MiB"


_ACTIONS = {
    "status": (_status, "show the groups of this node: role, term, commit, applied, voters"),
    "groups": (_groups, "show all nodes and groups of the ledger, and the key slots of each group"),
    "history": (_history, "list the committed events of a job, or of all jobs"),
    "audit": (
        _audit,
        "list who submitted, changed and cancelled what, and who changed the cluster",
    ),
    "members": (_change, "add, approve, remove or promote a manager"),
    "snapshot": (_snapshot, "take snapshots on this node and compact its logs"),
    "verify": (_verify, "compare the state of all replicas by hash"),
    "version": (_version, "show the cluster version and those of all nodes, or raise it now"),
}
