"""The status of a part."""

from enum import Enum


class PartStatus(Enum):
    """How a part, or one slot of a part, ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # on command, or because its lease expired; `error` holds the reason
    FAILED = "failed"
