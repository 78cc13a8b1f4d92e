"""A worker: a member that offers its cores and generates load on them for job leaders."""

from hyperscale.config.loading import NodeSettings
from hyperscale.jobs.agent.events import FitnessChecked
from hyperscale.nodes.agent.agent_driver import AgentDriver
from hyperscale.nodes.agent.machine import offered_cores
from hyperscale.nodes.agent.self_check import SelfCheck
from hyperscale.nodes.credentials import NodeCredentials
from hyperscale.nodes.disk_use import DiskUse
from hyperscale.nodes.member import MemberNode, NodeService, RoleSpec
from hyperscale.nodes.server import NodeServer, complete_config
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role


def _services(member: MemberNode, handlers: Handlers) -> list[NodeService]:
    agent = AgentDriver(member, handlers, cores=offered_cores(member.config))
    self_check = SelfCheck(
        member,
        start_executors=agent.start_executors,
        disk_failed=agent.disk_failed,
        on_checked=lambda unfit: agent.feed(FitnessChecked(unfit)),
    )
    disk = DiskUse(member, {"bundles": "bundles", "results": "results"})
    return [NodeCredentials(member), agent, self_check, disk]


WORKER_ROLE = RoleSpec(
    role=Role.WORKER,
    counts_cpu=False,  # a load generator is meant to be busy
    services=_services,
    needs=frozenset({Role.MANAGER}),
)


class WorkerServer(NodeServer):
    """A worker inside your program.

    worker = WorkerServer({"discovery": {"seeds": ["127.0.0.1:9000"]}})
    await worker.start(timeout_s=10)
    ...
    await worker.graceful_shutdown()

    Run it in the main thread: executors are killed when the thread that started them ends.
    """

    def __init__(self, settings: NodeSettings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables of a configuration file."""
        super().__init__(complete_config("worker", settings), WORKER_ROLE)
