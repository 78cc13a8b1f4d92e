"""A gate: a member that takes jobs for several datacenters and keeps the ledger of global jobs."""

from collections.abc import Iterator

from hyperscale.config.loading import NodeSettings
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.nodes.credentials import NodeCredentials
from hyperscale.nodes.disk_use import DiskUse
from hyperscale.nodes.gates.service import GatesService
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.nodes.member import MemberNode, NodeService, RoleSpec
from hyperscale.nodes.server import NodeServer, complete_config
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role


def _services(member: MemberNode, handlers: Handlers) -> Iterator[NodeService]:
    yield NodeCredentials(member)
    ledger = LedgerService(member, handlers, GlobalJobMachine)
    yield ledger
    yield GatesService(member, handlers, ledger)
    yield DiskUse(member, {"ledger": "ledger", "bundles": "blobs"})


GATE_ROLE = RoleSpec(role=Role.GATE, counts_cpu=True, services=_services)


class GateServer(NodeServer):
    """A gate inside your program.

    gate = GateServer({"listen": {"port": 9300, "http_port": 0}})
    await gate.start()
    ...
    await gate.graceful_shutdown()
    """

    def __init__(self, settings: NodeSettings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables of a configuration file."""
        super().__init__(complete_config("gate", settings), GATE_ROLE)
