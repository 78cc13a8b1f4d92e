"""A manager: a member that keeps the datacenter's ledger, leads jobs and watches workers."""

from pathlib import Path

from hyperscale.config.loading import NodeSettings
from hyperscale.config.schema import NodeConfig
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.committed.keys import key_slot_of, parse_job_id
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import LedgerLimits
from hyperscale.ledger.machine import Machine
from hyperscale.nodes.jobs.service import JobsService
from hyperscale.nodes.ledger_service import LedgerService, LedgerSettings
from hyperscale.nodes.member import RoleSpec
from hyperscale.nodes.server import NodeServer, complete_config
from hyperscale.nodes.worker_health import WorkerHealth
from hyperscale.wire.roles import Role


def manager_role(config: NodeConfig) -> RoleSpec:
    """Return what a manager adds to a member."""
    ledger = ledger_service(config)
    allocator = Allocator(queue_max=config.queue.max, age_s=config.queue.age_s)
    jobs = JobsService(Path(config.node.data_dir) / "blobs", ledger, allocator)
    return RoleSpec(
        role=Role.MANAGER,
        counts_cpu=True,
        workers=WorkerHealth(),
        services=(ledger, jobs),
    )


def ledger_service(config: NodeConfig) -> LedgerService:
    """Return the ledger of a manager, whose groups hold jobs."""
    section = config.ledger
    seeds = config.discovery.seeds or config.discovery.dns
    return LedgerService(
        Path(config.node.data_dir) / "ledger",
        LedgerSettings(
            founders=section.founders or (0 if seeds else 1),
            make_machine=lambda group: JobMachine(config.node.datacenter, group),
            key_slot_of=key_slot_of,
            group_of_job=lambda job: parse_job_id(job).group,
            live_jobs=_live_jobs,
            history_days=section.history_days,
            limits=LedgerLimits(
                snapshot_entries=section.snapshot_entries,
                trailing_entries=section.trailing_entries,
            ),
        ),
    )


def _live_jobs(machine: Machine) -> int:
    assert isinstance(machine, JobMachine)
    return sum(not job.has_ended for job in machine.jobs())


class ManagerServer(NodeServer):
    """A manager inside your program.

    manager = ManagerServer({"listen": {"port": 9000, "http_port": 0}})
    await manager.start()
    ...
    await manager.graceful_shutdown()
    """

    def __init__(self, settings: NodeSettings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables of a configuration file."""
        config = complete_config("manager", settings)
        super().__init__(config, manager_role(config))
