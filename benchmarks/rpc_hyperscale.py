"""One end of the RPC benchmark over our wire: `server MODE DIR` or `client MODE DIR PORT SECONDS`.

MODE is `secret` (sealed frames) or `tls` (mutual TLS with the certificates in DIR). Prints JSON:
the server its port, then, when its input closes, the CPU seconds since; the client its round
trips and the CPU seconds they took.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop
from msgspec import Struct

from hyperscale.wire.calls import InboundCall
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.registry import MessagePriority, SizeClass, message
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, TlsFiles
from hyperscale.wire.server import PeerServer

IN_FLIGHT = 64
BODY = bytes(range(256))


@message(kind=65001, priority=MessagePriority.NORMAL, size=SizeClass.SMALL)
class Ask(Struct):
    body: bytes


@message(kind=65002, priority=MessagePriority.NORMAL, size=SizeClass.SMALL)
class Told(Struct):
    body: bytes


def node(node_id: str, handlers: Handlers | None = None) -> PeerServer:
    local = Introduction(
        cluster="bench",
        environment="bench",
        role=Role.MANAGER,
        node_id=node_id,
        incarnation=1,
        version="bench",
    )
    folder = Path(sys.argv[3])
    if sys.argv[2] == "tls":
        names = (f"{node_id}.pem", f"{node_id}-key.pem", "ca.pem")
        security = Security(tls=TlsFiles(*(folder / name for name in names)))
    else:
        security = Security(secrets=Secrets("a secret for the benchmark"))
    return PeerServer(local, security, handlers)


async def serve() -> None:
    handlers = Handlers()

    async def tell(_call: InboundCall, ask: Ask) -> Told:
        return Told(ask.body)

    handlers.add(Ask, tell)
    async with node("server", handlers) as server:
        _, port = await server.listen("127.0.0.1", 0)
        began_s = time.process_time()
        print(json.dumps({"port": port}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({"cpu_s": time.process_time() - began_s}), flush=True)


async def ask(port: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    count = 0
    async with node("client") as client:
        link = client.link("127.0.0.1", port)
        began_s, until_s = time.process_time(), loop.time() + seconds

        async def caller() -> None:
            nonlocal count
            while (now_s := loop.time()) < until_s:
                told = await link.call(Ask(BODY), Told, deadline_s=now_s + 10)
                assert told.body == BODY
                count += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(caller())
        used_s = time.process_time() - began_s
    print(json.dumps({"count": count, "cpu_s": used_s}), flush=True)


def main() -> None:
    work = serve() if sys.argv[1] == "server" else ask(int(sys.argv[4]), float(sys.argv[5]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


main()
