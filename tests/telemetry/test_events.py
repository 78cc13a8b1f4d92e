"""The tables of the documentation list every event that a node logs, and no other."""

import re
from pathlib import Path

import hyperscale

PACKAGE = Path(hyperscale.__file__).parent
DOCUMENTS = PACKAGE.parent / "docs"
EVENT = r"[a-z_]+\.[a-z_]+"
OF_CLIENTS = {"callback.failed"}  # logged by `HyperscaleClient`, in the user's program


def logged() -> set[str]:
    """Return the events in calls of loggers, and those that membership chooses from a table."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    membership = (PACKAGE / "nodes" / "membership.py").read_text()
    return {
        *re.findall(rf'(?:_log\.\w+|report)\((?:\s*#[^\n]*)?\s*"({EVENT})', code),
        *re.findall(r'"((?:member|suspicion)\.[a-z_]+)"', membership),
    }


def documented() -> set[str]:
    """Return the events in the first column of the tables of events."""
    text = "\n".join(path.read_text() for path in DOCUMENTS.glob("*.md"))
    tables = re.findall(r"^\| event \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    return {event for cell in cells for event in re.findall(rf"`({EVENT})`", cell)}


def test_every_log_event_is_documented_and_no_other() -> None:
    assert len(logged()) > 50
    assert logged() - OF_CLIENTS == documented()
