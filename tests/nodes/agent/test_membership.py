"""A worker in a cluster: it finds its leader by name, and tells the others how it does."""

import asyncio
from pathlib import Path
from typing import Any

from hyperscale._native import Target
from hyperscale.config.loading import node_config
from hyperscale.jobs.commands import PartFinished, PartStatus, WorkerCores
from hyperscale.membership.events import Changed, Died
from hyperscale.nodes.job_messages import DrainWorker, WorkerDrains
from hyperscale.nodes.member import Duties, MemberNode, Service, open_member
from hyperscale.nodes.messages import NodeMetadata, metadata_of
from hyperscale.nodes.running import as_config
from hyperscale.nodes.worker import worker_duties
from hyperscale.wire.roles import Role
from hyperscale.wire.serving import Handlers
from tests.nodes.agent.lab import Boss, is_quiet, load, play, until


class BossService(Service):
    """A manager that leads, as far as a worker can tell, and is a member."""

    def __init__(self) -> None:
        self.worker: NodeMetadata | None = None
        self.boss: Boss

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        self.boss = Boss(member.server, handlers, {})

    def changed(self, change: Changed | Died) -> None:
        if change.member.role is Role.WORKER:
            self.worker = metadata_of(change.member.metadata)


def config(role: Any, **tables: Any) -> Any:
    tables.setdefault("listen", {"port": 0, "http_port": 0})
    return as_config(role, node_config(role, tables))


def test_a_worker_dials_its_leader_and_members_see_its_cores(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, duration="2s", pause_s=0.02)

    async def work() -> None:
        service = BossService()
        duties = Duties(
            role=Role.MANAGER,
            counts_cpu=False,
            why_not_ready=lambda _: (),
            services=(service,),
        )
        manager_config = config("manager", node={"id": "m1", "data_dir": str(tmp_path / "m")})
        async with open_member(manager_config, duties) as manager:
            settings = config(
                "worker",
                node={"id": "w1", "cores": 2, "data_dir": str(tmp_path / "w"), "stop_s": 3.0},
                discovery={"seeds": [manager.address]},
            )
            async with open_member(settings, worker_duties(settings)) as worker:
                leader = service.boss
                await worker.wait_ready(30)
                await leader.meet(worker.address)
                await until(lambda: service.worker is not None and service.worker.is_ready)
                assert service.worker is not None
                assert (service.worker.cores, service.worker.free) == (2, 2)
                run = await leader.run(code)
                await until(lambda: service.worker is not None and service.worker.free == 1)
                await until(
                    lambda: service.worker is not None and service.worker.progress == "progressing"
                )
                # Cut off, and not dialled: the worker has to come.
                for connection in manager.server.connections:
                    connection.abort("the test wants it so")
                finished = await leader.hears(PartFinished)
                assert finished.status is PartStatus.COMPLETED
                assert finished.report is not None
                assert finished.report.steps[0].counts.sent == await is_quiet(target)
                leader.acknowledge(run)
                await until(lambda: service.worker is not None and service.worker.free == 2)
                assert leader.said(WorkerCores)[-1].incarnation > 0
                drains = await leader.ask(DrainWorker(), WorkerDrains)
                assert drains.runs == 0
                await until(
                    lambda: (
                        service.worker is not None
                        and service.worker.is_draining
                        and not service.worker.is_ready
                    )
                )
                assert worker.why_not_ready() == ("draining",)
                await asyncio.wait_for(worker.leave(), 30)

    play(work)
