"""`hyperscale chaos`: inject faults into a local cluster while a job runs, then check it."""

import argparse
import asyncio
import random
from pathlib import Path

from hyperscale.cli.cluster_flags import cluster_directory, cluster_hints
from hyperscale.cli.parser import whole_number
from hyperscale.cli.printing import print_line
from hyperscale.cli.signals import unless_interrupted
from hyperscale.client.cluster_file import DEFAULT_DIRECTORY
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.lab.chaos import Chaos
from hyperscale.reporting.exit_codes import ExitCode

DESCRIPTION = """\
Kill, pause and restart random nodes of a local cluster ('hyperscale cluster up') while a job runs
against a built-in target; in a cluster with gates also whole datacenters. The seed determines the
faults. Then check that the job ended once and all managers (or gates) agree on its end, that every
request the target received is reported or covered by a gap, that there were never more connections
than virtual users, that all nodes are back, and that all replicas of every ledger are equal.
"""
EPILOG = """\
examples:
  hyperscale cluster up --workers 4 --dir lab
  hyperscale chaos --dir lab --seed 7                    in another terminal
  hyperscale cluster up --gates 3 --datacenters 2 --managers 3 --workers 2 --dir lab
  hyperscale chaos --dir lab --file shop.py --target http://127.0.0.1:8080

Ctrl-C restarts all nodes and cancels the job before the command exits.

exit codes: 0 all checks held, 2 invalid input (nothing ran), 3 a check did not hold, or the cluster
could not be reached, 130 interrupted
"""
_SEED_MOST = 10**18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    about = "directory of the cluster (default: %(default)s)"
    add("--dir", metavar="DIR", default=DEFAULT_DIRECTORY, help=about)
    add("--seed", metavar="N", help="seed of the faults (default: random)")
    about = "duration of the load and of the faults (default: %(default)s)"
    add("--duration", metavar="D", default="20s", help=about)
    add("--file", metavar="FILE", help="test file (default: a built-in one)")
    about = "the 'hyperscale target' that FILE sends to, to compare counts (default: none)"
    add("--target", metavar="URL", default="", help=about)


def run(args: argparse.Namespace) -> int:
    seed = random.randrange(1_000_000)  # noqa: S311  a seed is no secret
    if args.seed is not None:
        seed = whole_number(args.seed, "--seed", low=0, most=_SEED_MOST)
    if args.target and not args.file:
        raise InputError("--target needs --file", hint="without --file a built-in target is used")
    duration_s = parse_duration_s(args.duration, where="--duration")
    directory = cluster_directory(args.dir)
    chaos = Chaos(directory, seed=seed, say=print_line)
    file = Path(args.file) if args.file else None
    running = chaos.run(duration_s=duration_s, file=file, target_url=args.target)
    with cluster_hints(directory):
        verdict = asyncio.run(unless_interrupted(running, name="chaos"))
    if verdict is None:
        return ExitCode.INTERRUPTED
    for what in verdict.held:
        print_line(f"held    {what}")
    for what in verdict.broken:
        print_line(f"BROKEN  {what}")
    if verdict.broken:
        print_line(f"verdict: broken (seed {seed})")
        return ExitCode.RUN_FAILED
    print_line("verdict: everything held")
    return 0
