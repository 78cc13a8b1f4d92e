"""Datagrams and streams between the hosts of a world.

Datagrams are lost, delayed, duplicated and reordered (delay varies per datagram). Streams are
what TCP makes of the same links: nothing is lost or reordered, loss costs time, a cut link
stalls them until it heals or they give up. A machine without a process refuses connections at
once; a machine without power, or behind a cut, says nothing at all: that difference is what
*refused* and *silence* mean.

A cut is directed: `a` may reach `b` while `b` does not reach `a`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.kernel import Host, World

SYN_RETRY_S = 1.0
DATA_RETRY_S = 0.25
STALLED_RETRY_S = 0.5
OPEN_WITHIN_S = 5.0
KEEPALIVE_S = 10.0
"""After this long without its peer a kept stream is given up."""


@dataclass(slots=True)
class Link:
    """How datagrams fare. Streams derive from it."""

    loss: float = 0.0
    delay_s: float = 0.0005
    jitter_s: float = 0.0005
    duplicate: float = 0.0
    spike: float = 0.0  # share of datagrams that take `spike_s` longer, overtaken by others
    spike_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """A request arrived; answer it with `host.answer(handle, message)`."""

    source: str
    message: Any
    handle: Any


@dataclass(frozen=True, slots=True)
class Answered:
    token: Any
    source: str
    message: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer or no stream. `refused`: the machine is there, no process listens."""

    token: Any
    source: str
    refused: bool


@dataclass(frozen=True, slots=True)
class Opened:
    token: Any
    source: str


@dataclass(frozen=True, slots=True)
class Closed:
    token: Any
    source: str


@dataclass(slots=True)
class _Handle:
    asker: str
    asker_life: int
    token: Any
    deadline_s: float
    settled: bool = False


@dataclass(slots=True)
class _Stream:
    opener: str
    opener_life: int
    acceptor: str
    token: Any


class Network:
    """All links of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.link = Link()
        self.slow: dict[str, float] = {}  # extra delay of everything to and from a host
        self._cuts: dict[str, dict[str, int]] = {}
        self._streams: list[_Stream] = []
        self.cut_until_s: dict[tuple[str, str], float] = {}
        self.healed = 0
        self.sent = 0
        self.lost = 0

    # Cuts.

    def cut(self, sources: "Iterable[str]", targets: "Iterable[str]") -> None:
        """Nothing gets from `sources` to `targets` any more. Cuts add up."""
        wanted = list(targets)
        for source in sources:
            row = self._cuts.setdefault(source, {})
            for target in wanted:
                if source != target:
                    row[target] = row.get(target, 0) + 1

    def mend(self, sources: "Iterable[str]", targets: "Iterable[str]") -> None:
        """Takes one cut back."""
        now_s = self._world.now_s
        wanted = list(targets)
        for source in sources:
            row = self._cuts.get(source, {})
            for target in wanted:
                count = row.get(target, 0)
                if count > 1:
                    row[target] = count - 1
                elif count == 1:
                    del row[target]
                    self.cut_until_s[source, target] = now_s

    def heal(self) -> None:
        """No cut any more."""
        now_s = self._world.now_s
        for source, row in self._cuts.items():
            for target in row:
                self.cut_until_s[source, target] = now_s
        self._cuts.clear()
        self.healed += 1

    def is_cut(self, source: str, target: str) -> bool:
        row = self._cuts.get(source)
        return row is not None and target in row

    @property
    def has_cuts(self) -> bool:
        return any(self._cuts.values())

    def clear_since_s(self, a: str, b: str) -> float | None:
        """Return since when datagrams pass both ways between two hosts; None while they do not."""
        if self.is_cut(a, b) or self.is_cut(b, a):
            return None
        return max(self.cut_until_s.get((a, b), 0.0), self.cut_until_s.get((b, a), 0.0))

    # Datagrams.

    def send(self, source: "Host", to: str, payload: Any) -> None:
        world = self._world
        self.sent += 1
        host = world.hosts.get(to)
        row = self._cuts.get(source.address)
        if host is None or (row is not None and to in row):
            self.lost += 1
            return
        link = self.link
        random = world.rng.random
        if link.loss and random() < link.loss:
            self.lost += 1
            return
        delay_s = link.delay_s + link.jitter_s * random()
        if link.spike and random() < link.spike:
            delay_s += link.spike_s * random()
        if self.slow:
            delay_s += self.slow.get(source.address, 0.0) + self.slow.get(to, 0.0)
        world.push(world.now_s + delay_s, None, host, source.address, payload)
        if link.duplicate and random() < link.duplicate:
            again_s = world.now_s + delay_s + (link.jitter_s + link.spike_s) * random()
            world.push(again_s, None, host, source.address, payload)

    def arrive(self, host: "Host", source: str, payload: Any) -> None:
        row = self._cuts.get(source)
        if row is not None and host.address in row:
            self.lost += 1
            return
        host.deliver("datagram", source, payload)

    # Streams.

    def ask(self, source: "Host", to: str, message: Any, token: Any, within_s: float) -> None:
        handle = self._handle(source, to, token, within_s)
        self._world.after(
            self._connect_s(source.address, to), lambda: self._asked(handle, to, message)
        )

    def _handle(self, source: "Host", to: str, token: Any, within_s: float) -> _Handle:
        """A request that ends one way or another: at its deadline it has failed."""
        handle = _Handle(source.address, source.life, token, self._world.now_s + within_s)
        failed = Failed(token, to, refused=False)
        self._world.after(within_s, lambda: self._tell(handle, failed))
        return handle

    def _asked(self, handle: _Handle, to: str, message: Any) -> None:
        host = self._world.hosts.get(to)
        if handle.settled:
            return
        if not self._passes(handle.asker, to) or host is None or not host.powered:
            self._retry(handle, lambda: self._asked(handle, to, message))
        elif host.program is None:
            self._tell(handle, Failed(handle.token, to, refused=True))
        else:
            host.deliver("stream", handle.asker, Asked(handle.asker, message, handle))

    def answer(self, source: "Host", handle: _Handle, message: Any) -> None:
        answered = Answered(handle.token, source.address, message)

        def arrive() -> None:
            if self._passes(source.address, handle.asker):
                self._tell(handle, answered)
            else:
                self._retry(handle, arrive)

        self._world.after(self._data_s(source.address, handle.asker), arrive)

    def open(self, source: "Host", to: str, token: Any) -> None:
        handle = self._handle(source, to, token, OPEN_WITHIN_S)
        self._world.after(self._connect_s(source.address, to), lambda: self._opened(handle, to))

    def _opened(self, handle: _Handle, to: str) -> None:
        host = self._world.hosts.get(to)
        opener = self._world.hosts[handle.asker]
        if opener.program is None or opener.life != handle.asker_life or handle.settled:
            return
        if not self._passes(handle.asker, to) or host is None or not host.powered or host.paused:
            self._retry(handle, lambda: self._opened(handle, to))
        elif host.program is None:
            self._tell(handle, Failed(handle.token, to, refused=True))
        else:
            self._streams.append(_Stream(handle.asker, handle.asker_life, to, handle.token))
            self._tell(handle, Opened(handle.token, to))

    def close(self, host: "Host", token: Any) -> None:
        """The opener ends its stream; the acceptor need not be told in this model."""
        self._streams = [
            stream
            for stream in self._streams
            if not (stream.opener == host.address and stream.token == token)
        ]

    def ended(self, host: "Host") -> None:
        """A process is gone: its streams end, noticed at once or only by keep-alive."""
        address = host.address
        mine = [s for s in self._streams if address in (s.opener, s.acceptor)]
        self._streams = [s for s in self._streams if address not in (s.opener, s.acceptor)]
        for stream in mine:
            if stream.acceptor == address:
                self._notice(stream, self._world.now_s + KEEPALIVE_S)

    def restarted(self, host: "Host") -> None:
        """A new process does not know the streams of the last one (they ended with it)."""

    def _notice(self, stream: _Stream, give_up_s: float) -> None:
        world = self._world
        opener = world.hosts[stream.opener]

        def closed() -> None:
            if opener.life != stream.opener_life or opener.program is None:
                return
            acceptor = world.hosts[stream.acceptor]
            said = acceptor.powered and self._passes(stream.acceptor, stream.opener)
            if said or world.now_s >= give_up_s:
                opener.deliver("stream", stream.acceptor, Closed(stream.token, stream.acceptor))
            else:
                world.after(STALLED_RETRY_S, closed)

        world.after(self._data_s(stream.acceptor, stream.opener), closed)

    def _retry(self, handle: _Handle, again: Any) -> None:
        if not handle.settled:
            self._world.after(STALLED_RETRY_S, again)

    def _tell(self, handle: _Handle, event: Any) -> None:
        if handle.settled:
            return
        handle.settled = True
        host = self._world.hosts[handle.asker]
        if host.program is not None and host.life == handle.asker_life:
            host.deliver("stream", event.source, event)

    def _passes(self, a: str, b: str) -> bool:
        """Streams need both directions."""
        return not (self.is_cut(a, b) or self.is_cut(b, a))

    def _connect_s(self, a: str, b: str) -> float:
        """Handshake and first data: three trips, each repeated after a while when lost."""
        return (
            self._trip_s(a, b, SYN_RETRY_S)
            + self._trip_s(b, a, SYN_RETRY_S)
            + self._trip_s(a, b, DATA_RETRY_S)
        )

    def _data_s(self, a: str, b: str) -> float:
        return self._trip_s(a, b, DATA_RETRY_S)

    def _trip_s(self, a: str, b: str, retry_s: float) -> float:
        random = self._world.rng.random
        link = self.link
        took_s = link.delay_s + link.jitter_s * random()
        took_s += self.slow.get(a, 0.0) + self.slow.get(b, 0.0)
        while link.loss and random() < link.loss:
            took_s += retry_s
            retry_s *= 2
        return took_s
