"""Flags that `run`, `check` and `submit` share: the test file, its load, parameters and log."""

import argparse
import os
from typing import Any

from hyperscale.errors import InputError
from hyperscale.graph import Overrides
from hyperscale.plan.placement import parse_constraint_flags
from hyperscale.testing.parameters import GivenParameters

_ENVIRONMENT = "HYPERSCALE_SET_"
LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="test file (Python)")


def add_load_flags(parser: argparse.ArgumentParser, *, what: str) -> argparse._ArgumentGroup:
    """Add what changes the load of a test file; `what` is a run or a job."""
    group = parser.add_argument_group("load")
    add = group.add_argument
    add("--vus", metavar="N", help="virtual users of each workflow (default: as in FILE)")
    about = 'duration of each workflow, such as "30s" or "1m30s" (default: as in FILE)'
    add("--duration", metavar="D", help=about)
    add("--timeout", metavar="D", help=f"stop the whole {what} after this time (default: no limit)")
    add_only_flag(group)
    add_parameter_flag(group)
    about = (
        f'condition for the {what} to pass, such as "pay.p99<250ms" or "Shop:errors<1%%"; adds to '
        "the thresholds of FILE, or changes a limit; repeat the flag for more"
    )
    add("--threshold", metavar="T", action="append", default=[], help=about)
    about = "run every step in Python, including steps that could run natively"
    add("--no-compile", action="store_true", help=about)
    return group


def add_parameter_flag(group: argparse._ActionsContainer) -> None:
    about = (
        "set a parameter of the test (`base = Param(…)`), also as HYPERSCALE_SET_<NAME> in the "
        "environment; repeat the flag for more"
    )
    group.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=about)


def parameters_of(args: argparse.Namespace) -> GivenParameters:
    """Return the values of --set and of the environment."""
    values: dict[str, object] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"--set: {_shortened(text)!r} has no '='", hint="write --set name=value"
            )
        if not name:
            raise InputError("--set: the name before '=' is empty", hint="write --set name=value")
        if name in values:
            raise InputError(f"--set {name}: given twice", hint="give each parameter once")
        values[name] = value
    environment = {
        name.removeprefix(_ENVIRONMENT): value
        for name, value in os.environ.items()
        if name.startswith(_ENVIRONMENT)
    }
    return GivenParameters(values, "--set ", environment, _ENVIRONMENT)


def _shortened(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:40]


def add_only_flag(group: argparse._ActionsContainer) -> None:
    about = "only these workflows and the workflows they depend on (default: all)"
    group.add_argument("--only", metavar="NAME", action="extend", nargs="+", default=[], help=about)


def add_log_flags(group: argparse._ArgumentGroup) -> None:
    """Add what becomes of everything the test itself prints and logs."""
    about = "log level of the test's own logging (default: %(default)s)"
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info", help=about)
    about = "also write the output of each executor to its own file in DIR"
    group.add_argument("--log-dir", metavar="DIR", help=about)


def add_placement_flags(parser: argparse.ArgumentParser) -> None:
    """Add which workers may run the workflows."""
    add = parser.add_argument_group("placement").add_argument
    add(
        "--constraint",
        metavar="LABEL=VALUE",
        action="append",
        default=[],
        help="only workers with this label; repeat the flag for more labels, or for more values of "
        "one, of which a worker needs any (replaces the constraint of FILE on the label)",
    )
    about = "spread the cores of each workflow evenly over the values of this label"
    add("--spread", metavar="LABEL", help=about)


def placement_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags of `add_placement_flags` change in the test file."""
    constraints = parse_constraint_flags(args.constraint, where="--constraint")
    return {"constraints": constraints, "spread": args.spread}


def overrides_of(args: argparse.Namespace) -> Overrides:
    """Return what the flags change in the test file."""
    return Overrides(
        vus=args.vus,
        duration=args.duration,
        only=args.only,
        thresholds=args.threshold,
        compiles=not args.no_compile,
    )
