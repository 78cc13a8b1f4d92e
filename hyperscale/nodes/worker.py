"""A worker: a member today; executors and their parts come with the datacenter."""

from hyperscale.config.schema import NodeConfig
from hyperscale.execution.cores import default_executors
from hyperscale.membership.events import Member
from hyperscale.nodes.member import Duties
from hyperscale.nodes.running import EmbeddedNode, Settings, as_config
from hyperscale.wire.roles import Role


def worker_duties(config: NodeConfig) -> Duties:
    return Duties(
        role=Role.WORKER,
        counts_cpu=False,  # a load generator is meant to be busy
        cores=config.node.cores or default_executors(),
        needs=frozenset({Role.MANAGER}),
    )


class WorkerServer:
    """A worker inside your program.

    worker = WorkerServer({"discovery": {"seeds": ["127.0.0.1:9000"]}})
    await worker.start()
    ...
    await worker.graceful_shutdown()
    """

    def __init__(self, settings: Settings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables a configuration file would hold."""
        self.config = as_config("worker", settings)
        self._node = EmbeddedNode(self.config, worker_duties(self.config))

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
