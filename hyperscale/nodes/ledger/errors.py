"""What a command to the ledger can come to, by what is known of its fate."""

from hyperscale.errors import HyperscaleError, RunError


class NotLeaderError(HyperscaleError):
    """This node does not lead the group; the command was certainly not carried out."""

    def __init__(self, group: int, leader: str, term: int) -> None:
        who = f"{leader} leads it" if leader else "nobody is known to lead it"
        super().__init__(f"group {group} is not led by this node; {who}")
        self.group = group
        self.leader = leader
        self.term = term


class WrongGroupError(HyperscaleError):
    """The slot of the key belongs to another group; the command was not carried out."""

    def __init__(self, group: int, moved_to: int) -> None:
        super().__init__(f"group {group} does not own the slot of this key")
        self.moved_to = moved_to


class UnavailableError(RunError):
    """No quorum was reached in time, and the command was certainly not carried out."""


class OutcomeUnknownError(RunError):
    """The command may or may not be carried out: repeat it with the same key, or look."""
