"""Flags that say in which datacenters a job runs: of `submit` and `route`."""

import argparse
from typing import Any

from hyperscale.cli.parser import whole_number
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.gates.committed.transitions import DATACENTERS_MAX

_FLAGS = (
    *("datacenter", "datacenters", "fallback", "all_or_nothing", "vus_per_datacenter"),
    *("start_timeout", "lost_after", "spill_over"),
)


def add_datacenter_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("datacenters (with gates)").add_argument
    about = "datacenter to run in; repeat the flag for more (default: the gates choose)"
    add("--datacenter", metavar="NAME", action="append", default=[], help=about)
    add("--datacenters", metavar="N", help="in how many datacenters to run (default: 1)")
    about = "let others take the place of named datacenters that refuse the job"
    add("--fallback", action="store_true", help=about)
    about = "if a datacenter does not complete, stop the others (default: they go on)"
    add("--all-or-nothing", action="store_true", help=about)
    about = "run all virtual users in every datacenter (default: split them)"
    add("--vus-per-datacenter", action="store_true", help=about)
    about = "how long those that are ready wait for the others to start together (default: 30s)"
    add("--start-timeout", metavar="D", help=about)
    about = "how long after its own deadline a silent datacenter is given up (default: 2m)"
    add("--lost-after", metavar="D", help=about)
    about = (
        "move a part that waits in a datacenter's queue for this long to another datacenter with "
        "free cores (default: it waits; named datacenters need --fallback as well)"
    )
    add("--spill-over", metavar="D", help=about)


def datacenter_options(args: argparse.Namespace, *, has_gates: bool) -> dict[str, Any]:
    """Return the options of `submit_job` that the flags give; refuse what contradicts."""
    given = [flag for flag in _FLAGS if getattr(args, flag)]
    if given and not has_gates:
        raise InputError(
            f"--{given[0].replace('_', '-')} needs gates",
            hint="a manager runs jobs in its own datacenter; --gate names a gate",
        )
    if args.datacenter and args.datacenters:
        raise InputError(
            "--datacenter and --datacenters cannot be combined", hint="name them or count them"
        )
    count = 1
    if args.datacenters is not None:
        count = whole_number(args.datacenters, "--datacenters", most=DATACENTERS_MAX)
    waits = {}
    for flag in ("start_timeout", "lost_after", "spill_over"):
        if (given_s := getattr(args, flag)) is not None:
            parse_duration_s(given_s, where=f"--{flag.replace('_', '-')}")
            waits[flag] = given_s
    return {
        **waits,
        "target_datacenters": args.datacenter,
        "datacenter_count": count,
        "fallback": args.fallback,
        "on_datacenter_lost": "all_or_nothing" if args.all_or_nothing else "best_effort",
        "vus_per_datacenter": args.vus_per_datacenter,
    }
