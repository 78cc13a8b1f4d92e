"""The probes and relayed probes under way, by the sequence number in their datagrams."""

from enum import IntEnum


class ProbeStage(IntEnum):
    """How far a probe has come, and what its failure means."""

    DIRECT = 0
    INDIRECT = 1  # relays were asked as well; a failure makes the member suspect
    FINAL = 2  # one of the final probes of a suspect before the verdict
    CONTACT = 3  # to a node that is no confirmed, living member; a failure means nothing


class Probe:
    """One probe of one node."""

    __slots__ = ("nacks", "node", "relays", "sent_s", "sequence", "stage")

    def __init__(self, node: str, sequence: int, sent_s: float, stage: ProbeStage) -> None:
        self.node = node
        self.sequence = sequence
        self.sent_s = sent_s
        self.stage = stage
        self.relays = 0
        self.nacks: dict[str, None] = {}


class RelayedProbe:
    """A ping that this node sent on behalf of another member."""

    __slots__ = ("asker", "asker_sequence", "target")

    def __init__(self, asker: str, asker_sequence: int, target: str) -> None:
        self.asker = asker
        self.asker_sequence = asker_sequence
        self.target = target


PROBES_MAX = 16_384
RELAYS_MAX = 4_096


class ProbeTable:
    """Probes without an outcome yet. Bounded: the oldest is dropped for a new one."""

    def __init__(self) -> None:
        self._sequence = 0
        self.by_sequence: dict[int, Probe] = {}
        self._direct: dict[str, int] = {}
        self.relays: dict[int, RelayedProbe] = {}

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def is_probing(self, node: str) -> bool:
        """Return True if a probe is under way whose failure makes `node` suspect."""
        return node in self._direct

    def add(self, node: str, now_s: float, stage: ProbeStage) -> Probe:
        """Start a probe."""
        probe = Probe(node, self.next_sequence(), now_s, stage)
        if len(self.by_sequence) >= PROBES_MAX:
            self.end(self.by_sequence[next(iter(self.by_sequence))])
        self.by_sequence[probe.sequence] = probe
        if stage is ProbeStage.DIRECT:
            self._direct[node] = probe.sequence
        return probe

    def end(self, probe: Probe) -> None:
        """Remove a probe."""
        self.by_sequence.pop(probe.sequence, None)
        if self._direct.get(probe.node) == probe.sequence:
            del self._direct[probe.node]

    def end_direct(self, node: str) -> int | None:
        """Remove the probe whose failure would make `node` suspect; return its sequence number."""
        sequence = self._direct.pop(node, None)
        if sequence is not None:
            self.by_sequence.pop(sequence, None)
        return sequence

    def add_relay(self, relay: RelayedProbe) -> int:
        """Register a relayed probe; return the sequence number for its ping."""
        sequence = self.next_sequence()
        if len(self.relays) >= RELAYS_MAX:
            del self.relays[next(iter(self.relays))]
        self.relays[sequence] = relay
        return sequence
