"""The world of a simulation: one clock, one heap of events, hosts and the processes on them.

Everything that happens is an entry of the heap; ties fall in the order of insertion; the only
randomness is the world's own generator. Same seed and same code, same run.

A *host* is a machine with an address, a disk and a kernel that goes on while its process
stands still: datagrams wait in its socket buffer, connections are accepted or refused. A
*program* is the process: a thin shell around sans-IO cores, built anew at each start; what
survives a crash is what it had synced to the disk. This module does not know what programs do.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from tests.simulation.network import Network
from tests.simulation.trace import Trace

INBOX_DATAGRAMS_MAX = 256
"""What a socket's receive buffer holds of small datagrams by default on Linux."""

WALL_EPOCH_MS = 1_700_000_000_000


class Violation(AssertionError):
    """An invariant did not hold."""


class Program(Protocol):
    """One process. Every method runs at an instant; effects go out through its host."""

    def start(self, now_s: float) -> None: ...

    def datagram(self, source: str, payload: Any, now_s: float) -> None: ...

    def stream(self, event: Any, now_s: float) -> None:
        """An event of `network`: Asked, Answered, Failed, Opened, Closed."""

    def disk(self, token: Any, now_s: float) -> None:
        """What was written before `sync(token)` survives a crash from here on."""

    def wake(self, now_s: float) -> None: ...

    def wake_at_s(self) -> float | None:
        """Return when `wake` is wanted next; None for never."""


class Monitor:
    """Invariants. Override what you need; raise `Violation` through `world.fail`."""

    def after(self, host: "Host") -> None:
        """After every single event a program has handled."""

    def started(self, host: "Host") -> None: ...

    def stopping(self, host: "Host", how: str) -> None:
        """A process is about to end: "crash", "power" or "exit". Its program is still there."""

    def paused(self, host: "Host") -> None: ...

    def resumed(self, host: "Host", stood_s: float) -> None: ...


class Disk:
    """Durable once synced. A crash loses what was not."""

    def __init__(self) -> None:
        self._durable: dict[Any, Any] = {}
        self._written: dict[Any, Any] = {}

    def write(self, key: Any, value: Any) -> None:
        self._written[key] = value

    def read(self, key: Any, default: Any = None) -> Any:
        return self._written.get(key, self._durable.get(key, default))

    def sync(self) -> None:
        self._durable.update(self._written)
        self._written.clear()

    def lose_unsynced(self) -> None:
        self._written.clear()

    def wipe(self) -> None:
        self._durable.clear()
        self._written.clear()


class Host:
    """One machine: what its process sees of the world, and what the world does to it."""

    def __init__(self, world: "World", address: str, index: int, factory: "Factory") -> None:
        self.world = world
        self.address = address
        self.index = index
        self.factory = factory
        self.program: Any = None
        self.powered = True
        self.paused = False
        self.blocked = False
        self.life = 0
        self.disk = Disk()
        self.clock_skew_ms = 0
        self.clock_was_off = False
        self.inbox: deque[tuple[str, str, Any]] = deque()
        self.outbox: list[Callable[[], None]] = []
        self.inbox_dropped = 0
        self.paused_at_s = 0.0
        self._wake_at_s: float | None = None

    # What a program may do.

    def send(self, to: str, payload: Any) -> None:
        if self.blocked:
            self.outbox.append(lambda: self.world.network.send(self, to, payload))
        else:
            self.world.network.send(self, to, payload)

    def ask(self, to: str, message: Any, token: Any, *, within_s: float = 5.0) -> None:
        """A request over a fresh stream: `Answered` or `Failed` comes back."""
        if self.blocked:
            self.outbox.append(lambda: self.ask(to, message, token, within_s=within_s))
        else:
            self.world.network.ask(self, to, message, token, within_s)

    def answer(self, handle: Any, message: Any) -> None:
        if self.blocked:
            self.outbox.append(lambda: self.answer(handle, message))
        else:
            self.world.network.answer(self, handle, message)

    def open(self, to: str, token: Any) -> None:
        """A stream that stays: `Opened`, then `Closed` when it ends; or `Failed`."""
        if self.blocked:
            self.outbox.append(lambda: self.open(to, token))
        else:
            self.world.network.open(self, to, token)

    def close(self, token: Any) -> None:
        self.world.network.close(self, token)

    def sync(self, token: Any, *, within_s: float) -> None:
        """Makes what was written durable after a while; then `Program.disk(token)`."""
        life = self.life

        def synced() -> None:
            if self.life == life and self.program is not None:
                self.disk.sync()
                self._handle("disk", token)

        self.world.after(within_s, synced)

    def drain(self) -> None:
        """Hands over every datagram that waits in the socket. What a shell does before it lets
        timers fire."""
        waiting = [item for item in self.inbox if item[0] == "datagram"]
        if waiting:
            self.inbox = deque(item for item in self.inbox if item[0] != "datagram")
            for item in waiting:
                self.deliver(*item)

    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + int(self.world.now_s * 1000) + self.clock_skew_ms

    def note(self, what: str, detail: object = "") -> None:
        trace = self.world.trace
        if trace is not None:
            trace.add(self.world.now_s, self.address, what, detail)

    # What the world does.

    @property
    def is_up(self) -> bool:
        """A process is there (it may stand still)."""
        return self.program is not None

    @property
    def is_running(self) -> bool:
        return self.program is not None and not self.paused

    def start(self) -> None:
        if self.program is not None:
            raise ValueError(f"{self.address} runs already")
        self.powered = True
        self.life += 1
        self.program = self.factory(self)
        self.note("START", f"life {self.life}")
        self.world.network.restarted(self)
        self.program.start(self.world.now_s)
        self.world.monitor.started(self)
        self.settle()

    def stop(self, how: str, *, wipe: bool = False) -> None:
        """Ends the process: "crash" (the kernel says so to peers), "power" (silence), "exit"."""
        if self.program is None:
            return
        self.world.monitor.stopping(self, how)
        self.note(how.upper(), "disk wiped" if wipe else "")
        self.program = None
        self.powered = how != "power"
        self.paused = self.blocked = False
        self.inbox.clear()
        self.outbox.clear()
        self._wake_at_s = None
        self.disk.lose_unsynced()
        if wipe:
            self.disk.wipe()
        self.world.network.ended(self)

    def pause(self) -> None:
        """The process stands still; its kernel does not."""
        if self.program is None or self.paused:
            return
        self.note("PAUSE")
        self.paused = True
        self.paused_at_s = self.world.now_s
        self.world.monitor.paused(self)

    def resume(self) -> None:
        if self.program is None or not self.paused:
            return
        self.paused = False
        stood_s = self.world.now_s - self.paused_at_s
        self.note("RESUME", f"after {stood_s:.3f} s, {len(self.inbox)} waiting")
        self.world.monitor.resumed(self, stood_s)
        # A loop that wakes may run its timers before it reads its sockets: the worse order for
        # a failure detector, so it comes first half of the time, while the packets still wait.
        if self.world.rng.random() < 0.5 and self._is_wake_due(self.program):
            self.program.wake(self.world.now_s)
            self.world.monitor.after(self)
        self._flush()
        self.settle()

    def block(self) -> None:
        """Sends and receives hang while timers run: the slow member of the Lifeguard paper."""
        if self.program is not None and not self.blocked:
            self.note("BLOCK")
            self.blocked = True

    def unblock(self) -> None:
        if self.program is None or not self.blocked:
            return
        self.note("UNBLOCK", f"{len(self.inbox)} in, {len(self.outbox)} out")
        self.blocked = False
        outbox, self.outbox = self.outbox, []
        for act in outbox:
            act()
        self._flush()
        self.settle()

    def deliver(self, kind: str, source: str, payload: Any) -> None:
        """Something arrived at this machine for its process."""
        program = self.program
        if program is None:
            return
        if self.paused or self.blocked:
            if len(self.inbox) < INBOX_DATAGRAMS_MAX or kind != "datagram":
                self.inbox.append((kind, source, payload))
            else:
                self.inbox_dropped += 1
            return
        world = self.world
        if kind == "datagram":
            if world.trace is not None:
                world.trace.add(world.now_s, self.address, "<- " + source, world.show(payload))
            program.datagram(source, payload, world.now_s)
            world.monitor.after(self)
            self.settle()
        else:
            self._handle(kind, payload)

    def _handle(self, method: str, payload: Any) -> None:
        self.note(method, payload)
        getattr(self.program, method)(payload, self.world.now_s)
        self.world.monitor.after(self)
        self.settle()

    def settle(self) -> None:
        """Sees to it that the program is woken when it wants to be."""
        program = self.program
        if program is None:
            return
        wanted_s = program.wake_at_s()
        scheduled_s = self._wake_at_s
        if wanted_s is not None and (scheduled_s is None or wanted_s < scheduled_s):
            self._wake_at_s = wanted_s
            self.world.schedule_wake(self, wanted_s)

    def _is_wake_due(self, program: Program | None) -> bool:
        wake_at_s = None if program is None else program.wake_at_s()
        return wake_at_s is not None and wake_at_s <= self.world.now_s

    def _flush(self) -> None:
        while self.inbox and self.program is not None and not (self.paused or self.blocked):
            self.deliver(*self.inbox.popleft())

    def wake_due(self, at_s: float) -> bool:
        """The wake scheduled for `at_s` is due: whether it is still wanted."""
        if at_s != self._wake_at_s:
            return False  # an earlier one took its place
        self._wake_at_s = None
        if self.paused:
            return False  # `resume` looks again
        if not self._is_wake_due(self.program):
            self.settle()
            return False
        return True


Factory = Callable[[Host], Program]


class World:
    """Clock, heap and everything in it."""

    def __init__(
        self, seed: int, *, monitor: Monitor | None = None, trace: Trace | None = None
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.trace = trace
        self.monitor = monitor or Monitor()
        self.show: Callable[[Any], str] = str
        """How a datagram is written in the trace."""
        self.hosts: dict[str, Host] = {}
        self._heap: list[tuple[float, int, Any, Any, Any, Any]] = []
        self._sequence = 0
        self.network = Network(self)

    def add(self, address: str, factory: Factory) -> Host:
        host = Host(self, address, len(self.hosts), factory)
        self.hosts[address] = host
        return host

    def fail(self, message: str) -> None:
        raise Violation(f"at {self.now_s:.4f} s: {message}")

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        self.push(at_s, action, None, None, None)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.push(self.now_s + delay_s, action, None, None, None)

    def push(self, at_s: float, what: Any, a: Any, b: Any, c: Any) -> None:
        """`what` is an action, or None for a datagram from `b` with payload `c` for host `a`."""
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, what, a, b, c))

    def schedule_wake(self, host: Host, at_s: float) -> None:
        self._sequence += 1
        heappush(self._heap, (at_s, self._sequence, _WAKE, host, host.life, None))

    def run(self, until_s: float) -> None:
        """Everything that happens up to `until_s`."""
        heap = self._heap
        network = self.network
        monitor = self.monitor
        while heap and heap[0][0] <= until_s:
            at_s, _, what, a, b, c = heappop(heap)
            if at_s > self.now_s:
                self.now_s = at_s
            self.events += 1
            if what is None:
                network.arrive(a, b, c)
            elif what is _WAKE:
                if a.life == b and a.program is not None and a.wake_due(at_s):
                    if self.trace is not None:
                        self.trace.add(at_s, a.address, "wake", "")
                    a.program.wake(self.now_s)
                    monitor.after(a)
                    a.settle()
            else:
                what()
        if self.now_s < until_s:
            self.now_s = until_s

    def run_until(
        self, holds: Callable[[], bool], *, within_s: float, every_s: float = 0.1
    ) -> float | None:
        """Runs until `holds()`; the time it took, or None if it did not hold in time."""
        began_s = self.now_s
        deadline_s = began_s + within_s
        while not holds():
            if self.now_s >= deadline_s:
                return None
            self.run(min(self.now_s + every_s, deadline_s))
        return self.now_s - began_s


def _WAKE() -> None:
    raise AssertionError("a marker, not an action")
