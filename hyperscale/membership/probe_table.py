"""Probes and relayed probes under way, by the sequence number that is on the wire."""

from enum import IntEnum


class ProbeStage(IntEnum):
    DIRECT = 0
    INDIRECT = 1
    LOOK = 2  # the last look before a verdict
    GREET = 3  # a ping to someone who is not a confirmed, living member


class Probe:
    """One question to one node, and how far it has come."""

    __slots__ = ("nacks", "node", "relays", "sent_s", "sequence", "stage")

    def __init__(self, node: str, sequence: int, sent_s: float, stage: ProbeStage) -> None:
        self.node = node
        self.sequence = sequence
        self.sent_s = sent_s
        self.stage = stage
        self.relays = 0
        self.nacks: dict[str, None] = {}


class RelayedProbe:
    """A ping made for another member."""

    __slots__ = ("asker", "asker_sequence", "target")

    def __init__(self, asker: str, asker_sequence: int, target: str) -> None:
        self.asker = asker
        self.asker_sequence = asker_sequence
        self.target = target


PROBES_MAX = 16_384
RELAYS_MAX = 4_096


class ProbeTable:
    """What this node has asked and not heard an end of. Bounded: the oldest is given up."""

    def __init__(self) -> None:
        self._sequence = 0
        self.by_sequence: dict[int, Probe] = {}
        self._judging: dict[str, int] = {}
        self.relays: dict[int, RelayedProbe] = {}

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def is_judging(self, node: str) -> bool:
        """A probe whose failure would be held against `node` is under way."""
        return node in self._judging

    def add(self, node: str, now_s: float, stage: ProbeStage) -> Probe:
        probe = Probe(node, self.next_sequence(), now_s, stage)
        if len(self.by_sequence) >= PROBES_MAX:
            self.end(self.by_sequence[next(iter(self.by_sequence))])
        self.by_sequence[probe.sequence] = probe
        if stage is ProbeStage.DIRECT:
            self._judging[node] = probe.sequence
        return probe

    def end(self, probe: Probe) -> None:
        self.by_sequence.pop(probe.sequence, None)
        if self._judging.get(probe.node) == probe.sequence:
            del self._judging[probe.node]

    def end_judging(self, node: str) -> int | None:
        """Gives up the judging probe of `node`; its sequence, if there was one."""
        sequence = self._judging.pop(node, None)
        if sequence is not None:
            self.by_sequence.pop(sequence, None)
        return sequence

    def add_relay(self, relay: RelayedProbe) -> int:
        sequence = self.next_sequence()
        if len(self.relays) >= RELAYS_MAX:
            del self.relays[next(iter(self.relays))]
        self.relays[sequence] = relay
        return sequence
