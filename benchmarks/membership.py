"""What one member costs in a cluster of 10, 100 and 1,000: CPU and packets per second.

The cluster is simulated, every member of it the real core. One member is measured: its core,
encoding, sealing with the cluster secret, a system call for every datagram it sends and receives
on a real socket, and the encoding of the views it exchanges over streams (which managers do for
all workers). Not in it: the event loop around it, and the streams themselves.
"""

import gc
import socket
import time
from random import Random
from typing import Any

from benchmarks.lab import save
from hyperscale.membership.messages import PushPull
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import Role
from hyperscale.wire.sealing import DatagramSealer
from tests.simulation.fleet.program import FleetConfig
from tests.simulation.fleet.settled import Unobserved, settled_fleet
from tests.simulation.kernel import World
from tests.simulation.network import Answered, Asked

SIZES = (10, 100, 1_000)
MANAGERS = 3
WARM_UP_S = 5.0
MEASURED_S = 60.0
LOSS = 0.001
CPU_PERCENT_MAX = 1.0
_VIEW = REGISTRY.by_type[PushPull].kind
SECRET = "a secret for benchmarks only, long enough"


class Meter:
    """Stands between one member and its host: does what a socket would, and takes the time."""

    def __init__(self, world: World, program: Any) -> None:
        self._world = world
        self._program = program
        self._sealer = self._sealer_of(program.node, program.core.local.incarnation)
        self._peers: dict[tuple[str, int], DatagramSealer] = {}
        self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sink.bind(("127.0.0.1", 0))
        self._own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._own.bind(("127.0.0.1", 0))
        self._own.setblocking(False)
        self.cpu_ns = self.sent = self.received = self.bytes_sent = self.bytes_received = 0
        host = program.host
        self._handle, self._wake, self._send = program.datagram, program.wake, host.send
        self._stream, self._ask, self._answer = program.stream, host.ask, host.answer
        program.datagram, program.wake, program.stream = self.datagram, self.wake, self.stream
        host.send, host.ask, host.answer = self.send, self.ask, self.answer
        self.views = 0

    def _sealer_of(self, node: str, incarnation: int) -> DatagramSealer:
        secrets = Secrets(SECRET)
        return DatagramSealer(secrets, node, incarnation, cluster="bench", environment="bench")

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        node, incarnation, message = payload
        peer = self._peers.get((node, incarnation))
        if peer is None:
            peer = self._peers[node, incarnation] = self._sealer_of(node, incarnation)
        sealed = peer.seal(REGISTRY.pack(message))
        self._sink.sendto(sealed, self._own.getsockname())
        began_ns = time.thread_time_ns()
        data, _ = self._own.recvfrom(2048)
        opened = self._sealer.open(data)
        unpacked = REGISTRY.unpack(opened.plain)
        self._handle(source, (opened.node_id, opened.incarnation, unpacked), now_s)
        self.cpu_ns += time.thread_time_ns() - began_ns
        self.received += 1
        self.bytes_received += len(data)

    def wake(self, now_s: float) -> None:
        began_ns = time.thread_time_ns()
        self._wake(now_s)
        self.cpu_ns += time.thread_time_ns() - began_ns

    def stream(self, event: Any, now_s: float) -> None:
        view = event.message[-1] if isinstance(event, Asked | Answered) else None
        encoded = REGISTRY.encode(view) if isinstance(view, PushPull) else b""
        began_ns = time.thread_time_ns()
        if encoded:
            REGISTRY.decode(_VIEW, encoded)
            self.views += 1
        self._stream(event, now_s)
        self.cpu_ns += time.thread_time_ns() - began_ns

    def ask(self, to: str, message: Any, token: Any, *, within_s: float = 5.0) -> None:
        if isinstance(message[-1], PushPull):
            REGISTRY.encode(message[-1])
        self._ask(to, message, token, within_s=within_s)

    def answer(self, handle: Any, message: Any) -> None:
        if isinstance(message[-1], PushPull):
            REGISTRY.encode(message[-1])
        self._answer(handle, message)

    def send(self, to: str, payload: Any) -> None:
        data = self._sealer.seal(REGISTRY.pack(payload[2]))
        self._own.sendto(data, self._sink.getsockname())
        self.sent += 1
        self.bytes_sent += len(data)
        self._send(to, payload)

    def close(self) -> None:
        self._sink.close()
        self._own.close()


def measure(size: int) -> list[dict[str, Any]]:
    """A worker and a manager among `size` members."""
    addresses = [f"10.0.{n // 250}.{n % 250}:9000" for n in range(size)]
    world = World(size, monitor=Unobserved())
    world.network.link.loss = LOSS
    roles = {a: Role.MANAGER if n < MANAGERS else Role.WORKER for n, a in enumerate(addresses)}
    config = FleetConfig(roles=roles, seeds=addresses[:MANAGERS], rejoin=False)
    settled_fleet(world, addresses, config)
    gc.collect()
    gc.disable()
    try:
        world.run(WARM_UP_S)
        chosen = (Random(size).choice(addresses[MANAGERS:]), addresses[0])
        meters = {at: Meter(world, world.hosts[at].program) for at in chosen}
        world.run(WARM_UP_S + MEASURED_S)
    finally:
        gc.enable()
    return [_row(size, str(roles[at]), meter) for at, meter in meters.items()]


def _row(size: int, role: str, meter: Meter) -> dict[str, Any]:
    meter.close()
    return {
        "members": size,
        "role": role,
        "cpu_percent": 100 * meter.cpu_ns / 1e9 / MEASURED_S,
        "packets_sent_per_s": meter.sent / MEASURED_S,
        "packets_received_per_s": meter.received / MEASURED_S,
        "bytes_sent_per_s": meter.bytes_sent / MEASURED_S,
        "views_per_minute": 60 * meter.views / MEASURED_S,
    }


def main() -> None:
    rows = [row for size in SIZES for row in measure(size)]
    lines = [
        "# One member's cost, by the size of its cluster",
        "",
        f"{MEASURED_S:.0f} s of virtual time, {LOSS:.1%} loss, {MANAGERS} managers. Goal: at most "
        f"{CPU_PERCENT_MAX:g} % of a core with 1,000 members, packets per second that do not grow.",
        "",
        "| members | role | CPU, % of a core | packets sent /s | received /s | bytes sent /s "
        "| views /min |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row['members']:,} | {row['role']} | {row['cpu_percent']:.3f} "
        f"| {row['packets_sent_per_s']:.1f} | {row['packets_received_per_s']:.1f} "
        f"| {row['bytes_sent_per_s']:.0f} | {row['views_per_minute']:.1f} |"
        for row in rows
    ]
    most = max(row["cpu_percent"] for row in rows)
    lines += ["", f"Goal met: {'yes' if most <= CPU_PERCENT_MAX else 'no'}."]
    save("membership", "\n".join(lines), {"rows": rows})


if __name__ == "__main__":
    main()
