"""A manager: a member that keeps an eye on workers; jobs and results come with the datacenter."""

from hyperscale.health.readiness import ManagerReadiness
from hyperscale.nodes.member import Duties, Standing
from hyperscale.nodes.running import NodeServer, Settings, as_config
from hyperscale.nodes.workers import Workers
from hyperscale.wire.roles import Role


def manager_duties() -> Duties:
    return Duties(
        role=Role.MANAGER, counts_cpu=True, why_not_ready=_why_not_ready, workers=Workers()
    )


def _why_not_ready(standing: Standing) -> tuple[str, ...]:
    return ManagerReadiness(
        accepts_jobs=not standing.is_leaving, overload=standing.overload
    ).why_not()


class ManagerServer(NodeServer):
    """A manager inside your program.

    manager = ManagerServer({"listen": {"port": 9000, "http_port": 0}})
    await manager.start()
    ...
    await manager.graceful_shutdown()
    """

    def __init__(self, settings: Settings = None) -> None:
        """`settings`: a `NodeConfig`, or the tables a configuration file would hold."""
        super().__init__(as_config("manager", settings), manager_duties())
