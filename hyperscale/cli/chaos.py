"""`hyperscale chaos`: trouble for a local cluster while a job runs, by a seeded plan."""

import argparse
import asyncio
import random
import sys
from pathlib import Path

from hyperscale.cli.node_queries import named_directory, telling_of
from hyperscale.cli.parser import Parser
from hyperscale.cli.signals import EXIT_INTERRUPTED, unless_interrupted
from hyperscale.errors import InputError
from hyperscale.ui.stream import write_through

_DESCRIPTION = """\
Kills, pauses and restarts random nodes of a cluster that 'hyperscale cluster up' runs, by a plan
made from a seed, while a job runs against a built-in target. Then checks what must hold: the job
ended once and every manager tells the same end, every request the target saw is reported or
within a stated gap, never more connections than asked for, all nodes are back, and all replicas
of the ledger are equal.
"""
_EPILOG = """\
examples:
  hyperscale cluster up --workers 4 --dir lab
  hyperscale chaos --dir lab --seed 7                    in another terminal
  hyperscale chaos --dir lab --file shop.py --target http://127.0.0.1:8080

Ctrl-C brings all nodes back and cancels the job; a second one does not hurry that.

exit codes: 0 everything held, 2 wrong input: nothing ran, 3 something did not hold, or the cluster
could not be reached, 130 interrupted
"""


_SEED_MOST = 10**18


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    from hyperscale.client.cluster_file import DEFAULT_DIRECTORY

    parser = subparsers.add_parser(
        "chaos",
        help="kill, pause and restart nodes while a job runs, and check what comes out",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        default=DEFAULT_DIRECTORY,
        help="directory of the cluster (default %(default)s)",
    )
    parser.add_argument("--seed", metavar="N", help="of the plan; default: a random one")
    parser.add_argument(
        "--duration",
        metavar="D",
        default="20s",
        help="how long the load lasts, and its troubles; default: %(default)s",
    )
    parser.add_argument("--file", metavar="F", help="a test file; default: one of its own")
    parser.add_argument(
        "--target",
        metavar="URL",
        default="",
        help="the 'hyperscale target' that F sends to, to compare counts; default: none",
    )


def run(args: argparse.Namespace) -> int:
    from hyperscale.client.cluster_file import read_cluster
    from hyperscale.config import parse_duration_s, parse_whole
    from hyperscale.lab.chaos import Chaos

    given = random.randrange(1_000_000) if args.seed is None else args.seed  # noqa: S311  a seed is no secret
    seed = parse_whole(str(given), low=0, most=_SEED_MOST)
    if seed is None:
        raise InputError(f"--seed: {args.seed!r} is not a whole number from 0 to {_SEED_MOST}")
    if args.target and not args.file:
        raise InputError("--target needs --file", hint="without a file it has a target of its own")
    duration_s = parse_duration_s(args.duration, where="--duration")
    directory = named_directory(args.dir)
    read_cluster(directory)
    chaos = Chaos(directory, seed=seed, say=_say)
    file = Path(args.file) if args.file else None
    running = chaos.run(duration_s=duration_s, file=file, target_url=args.target)
    with telling_of(directory):
        verdict = asyncio.run(unless_interrupted(running, name="chaos"))
    if verdict is None:
        return EXIT_INTERRUPTED
    for what in verdict.held:
        _say(f"held    {what}")
    for what in verdict.broken:
        _say(f"BROKEN  {what}")
    if verdict.broken:
        _say(f"verdict: broken (seed {seed})")
        return 3
    _say("verdict: everything held")
    return 0


def _say(text: str) -> None:
    """Also when nobody reads it any more: nodes that are down are to be brought back."""
    write_through(sys.stdout, f"{text}\n")
