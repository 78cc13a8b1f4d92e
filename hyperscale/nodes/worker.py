"""A worker: a member that offers its cores and generates load on them for job leaders."""

from hyperscale.config.loading import NodeSettings
from hyperscale.config.schema import NodeConfig
from hyperscale.execution.cores import default_executors
from hyperscale.health.readiness import WorkerReadiness
from hyperscale.nodes.agent.service import AgentService
from hyperscale.nodes.member import Duties, Standing
from hyperscale.nodes.server import NodeServer, as_config
from hyperscale.wire.roles import Role


def worker_duties(config: NodeConfig) -> Duties:
    cores = config.node.cores or default_executors()

    def why_not_ready(standing: Standing) -> tuple[str, ...]:
        return WorkerReadiness(
            has_joined=standing.has_joined,
            accepts_work=not standing.is_leaving,
            capacity=cores,
            overload=standing.overload,
        ).why_not()

    return Duties(
        role=Role.WORKER,
        counts_cpu=False,  # a load generator is meant to be busy
        why_not_ready=why_not_ready,
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

    Its executors are started from the thread its loop runs in, and die with it: run it in the
    main thread.
    """

    def __init__(self, settings: NodeSettings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables a configuration file would hold."""
        config = as_config("worker", settings)
        super().__init__(config, worker_duties(config))
