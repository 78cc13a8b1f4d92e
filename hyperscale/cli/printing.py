"""What commands print: messages, tables, JSON."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from hyperscale.config import format_duration
from hyperscale.ui.stream import write_through
from hyperscale.ui.text import cell_width


def print_line(text: str) -> None:
    """Print a line to stdout; a reader that has gone away is no reason to stop."""
    write_through(sys.stdout, f"{text}\n")


def print_warning(text: str) -> None:
    """Print a message to stderr; a terminal that has gone away is no reason to stop."""
    write_through(sys.stderr, f"hyperscale: {text}\n")


def print_json(reply: Any) -> None:
    """Print JSON in UTF-8, whatever encoding the terminal has."""
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(reply), indent=2) + b"\n")


def print_reply(args: argparse.Namespace, reply: Any, text: str) -> None:
    """Print the reply of a node as JSON if --json was given, else the text."""
    if args.json:
        print_json(reply)
    else:
        print(text)


def is_confirmed(question: str) -> bool:
    """Ask on a terminal; scripts are not asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out columns, each as wide as its widest cell is on a terminal."""
    lines = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_width(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell + " " * (width - cell_width(cell))
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Replace control characters, so that text from a node cannot move the cursor."""
    return "".join(char if char.isprintable() else "?" for char in text) or "-"


def age(seconds: float | None) -> str:
    """Format how long ago something happened; None (never) is shown as "-"."""
    if seconds is None:
        return "-"
    return format_duration(round(seconds)) if round(seconds) > 0 else "0s"
