"""Errors of commands to the ledger, by what is known about their commit."""

from hyperscale.errors import HyperscaleError, RunError


class NotLeaderError(HyperscaleError):
    """This node does not lead the group; the command was certainly not committed."""

    def __init__(self, group: int, leader: str) -> None:
        who = f"{leader} leads it" if leader else "its leader is unknown"
        super().__init__(f"this node does not lead group {group}; {who}")
        self.leader = leader


class UnavailableError(RunError):
    """No leader or quorum was reached in time; the command was certainly not committed."""


class OutcomeUnknownError(RunError):
    """The command may or may not have been committed: repeat it with the same key."""
