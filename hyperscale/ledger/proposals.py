"""Proposals and reads of one node that wait for consensus."""

_TOKEN_BITS = 48


class ProposalQueue:
    """Proposals and reads by group. A token names each of them, on this node and in the log."""

    def __init__(self, node: int, seed: int) -> None:
        self.queued: dict[int, list[tuple[int, bytes]]] = {}
        """Token and encoded record of each proposal that was not given to consensus yet."""
        self.waiting: dict[int, dict[int, int]] = {}
        """Proposals that consensus took and has not committed: group -> token -> term."""
        self.reads: dict[int, list[tuple[int, int]]] = {}
        """Read index and token of each read that waits until its group's replica has applied it."""
        self.is_full = False
        """Whether too much waited for disk or quorum, after the last pass, to accept proposals."""
        # Answers to an earlier process of this node may still arrive: its tokens must differ.
        self._last_token = (node << _TOKEN_BITS) + (seed & ((1 << (_TOKEN_BITS - 1)) - 1))

    def __len__(self) -> int:
        return sum(map(len, (*self.waiting.values(), *self.queued.values())))

    def new_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def take_superseded(self, group: int, term: int) -> list[int]:
        """Return and forget the proposals of earlier terms.

        Call it at the first entry of `term`: a proposal of an earlier term that is not in the
        log before that entry will never be committed.
        """
        waiting = self.waiting.get(group, {})
        lost = [token for token, proposed in waiting.items() if proposed < term]
        for token in lost:
            del waiting[token]
        return lost
