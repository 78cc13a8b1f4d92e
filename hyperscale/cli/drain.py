"""`hyperscale drain NODE`: take a node out of service without losing work."""

import argparse
from typing import TYPE_CHECKING

from hyperscale.cli.ledger import change_member
from hyperscale.cli.node_query import add_query_flags, query_node
from hyperscale.cli.printing import print_json
from hyperscale.cli.signals import exit_on_interrupt

if TYPE_CHECKING:
    from hyperscale.client.messages import WorkerRow
    from hyperscale.ledger.server.operator_messages import GetLedgerStatusReply

_POLL_S = 0.5
_IDLE = "runs nothing and gets no new work; it may be stopped"
_INTERRUPTED = "interrupted; the drain continues"
_REMOVED = "has left the ledger; it may be stopped"

DESCRIPTION = """\
Take a node out of service without losing anything. A worker finishes the parts it runs and gets
no new ones. A manager leaves the ledger: other managers take over its groups, superfluous groups
end once their jobs have ended, and then the manager may be stopped.
"""
EPILOG = """\
The command waits until the node is drained; with --no-wait it returns as soon as the drain has
begun. Draining a node twice is harmless. To drain a manager, connect to another manager.

To undo: a worker takes work again after a restart. 'hyperscale ledger members add NODE' cancels the
drain of a manager; a manager that has left joins again as a new member if it starts with an empty
data directory. A manager need not be drained for a restart, such as an upgrade.

examples:
  hyperscale drain worker-2 --dir hyperscale-cluster
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
    add_query_flags(parser, timeout="60s")


def run(args: argparse.Namespace) -> int:
    from hyperscale.client.messages import ListWorkers, ListWorkersReply
    from hyperscale.errors import InputError
    from hyperscale.ledger.server.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    workers = {row.worker: row for row in query_node(args, ListWorkers(), ListWorkersReply).workers}
    if args.node in workers:
        _drain_worker(args, workers[args.node])
        return 0
    reply = query_node(args, GetLedgerStatus(), GetLedgerStatusReply)
    managers = sorted({node.name for node in reply.nodes})
    if args.node not in managers:
        raise InputError(
            f"this cluster has no manager and no worker {args.node!r}",
            hint=f"its nodes are {', '.join([*managers, *sorted(workers)])}",
        )
    if _has_left(reply, args.node):
        _print(args, {"done": f"{args.node} {_REMOVED}"})
        return 0
    change_member(args, "drain", args.node)
    if not args.no_wait:
        with exit_on_interrupt(_INTERRUPTED):
            _wait(args)
    return 0


def _drain_worker(args: argparse.Namespace, row: "WorkerRow") -> None:
    import time

    from hyperscale.client.messages import DrainNode, DrainNodeReply
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError

    if row.state == "left":
        _print(args, {"left": 0, "done": f"{args.node} has left the cluster: it {_IDLE}"})
        return
    if row.state == "dead":
        raise RunError(
            f"{args.node} is dead and cannot be drained",
            hint="a dead worker gets no work and its parts continue elsewhere; after a restart it "
            "takes work again",
        )
    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    reply = query_node(args, DrainNode(node=args.node), DrainNodeReply)
    if reply.left and not args.json:
        print(f"{args.node} is draining: {_parts(reply.left)}", flush=True)
    with exit_on_interrupt(_INTERRUPTED):
        while reply.left and not args.no_wait:
            if time.monotonic() > deadline_s:
                raise RunError(
                    f"{args.node} is still draining after {args.timeout}: {_parts(reply.left)}",
                    hint="the drain continues; parts end when their jobs end",
                )
            time.sleep(_POLL_S)
            reply = query_node(args, DrainNode(node=args.node), DrainNodeReply)
    if args.json:
        print_json(reply)
    elif not reply.left:
        print(f"{args.node} {_IDLE}")


def _parts(count: int) -> str:
    return "1 part still runs" if count == 1 else f"{count} parts still run"


def _wait(args: argparse.Namespace) -> None:
    import time

    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError
    from hyperscale.ledger.server.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    while True:
        reply = query_node(args, GetLedgerStatus(), GetLedgerStatusReply)
        if _has_left(reply, args.node):
            break
        if time.monotonic() > deadline_s:
            groups = [row.group for row in reply.groups if args.node in (*row.voters, *row.settled)]
            raise RunError(
                f"{args.node} is still draining after {args.timeout}: it votes in groups {groups}",
                hint="the drain continues; groups end when their jobs have ended",
            )
        time.sleep(_POLL_S)
    if not args.json:
        print(f"{args.node} {_REMOVED}")


def _has_left(reply: "GetLedgerStatusReply", node: str) -> bool:
    return all(row.state == "gone" for row in reply.nodes if row.name == node) and not any(
        node in (*row.voters, *row.learners) for row in reply.replicas
    )


def _print(args: argparse.Namespace, outcome: dict[str, str | int]) -> None:
    if args.json:
        print_json(outcome)
    else:
        print(outcome["done"])
