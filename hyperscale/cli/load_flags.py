"""Flags that `run` and `submit` share: the test file, its load, and the test's own logging."""

import argparse

from hyperscale.graph import Overrides

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def add_file_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="test file (Python)")


def add_load_flags(parser: argparse.ArgumentParser, *, what: str) -> argparse._ArgumentGroup:
    """Add what changes the load of a test file; `what` is what --timeout limits."""
    group = parser.add_argument_group("load")
    add = group.add_argument
    add("--vus", metavar="N", help="virtual users of each workflow (default: as in FILE)")
    about = 'duration of each workflow, such as "30s" or "1m30s" (default: as in FILE)'
    add("--duration", metavar="D", help=about)
    add("--timeout", metavar="D", help=f"stop the whole {what} after this time (default: no limit)")
    add_only_flag(group)
    about = "run every step in Python, including steps that could run natively"
    add("--no-compile", action="store_true", help=about)
    return group


def add_only_flag(group: argparse._ActionsContainer) -> None:
    about = "only these workflows and the workflows they depend on (default: all)"
    group.add_argument("--only", metavar="NAME", action="extend", nargs="+", default=[], help=about)


def add_log_flags(group: argparse._ArgumentGroup) -> None:
    """Add what becomes of everything the test itself prints and logs."""
    about = "log level of the test's own logging (default: %(default)s)"
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info", help=about)
    about = "also write the output of each executor to its own file in DIR"
    group.add_argument("--log-dir", metavar="DIR", help=about)


def overrides_of(args: argparse.Namespace) -> Overrides:
    """Return what the flags change in the test file."""
    return Overrides(vus=args.vus, duration=args.duration, only=args.only)
