"""A manager: a member today; jobs, scheduling and results come with the datacenter."""

from hyperscale.membership.events import Member
from hyperscale.nodes.member import Duties
from hyperscale.nodes.running import EmbeddedNode, Settings, as_config
from hyperscale.nodes.workers import Workers
from hyperscale.wire.roles import Role


def manager_duties() -> Duties:
    return Duties(role=Role.MANAGER, counts_cpu=True, workers=Workers())


class ManagerServer:
    """A manager inside your program.

    manager = ManagerServer({"listen": {"port": 9000, "http_port": 0}})
    await manager.start()
    ...
    await manager.graceful_shutdown()
    """

    def __init__(self, settings: Settings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables a configuration file would hold."""
        self.config = as_config("manager", settings)
        self._node = EmbeddedNode(self.config, manager_duties())

    @property
    def node_id(self) -> str:
        return self.config.node.id

    @property
    def address(self) -> str:
        """`host:port` at which others reach this node."""
        return self._node.member.address

    @property
    def http_address(self) -> str:
        """`host:port` of `/metrics`, `/healthz` and `/readyz`."""
        return self._node.member.http_address

    def members(self) -> list[Member]:
        """Every member this node knows, itself first."""
        return self._node.member.members()

    async def start(self, timeout_s: float | None = None) -> None:
        """Returns when the node listens; with a timeout, when it is ready, or raises."""
        await self._node.start(timeout_s)

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        await self._node.member.wait_ready(timeout_s)

    async def graceful_shutdown(self) -> None:
        """Says farewell to the others and leaves nothing behind."""
        await self._node.graceful_shutdown()
