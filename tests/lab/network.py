"""Network namespaces, links between them, and processes in each.

    with NetLab() as lab:
        server = lab.b.popen([sys.executable, "serve.py", lab.b.address])
        client = lab.a.popen([sys.executable, "call.py", lab.b.address])
        lab.link(delay_s=0.05, loss=0.1)
        lab.cut()                # no packet passes; cut(to="b") cuts one direction
        lab.mend()

`NetLab(sides=3)` has three of them, `lab.sides`, all linked to each other; `lab.isolate(side)` cuts
one side off from the others, and `lab.way(a, b)` is one direction of one link.

With `NetLab(outside=True)` all sides also reach `lab.outside`, an address of the namespace the
tests run in, and are reached from there under their own, whatever becomes of the link.

Needs root, `ip` (iproute2) and /dev/net/tun; `why_not()` says what is missing. Processes started
in a lab that still run at its end are killed with it.
"""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self

from tests.lab.relay import Relay, Way

TUN_DEVICE = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000

End = Literal["a", "b"]
_numbers = count()


def why_not() -> str:
    """Return what this machine lacks for a lab; empty if it has everything."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command 'ip' is missing (package iproute2)"
    if not os.path.exists(TUN_DEVICE):
        return f"{TUN_DEVICE} is missing"
    tried = subprocess.run(["ip", "netns", "list"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode().strip()}"


class Side:
    """One namespace, its address, and the processes in it."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._processes: list[subprocess.Popen[Any]] = []

    def popen(self, command: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        """Start a process in this namespace."""
        wrapped = ["ip", "netns", "exec", self.name, *command]
        process = subprocess.Popen(wrapped, **kwargs)
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[Any]:
        """Run a command in this namespace to its end."""
        wrapped = ["ip", "netns", "exec", self.name, *command]
        return subprocess.run(wrapped, check=True, **kwargs)

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


class NetLab:
    """Sides and the relay between them. A context manager."""

    def __init__(self, *, sides: int = 2, seed: int = 0, outside: bool = False) -> None:
        # The pid keeps labs of parallel test runs apart, the number those of one process.
        number = next(_numbers)
        tag, net = f"{os.getpid() % 1_000_000}x{number % 100}", (os.getpid() + number) % 4000
        first = f"10.{97 + net // 250}.{net % 250}"
        self.sides = [
            Side(f"hs{letter}{tag}", f"{first}.{index + 1}")
            for index, letter in enumerate("abcdefgh"[:sides])
        ]
        self.outside = f"{first}.254" if outside else ""
        self._seed = seed
        self._stack = ExitStack()
        self._relay: Relay

    @property
    def a(self) -> Side:
        return self.sides[0]

    @property
    def b(self) -> Side:
        return self.sides[1]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            devices = {side.address: self._side(stack, side) for side in self.sides}
            self._relay = Relay(devices, seed=self._seed)
            stack.callback(self._relay.close)
            for side in self.sides:
                stack.callback(side.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # The links.

    def way(self, source: Side, target: Side) -> Way:
        """Return one direction of the link between two sides."""
        return self._relay.ways[source.address, target.address]

    @property
    def to_a(self) -> Way:
        return self.way(self.b, self.a)

    @property
    def to_b(self) -> Way:
        return self.way(self.a, self.b)

    def link(self, *, delay_s: float = 0.0, jitter_s: float = 0.0, loss: float = 0.0) -> None:
        """Set delay, jitter and loss of every direction of every link."""
        for way in self._relay.ways.values():
            way.delay_s, way.jitter_s, way.loss = delay_s, jitter_s, loss

    def cut(self, *, to: End | None = None) -> None:
        """Drop all packets, or all packets to side a or b."""
        self._set_cut(to, is_cut=True)

    def isolate(self, side: Side) -> None:
        """Drop all packets from and to a side."""
        for ends, way in self._relay.ways.items():
            if side.address in ends:
                way.is_cut = True

    def mend(self, *, to: End | None = None) -> None:
        self._set_cut(to, is_cut=False)

    def _set_cut(self, to: End | None, *, is_cut: bool) -> None:
        only = None if to is None else (self.a if to == "a" else self.b).address
        for (_, target), way in self._relay.ways.items():
            if only in (None, target):
                way.is_cut = is_cut

    # Making it.

    def _side(self, stack: ExitStack, side: Side) -> int:
        """Make the namespace and the TUN device of one side; return the device's descriptor."""
        _ip("netns", "add", side.name)
        stack.callback(_ip, "netns", "del", side.name)
        device = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, device)
        request = struct.pack("16sH22x", side.name.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(device, _TUNSETIFF, request)
        _ip("link", "set", side.name, "netns", side.name)
        within = ("netns", "exec", side.name, "ip")
        _ip(*within, "address", "add", f"{side.address}/24", "dev", side.name)
        _ip(*within, "link", "set", side.name, "up", "mtu", "1500")
        _ip(*within, "link", "set", "lo", "up")
        if self.outside:
            self._way_out(stack, side)
        return device

    def _way_out(self, stack: ExitStack, side: Side) -> None:
        """Connect a side to the namespace of the tests, beside the link."""
        here, there = f"{side.name}o", f"{side.name}i"
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", side.name)
        stack.callback(_ip, "link", "del", here)
        within = ("netns", "exec", side.name, "ip")
        _ip(*within, "link", "set", there, "up")
        _ip(*within, "route", "add", self.outside, "dev", there, "src", side.address)
        _ip("link", "set", here, "up")
        _ip("address", "add", self.outside, "peer", side.address, "dev", here)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
