"""Which nodes of a local cluster are not ready, and which datacenters its gates do not see yet."""

import asyncio
from http.client import HTTPConnection, HTTPException

import msgspec

from hyperscale.client.cluster_connection import ask_node
from hyperscale.client.cluster_file import ClusterFile, ClusterNode
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.errors import HyperscaleError
from hyperscale.gates.datacenters.health import DatacenterHealth
from hyperscale.gates.datacenters.monitor import Reachability
from hyperscale.gates.messages import DatacenterRow, ListDatacenters, ListDatacentersReply
from hyperscale.telemetry.http import ReadinessReport

_ANSWER_S = 2.0
_WELL = {each.name.lower() for each in (DatacenterHealth.HEALTHY, DatacenterHealth.BUSY)}


def why_not_ready(node: ClusterNode) -> str:
    """Return why a node is not ready, from its /readyz; empty if it is ready."""
    host, port = split_address(node.http)
    connection = HTTPConnection(host, port, timeout=1.0)
    try:
        connection.request("GET", "/readyz")
        answer = msgspec.json.decode(connection.getresponse().read(), type=ReadinessReport)
    except (OSError, HTTPException, msgspec.MsgspecError):
        return "it does not answer"
    finally:
        connection.close()
    return ", ".join(answer.why_not)


async def nodes_not_ready(cluster: ClusterFile) -> dict[str, str]:
    """Return the nodes that are not ready, and why.

    A gate is ready once it also sees that every datacenter is well and has all its workers."""
    missing = {node.id: why for node in cluster.nodes if (why := why_not_ready(node))}
    if missing or not cluster.gates:
        return missing
    unseen = await asyncio.gather(*(_unseen(cluster, gate) for gate in cluster.gates))
    return {gate.id: why for gate, why in zip(cluster.gates, unseen, strict=True) if why}


async def _unseen(cluster: ClusterFile, gate: ClusterNode) -> str:
    """Return which datacenters a gate does not see whole; empty if there are none."""
    config = node_config("gate", {"security": {"secret_file": cluster.secret_file}})
    host, port = split_address(gate.tcp)
    try:
        reply = await ask_node(
            config, host, port, ListDatacenters(), ListDatacentersReply, timeout_s=_ANSWER_S
        )
    except HyperscaleError as error:
        return str(error)
    rows = {row.datacenter: row for row in reply.datacenters}
    missing = [name for name in cluster.datacenters if not _is_whole(cluster, name, rows.get(name))]
    return f"it does not see that these are well: {', '.join(missing)}" if missing else ""


def _is_whole(cluster: ClusterFile, name: str, row: DatacenterRow | None) -> bool:
    workers = sum(node.datacenter == name for node in cluster.workers)
    if row is None or row.workers < workers or row.reachability != Reachability.REACHABLE.value:
        return False
    return not workers or row.health in _WELL
