"""Gates and datacenters in one program, each datacenter with one manager and one worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from hyperscale import GateServer, HyperscaleClient, ManagerServer, WorkerServer
from tests.lab.command import CommandOutcome, run

ANY_PORT = {"port": 0, "http_port": 0}
BOTH = ("east", "west")


class Tiers(NamedTuple):
    directory: Path
    gates: list[GateServer]
    managers: dict[str, ManagerServer]
    workers: dict[str, WorkerServer]
    client: HyperscaleClient

    async def hyperscale(self, *arguments: str) -> CommandOutcome:
        """Run a command that talks to the gates, in a process of its own."""
        flags = [word for gate in self.gates for word in ("--gate", gate.address)]
        return await asyncio.to_thread(run, *arguments, *flags, cwd=self.directory)


def settings(directory: Path, name: str, node: dict[str, Any], **tables: Any) -> dict[str, Any]:
    own = {"id": name, "data_dir": str(directory / name), **node}
    return {"node": own, "listen": ANY_PORT, **tables}


async def start_gate(
    directory: Path, name: str, *, seeds: Sequence[str] = (), founders: int = 1, region: str = ""
) -> GateServer:
    tables: dict[str, Any] = {"ledger": {"founders": founders}}
    if seeds:
        tables["discovery"] = {"seeds": list(seeds)}
    gate = GateServer(settings(directory, name, {"failure_domain": region or name}, **tables))
    await gate.start(timeout_s=None if founders > 1 else 30.0)
    return gate


async def start_manager(directory: Path, datacenter: str, gates: list[str]) -> ManagerServer:
    where = {"datacenter": datacenter}
    manager = ManagerServer(settings(directory, f"m-{datacenter}", where, gates={"seeds": gates}))
    await manager.start(timeout_s=30.0)
    return manager


async def start_worker(directory: Path, manager: ManagerServer, datacenter: str) -> WorkerServer:
    where = {"datacenter": datacenter, "cores": 1}
    seeds = {"seeds": [manager.address]}
    worker = WorkerServer(settings(directory, f"w-{datacenter}", where, discovery=seeds))
    await worker.start(timeout_s=30.0)
    return worker


@asynccontextmanager
async def running(
    directory: Path, *, gates: int = 1, datacenters: Sequence[str] = BOTH
) -> AsyncIterator[Tiers]:
    """Run gates and datacenters; the client can use all of them when the body begins."""
    servers = [await start_gate(directory, "gate-1", founders=gates)]
    for number in range(2, gates + 1):
        seeds = [server.address for server in servers]
        servers.append(await start_gate(directory, f"gate-{number}", seeds=seeds, founders=gates))
    addresses = [server.address for server in servers]
    managers: dict[str, ManagerServer] = {}
    workers: dict[str, WorkerServer] = {}
    for name in datacenters:
        managers[name] = await start_manager(directory, name, addresses)
        workers[name] = await start_worker(directory, managers[name], name)
    tiers = Tiers(directory, servers, managers, workers, HyperscaleClient(gate_tcp_addrs=addresses))
    async with tiers.client:
        await until_healthy(tiers.client, datacenters)
        yield tiers
    for node in (*workers.values(), *managers.values(), *servers):
        await node.graceful_shutdown()


async def until_healthy(client: HyperscaleClient, datacenters: Sequence[str]) -> None:
    async with asyncio.timeout(60.0):
        while True:
            rows = {row.datacenter: row.health for row in await client.list_datacenters()}
            if all(rows.get(name) == "healthy" for name in datacenters):
                return
            await asyncio.sleep(0.05)


def run_tiers(
    directory: Path,
    work: Callable[[Tiers], Awaitable[None]],
    *,
    gates: int = 1,
    datacenters: Sequence[str] = BOTH,
) -> None:
    async def main() -> None:
        async with running(directory, gates=gates, datacenters=datacenters) as tiers:
            await work(tiers)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def write_test(directory: Path, url: str, *, vus: int = 6, duration: str = "3s") -> Path:
    """Write a test whose requests name their virtual user."""
    path = directory / "shop.py"
    path.write_text(
        "from hyperscale import Workflow, step\n"
        "from hyperscale.testing import HTTPResponse\n\n\n"
        "class Load(Workflow):\n"
        f"    vus = {vus}\n"
        f"    duration = {duration!r}\n\n"
        "    @step()\n"
        "    async def get(self) -> HTTPResponse:\n"
        f"        return await self.client.http.get(f'{url}/delay/20?vu={{self.vu}}')\n"
    )
    return path
