"""`hyperscale drain NODE`: take a node out of service without losing work."""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hyperscale.cli.cluster_flags import add_query_flags, query_node
from hyperscale.cli.ledger import change_member
from hyperscale.cli.printing import print_json, print_reply
from hyperscale.cli.signals import exit_on_interrupt
from hyperscale.client.messages import (
    DrainNode,
    DrainNodeReply,
    ListWorkers,
    ListWorkersReply,
    WorkerRow,
)
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError, RunError
from hyperscale.ledger.server.operator_messages import GetLedgerStatus, GetLedgerStatusReply
from hyperscale.ledger.topology import NodeState
from hyperscale.membership.events import MemberState

_POLL_S = 0.5
_IDLE = "runs nothing and gets no new work; it may be stopped"
_REMOVED = "has left the ledger; it may be stopped"

_T = TypeVar("_T")

DESCRIPTION = """\
Take a node out of service without losing anything. A worker finishes the parts it runs and gets
no new ones. A manager leaves the ledger: other managers take over its groups, superfluous groups
end once their jobs have ended, and then the manager may be stopped.
"""
EPILOG = """\
The command waits until the node is drained; with --no-wait it returns as soon as the drain has
begun. Draining a node twice is harmless. To drain a manager, connect to another manager. If the
managers that are left would have no majority alive, the drain is refused unless --force is given.

To undo: a worker takes work again after a restart. 'hyperscale ledger members add NODE' cancels the
drain of a manager; a manager that has left joins again as a new member if it starts with an empty
data directory. A manager need not be drained for a restart, such as an upgrade.

examples:
  hyperscale drain worker-2 --dir hyperscale-cluster
  hyperscale drain worker-2 --gate 10.0.0.7:9300 --datacenter east
  hyperscale drain gate-2 --gate 10.0.0.7:9300
  hyperscale drain manager-3 --manager 10.0.0.5:9000 --secret-file cluster.secret --no-wait

exit codes: 0 the node may be stopped (with --no-wait: it drains), 2 invalid input or no such node,
3 the node cannot be drained, still has work after --timeout, or no manager could be reached, 130
interrupted (the drain continues)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="node id of a manager or a worker")
    parser.add_argument(
        "--no-wait", action="store_true", help="do not wait until the node is drained"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="drain a manager even if those that are left have no majority alive",
    )
    add_query_flags(parser, timeout="60s")


def run(args: argparse.Namespace) -> int:
    rows = query_node(args, ListWorkers(), ListWorkersReply).workers
    workers = {row.worker: row for row in rows}
    if args.node in workers:
        _choose_datacenter(args, [row for row in rows if row.worker == args.node])
        _drain_worker(args, workers[args.node])
        return 0
    status = partial(query_node, args, GetLedgerStatus(), GetLedgerStatusReply)
    reply = status()
    managers = sorted({node.name for node in reply.nodes})
    if args.node not in managers:
        raise InputError(
            f"this cluster has no manager and no worker {args.node!r}",
            hint=f"its nodes are {', '.join([*managers, *sorted(workers)])}",
        )
    if not _votes(reply, args.node):
        done = f"{args.node} {_REMOVED}"
        print_reply(args, {"done": done}, done)
        return 0
    change_member(args, "drain", args.node, is_forced=args.force)
    if not args.no_wait:
        hint = "groups end when their jobs have ended"
        _poll(args, status, lambda found: _votes(found, args.node), hint=hint)
        if not args.json:
            print(f"{args.node} {_REMOVED}")
    return 0


def _choose_datacenter(args: argparse.Namespace, rows: list[WorkerRow]) -> None:
    """Send what follows to the datacenter of a worker that a gate listed."""
    if args.datacenter is None and rows[0].datacenter:
        if len(rows) > 1:
            where = ", ".join(sorted(row.datacenter for row in rows))
            raise InputError(
                f"several datacenters have a worker {args.node!r}: {where}",
                hint="name one with --datacenter",
            )
        args.datacenter = rows[0].datacenter


def _drain_worker(args: argparse.Namespace, row: WorkerRow) -> None:
    if row.state is MemberState.LEFT:
        done = f"{args.node} has left the cluster: it {_IDLE}"
        print_reply(args, {"left": 0, "done": done}, done)
        return
    if row.state is MemberState.DEAD:
        raise RunError(
            f"{args.node} is dead and cannot be drained",
            hint="a dead worker gets no work and its parts continue elsewhere; after a restart it "
            "takes work again",
        )
    drain = partial(query_node, args, DrainNode(node=args.node), DrainNodeReply)
    reply = drain()
    if reply.left and not args.json:
        print(f"{args.node} is draining: {_parts(reply)}", flush=True)
    if reply.left and not args.no_wait:
        reply = _poll(args, drain, _parts, hint="parts end when their jobs end")
    if args.json:
        print_json(reply)
    elif not reply.left:
        print(f"{args.node} {_IDLE}")


def _poll(
    args: argparse.Namespace, ask: Callable[[], _T], work_of: Callable[[_T], str], *, hint: str
) -> _T:
    """Repeat a question until the reply shows no more work, at most for --timeout."""
    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    with exit_on_interrupt("interrupted; the drain continues"):
        while work := work_of(reply := ask()):
            if time.monotonic() > deadline_s:
                raise RunError(
                    f"{args.node} is still draining after {args.timeout}: {work}",
                    hint=f"the drain continues; {hint}",
                )
            time.sleep(_POLL_S)
    return reply


def _parts(reply: DrainNodeReply) -> str:
    if reply.left == 1:
        return "1 part still runs"
    return f"{reply.left} parts still run" if reply.left else ""


def _votes(reply: GetLedgerStatusReply, node: str) -> str:
    """Return what a manager still does in the ledger; nothing if it has left."""
    is_replica = any(node in (*row.voters, *row.learners) for row in reply.replicas)
    states = {row.state for row in reply.nodes if row.name == node}
    if states <= {NodeState.GONE} and not is_replica:
        return ""
    groups = [row.group for row in reply.groups if node in (*row.voters, *row.settled)]
    return f"it votes in groups {groups}"
