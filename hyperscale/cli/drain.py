"""`hyperscale drain`: has a node give up its work, so that it can be stopped."""

import argparse
from typing import TYPE_CHECKING

from hyperscale.cli.parser import Parser
from hyperscale.cli.signals import leaving_with

if TYPE_CHECKING:
    from hyperscale.client.messages import WorkerRow
    from hyperscale.nodes.ledger.operator_messages import GetLedgerStatusReply

_LOOK_S = 0.5
_OUT = "runs nothing and gets nothing; it may be stopped"
_GOES_ON = "interrupted; the drain goes on"
_GONE = "is gone from the ledger; it may be stopped"

_DESCRIPTION = """\
Takes a node out of service without losing anything. A manager leaves the ledger of its tier:
its seats and leaderships go to others, the groups there are too many of end once their jobs
have, and then it is gone and may be stopped. A worker finishes what it runs and gets nothing
new.
"""
_EPILOG = """\
Ends when the node has nothing left: no seat, no run. --no-wait: as soon as the drain is
decided. Again is harmless. Ask another manager than the one that drains.

The way back: a worker that is started again takes work again. 'hyperscale ledger members add NODE'
takes a manager back while it drains; one that is gone joins as a new one when it is started with
an empty data directory. To restart a manager, for a new version say, it need not be drained.

examples:
  hyperscale drain worker-2 --dir hyperscale-cluster
  hyperscale drain manager-3 --manager 10.0.0.5:9000 --secret-file cluster.secret --no-wait

exit codes: 0 it may be stopped (with --no-wait: it drains), 2 wrong input, or there is no such
node, 3 it cannot be spared or told, still has work after --timeout, or nobody could be asked, 130
interrupted: the drain goes on
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.node_queries import add_asking_flags

    parser = subparsers.add_parser(
        "drain",
        help="have a node give up its work",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("node", metavar="NODE", help="id of a manager or a worker")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for its end")
    add_asking_flags(parser, timeout="60s")


def run(args: argparse.Namespace) -> int:
    from hyperscale.cli.ledger import change_member
    from hyperscale.cli.node_queries import ask_node
    from hyperscale.client.messages import ListWorkers, ListWorkersReply
    from hyperscale.errors import InputError
    from hyperscale.nodes.ledger.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    workers = {row.worker: row for row in ask_node(args, ListWorkers(), ListWorkersReply).workers}
    if args.node in workers:
        _drain_worker(args, workers[args.node])
        return 0
    told = ask_node(args, GetLedgerStatus(), GetLedgerStatusReply)
    managers = sorted({node.name for node in told.nodes})
    if args.node not in managers:
        raise InputError(
            f"there is no manager and no worker {args.node!r} in this cluster",
            hint=f"there are {', '.join([*managers, *sorted(workers)])}",
        )
    if _has_gone(told, args.node):
        _say(args, {"done": f"{args.node} {_GONE}"})
        return 0
    change_member(args, "drain", args.node)
    if not args.no_wait:
        with leaving_with(_GOES_ON):
            _wait(args)
    return 0


def _drain_worker(args: argparse.Namespace, row: "WorkerRow") -> None:
    import time

    from hyperscale.cli.node_queries import ask_node, print_json
    from hyperscale.client.messages import DrainNode, DrainNodeReply
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError

    if row.state == "left":
        _say(args, {"left": 0, "done": f"{args.node} has left: it {_OUT}"})
        return
    if row.state == "dead":
        raise RunError(
            f"{args.node} is dead and cannot be told to drain",
            hint="it gets nothing while it is, and what it ran goes on elsewhere; started again it "
            "takes work again",
        )
    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    told = ask_node(args, DrainNode(node=args.node), DrainNodeReply)
    if told.left and not args.json:
        print(f"{args.node} drains: {_parts(told.left)}", flush=True)
    with leaving_with(_GOES_ON):
        while told.left and not args.no_wait:
            if time.monotonic() > deadline_s:
                raise RunError(
                    f"{args.node} still drains after {args.timeout}: {_parts(told.left)}",
                    hint="the drain goes on; parts end when their jobs do",
                )
            time.sleep(_LOOK_S)
            told = ask_node(args, DrainNode(node=args.node), DrainNodeReply)
    if args.json:
        print_json(told)
    elif not told.left:
        print(f"{args.node} {_OUT}")


def _parts(count: int) -> str:
    return "1 part still runs" if count == 1 else f"{count} parts still run"


def _wait(args: argparse.Namespace) -> None:
    import time

    from hyperscale.cli.node_queries import ask_node
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError
    from hyperscale.nodes.ledger.operator_messages import GetLedgerStatus, GetLedgerStatusReply

    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    while True:
        told = ask_node(args, GetLedgerStatus(), GetLedgerStatusReply)
        if _has_gone(told, args.node):
            break
        if time.monotonic() > deadline_s:
            seats = [row.group for row in told.groups if args.node in (*row.voters, *row.settled)]
            raise RunError(
                f"{args.node} still drains after {args.timeout}: it votes in groups {seats}",
                hint="the drain goes on; groups end when their jobs have",
            )
        time.sleep(_LOOK_S)
    if not args.json:
        print(f"{args.node} {_GONE}")


def _has_gone(told: "GetLedgerStatusReply", node: str) -> bool:
    return all(row.state == "gone" for row in told.nodes if row.name == node) and not any(
        node in (*row.voters, *row.learners) for row in told.replicas
    )


def _say(args: argparse.Namespace, told: dict[str, str | int]) -> None:
    from hyperscale.cli.node_queries import print_json

    if args.json:
        print_json(told)
    else:
        print(told["done"])
