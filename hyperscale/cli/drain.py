"""`hyperscale drain`: has a node give up its work, so that it can be stopped."""

import argparse
from typing import Any

from hyperscale.cli.parser import Parser

_LOOK_S = 0.5

_DESCRIPTION = """\
Takes a node out of service without losing anything. A manager leaves the ledger of its tier:
its seats and leaderships go to others, the groups there are too many of end once their jobs
have, and then it is gone and may be stopped. A worker finishes what it runs and gets nothing
new.
"""
_EPILOG = """\
Ends when the node has nothing left: no seat, no run. --no-wait: as soon as the drain is
decided. 'hyperscale ledger members add NODE' takes a manager back while it goes on. Ask another
manager than the one that drains.

examples:
  hyperscale drain worker-2 --dir hyperscale-cluster
  hyperscale drain manager-3 --manager 10.0.0.5:9000 --secret-file cluster.secret --no-wait
"""


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.cli.asking import add_asking_flags

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
    from hyperscale.cli.asking import ask_node
    from hyperscale.cli.ledger import change_member
    from hyperscale.errors import InputError
    from hyperscale.nodes.client_messages import WorkersAsked, WorkersTold
    from hyperscale.nodes.ledger.questions import LedgerAsked, LedgerTold

    workers = [row.worker for row in ask_node(args, WorkersAsked(), WorkersTold).workers]
    if args.node in workers:
        _drain_worker(args)
        return 0
    managers = [node.name for node in ask_node(args, LedgerAsked(), LedgerTold).nodes]
    if args.node not in managers:
        raise InputError(
            f"there is no manager and no worker {args.node!r} in this cluster",
            hint=f"there are {', '.join([*sorted(managers), *sorted(workers)])}",
        )
    change_member(args, "drain", args.node)
    if not args.no_wait:
        _wait(args)
    return 0


def _drain_worker(args: argparse.Namespace) -> None:
    import time

    from hyperscale.cli.asking import ask_node, print_json
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError
    from hyperscale.nodes.client_messages import DrainNode, DrainTold

    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    told = ask_node(args, DrainNode(node=args.node), DrainTold)
    while told.left and not args.no_wait:
        if time.monotonic() > deadline_s:
            raise RunError(
                f"{args.node} still runs {told.left} parts after {args.timeout}",
                hint="the drain goes on; runs end when their jobs have",
            )
        time.sleep(_LOOK_S)
        told = ask_node(args, DrainNode(node=args.node), DrainTold)
    if args.json:
        print_json(told)
    elif told.left:
        print(f"{args.node} drains: {told.left} parts still run")
    else:
        print(f"{args.node} runs nothing and gets nothing; it may be stopped")


def _wait(args: argparse.Namespace) -> None:
    import time

    from hyperscale.cli.asking import ask_node
    from hyperscale.config import parse_duration_s
    from hyperscale.errors import RunError
    from hyperscale.nodes.ledger.questions import LedgerAsked, LedgerTold

    deadline_s = time.monotonic() + parse_duration_s(args.timeout, where="--timeout")
    while True:
        told = ask_node(args, LedgerAsked(), LedgerTold)
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
        print(f"{args.node} is gone from the ledger; it may be stopped")


def _has_gone(told: Any, node: str) -> bool:
    return all(row.state == "gone" for row in told.nodes if row.name == node) and not any(
        node in (*row.voters, *row.learners) for row in told.replicas
    )
