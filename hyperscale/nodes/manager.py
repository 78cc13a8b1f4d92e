"""A manager: a member that keeps the datacenter's ledger, leads jobs and watches workers."""

from collections.abc import Iterator

from hyperscale.config.loading import NodeSettings
from hyperscale.nodes.credentials import NodeCredentials
from hyperscale.nodes.disk_use import DiskUse
from hyperscale.nodes.jobs.global_parts import GlobalParts
from hyperscale.nodes.jobs.service import JobsService
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.nodes.member import MemberNode, NodeService, RoleSpec
from hyperscale.nodes.server import NodeServer, complete_config
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role


def _services(member: MemberNode, handlers: Handlers) -> Iterator[NodeService]:
    yield NodeCredentials(member)
    ledger = LedgerService(member, handlers)
    yield ledger
    jobs = JobsService(member, handlers, ledger)
    yield jobs
    yield GlobalParts(member, handlers, ledger, jobs)
    yield DiskUse(member, {"ledger": "ledger", "bundles": "blobs"})


MANAGER_ROLE = RoleSpec(role=Role.MANAGER, counts_cpu=True, services=_services)


class ManagerServer(NodeServer):
    """A manager inside your program.

    manager = ManagerServer({"listen": {"port": 9000, "http_port": 0}})
    await manager.start()
    ...
    await manager.graceful_shutdown()
    """

    def __init__(self, settings: NodeSettings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables of a configuration file."""
        super().__init__(complete_config("manager", settings), MANAGER_ROLE)
