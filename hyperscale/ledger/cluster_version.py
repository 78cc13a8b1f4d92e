"""The cluster version of a tier: when it rises, and which nodes are too old or too new for it.

The leader of group 0 notes which version each node announces. When all nodes of the ledger and all
living workers announce a higher one, it commits that they agree; when they have agreed for the
hold, it raises the cluster version. Until then every node can go back to the older version, because
nothing that the older one does not know was committed. The times are those of group 0, so a new
leader continues the hold.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from hyperscale.ledger.topology import (
    Decision,
    NodeState,
    Topology,
    VersionAgreed,
    VersionAnnounced,
    VersionRaised,
)
from hyperscale.wire.versions import Version


class VersionsSeen(Struct, frozen=True, kw_only=True):
    """The versions that members announce, as the leader of group 0 hears them."""

    nodes: Mapping[int, Version] = {}
    """Of the nodes of the ledger that are heard."""
    workers: Iterable[Version] = ()
    """Of all living workers; gates have none."""


def decide_version(
    topology: Topology, seen: VersionsSeen, *, time_ms: int, hold_ms: int
) -> list[Decision]:
    """Return the next decisions about the cluster version. `time_ms`: the time of group 0."""
    present = {n.number: n for n in topology.nodes.values() if n.state is not NodeState.GONE}
    announced: list[Decision] = [
        VersionAnnounced(number, version)
        for number, version in sorted(seen.nodes.items())
        if number in present and present[number].version != version
    ]
    if announced or not present:
        return announced
    oldest = min([*(node.version for node in present.values()), *seen.workers])
    agreed = max(oldest, topology.version)
    if agreed != topology.agreed:
        return [VersionAgreed(agreed)]
    if agreed > topology.version and time_ms - topology.agreed_ms >= hold_ms:
        return [VersionRaised(agreed)]
    return []


def version_problem(version: Version | None, cluster: Version) -> str | None:
    """Return why a node may not take part in a tier with this cluster version; None if it may."""
    if version is None:
        return f"the node announces no version, and the cluster version is {cluster}"
    if version.major != cluster.major:
        return f"the node runs version {version}, and the cluster version is {cluster}"
    if version < cluster:
        return (
            f"the node runs version {version}, and the cluster version has risen to {cluster}: "
            "older nodes are refused"
        )
    if not version.is_next_to(cluster):
        return (
            f"the node runs version {version}, more than one minor version above the cluster "
            f"version {cluster}"
        )
    return None
