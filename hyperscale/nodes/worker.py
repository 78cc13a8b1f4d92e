"""A worker: a member that offers its cores and generates load on them for job leaders."""

from hyperscale.config.loading import NodeSettings
from hyperscale.config.schema import NodeConfig
from hyperscale.execution.cores import default_executors
from hyperscale.nodes.agent.service import AgentService
from hyperscale.nodes.member import RoleSpec
from hyperscale.nodes.server import NodeServer, complete_config
from hyperscale.wire.roles import Role


def worker_role(config: NodeConfig) -> RoleSpec:
    """Return what a worker adds to a member."""
    cores = config.node.cores or default_executors()
    return RoleSpec(
        role=Role.WORKER,
        counts_cpu=False,  # a load generator is meant to be busy
        needs=frozenset({Role.MANAGER}),
        cores=cores,
        services=(AgentService(config, cores),),
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
        config = complete_config("worker", settings)
        super().__init__(config, worker_role(config))
