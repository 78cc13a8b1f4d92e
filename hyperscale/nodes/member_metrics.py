"""The metrics of a member: members by state, deaths by evidence, refusals, traffic, admission.

Labels come from closed sets: nothing that a peer sends becomes a label.
"""

import time
from collections import Counter

from hyperscale.membership.events import MemberState
from hyperscale.nodes.membership import MembershipDriver
from hyperscale.telemetry.metrics import Family, Sample, by, counter, gauge, summary
from hyperscale.wire.datagrams import DatagramSocket
from hyperscale.wire.errors import RefusalReason
from hyperscale.wire.registry import MessagePriority
from hyperscale.wire.roles import NODES
from hyperscale.wire.server import PeerServer

_QUANTILES = (0.5, 0.9, 1.0)


def member_metrics(
    driver: MembershipDriver, server: PeerServer, *, started_s: float, is_ready: bool
) -> list[Family]:
    """Read the counts of a member's parts."""
    return [
        *_node(server, started_s, is_ready),
        *_members(driver),
        *_refusals(server, driver.datagrams),
        *_traffic(server, driver.datagrams),
    ]


def _node(server: PeerServer, started_s: float, is_ready: bool) -> list[Family]:
    local = server.local
    labels = {
        "version": local.version,
        "node": local.node_id,
        "role": str(local.role),
        "cluster": local.cluster,
        "environment": local.environment,
        "datacenter": local.datacenter,
    }
    uptime_s = time.monotonic() - started_s
    return [
        gauge(
            "hyperscale_node_info",
            "Version, name, role and cluster of this node as labels; always 1",
            (labels, 1),
        ),
        gauge("hyperscale_node_ready", "1 if /readyz answers that this node is ready", is_ready),
        gauge("hyperscale_node_incarnation", "Incarnation of this node", local.incarnation),
        gauge("hyperscale_node_uptime_seconds", "Time since this node started", uptime_s),
    ]


def _members(driver: MembershipDriver) -> list[Family]:
    core, counts, discovery = driver.core, driver.counts, driver.discovery
    members = core.members()
    number = Counter((str(member.role), str(member.state)) for member in members)
    groups = sorted((str(role), str(state)) for role in NODES for state in MemberState)
    rtts = sorted(member.rtt_s for member in members if member.rtt_s is not None)
    audit = core.counts
    return [
        gauge(
            "hyperscale_members",
            "Members this node knows, itself included, by role and state",
            *(({"role": role, "state": state}, number[role, state]) for role, state in groups),
        ),
        gauge(
            "hyperscale_peers_unconfirmed",
            "Members announced by others and never reached",
            sum(member.state is MemberState.UNCONFIRMED for member in members),
        ),
        summary(
            "hyperscale_peer_rtt_seconds",
            "Smoothed round-trip times to the members that are known now",
            {quantile: rtts[round(quantile * (len(rtts) - 1))] for quantile in _QUANTILES}
            if rtts
            else {},
            total=sum(rtts),
            count=len(rtts),
        ),
        counter(
            "hyperscale_deaths_total",
            "Members found dead, by evidence",
            *by("evidence", driver.deaths, ("refused", "silent")),
        ),
        counter(
            "hyperscale_gossip_informed_deaths_total",
            "Deaths learned from other members",
            counts["gossip_informed_deaths"],
        ),
        counter(
            "hyperscale_gossip_informed_leaves_total",
            "Departures learned from other members",
            counts["leaves"],
        ),
        counter(
            "hyperscale_suspicions_total",
            "Suspicions: raised, cleared, and refuted by this node about itself",
            ({"outcome": "raised"}, audit.get("member.suspected", 0)),
            ({"outcome": "cleared"}, audit.get("suspicion.cleared", 0)),
            ({"outcome": "refuted_own"}, audit.get("suspicion.refuted", 0)),
        ),
        gauge(
            "hyperscale_local_health_score",
            "How little this node trusts its own observations, 0 (healthy) to 8 (Lifeguard)",
            core.awareness.score,
        ),
        gauge(
            "hyperscale_gossip_waiting",
            "Gossip updates waiting to be sent",
            len(core.context.gossip),
        ),
        counter(
            "hyperscale_stalls_total",
            "Times the event loop of this node stood still for long",
            counts["stalls"],
        ),
        counter(
            "hyperscale_view_exchanges_total",
            "Exchanges of the full member list over TCP, by result",
            ({"result": "success"}, counts["syncs"]),
            ({"result": "error"}, counts["syncs_failed"]),
        ),
        counter(
            "hyperscale_discovery_dns_lookups_total",
            "DNS lookups of this node, by result",
            *by("result", discovery.dns_lookups, ("success", "error")),
        ),
        discovery.dns_duration.family(),
        gauge(
            "hyperscale_discovery_candidate_set_size",
            "Candidate addresses from seeds and DNS",
            len(discovery.core.candidates),
        ),
    ]


def _refusals(server: PeerServer, datagrams: DatagramSocket) -> list[Family]:
    local = server.local
    by_kind = [
        (
            "hyperscale_peers_refused_total",
            "Connections and messages this node refused, by reason",
            server.refusals.counts,
        ),
        (
            "hyperscale_datagrams_refused_total",
            "Datagrams this node refused, by reason",
            datagrams.refusals.counts,
        ),
        (
            "hyperscale_peer_rejections_total",
            "Times peers refused this node, by reason",
            server.refusals.rejections,
        ),
    ]
    refused = server.refusals.counts + datagrams.refusals.counts
    return [
        *(
            counter(name, about, *by("reason", counts, RefusalReason))
            for name, about, counts in by_kind
        ),
        counter(
            "hyperscale_discovery_cluster_id_rejections_total",
            "Refused peers of another cluster",
            ({"expected": local.cluster}, refused[RefusalReason.CLUSTER]),
        ),
        counter(
            "hyperscale_discovery_environment_id_rejections_total",
            "Refused peers of another environment",
            ({"expected": local.environment}, refused[RefusalReason.ENVIRONMENT]),
        ),
        counter(
            "hyperscale_discovery_role_rejections_total",
            "Refused peers whose role may not connect to this node",
            ({"target_role": str(local.role)}, refused[RefusalReason.ROLE]),
        ),
    ]


def _traffic(server: PeerServer, datagrams: DatagramSocket) -> list[Family]:
    counts, admission = datagrams.counts, server.admission
    size = {way: counts[f"{way}_bytes"] for way in ("received", "sent")}

    def by_priority(numbers: list[int]) -> list[Sample]:
        return [({"priority": each.name.lower()}, numbers[each]) for each in MessagePriority]

    return [
        counter(
            "hyperscale_datagrams_total",
            "Datagrams received and sent",
            *by("direction", counts, size),
        ),
        counter(
            "hyperscale_datagram_bytes_total",
            "Bytes of datagrams received and sent, encrypted",
            *by("direction", size, size),
        ),
        counter(
            "hyperscale_datagrams_lost_total",
            "Datagrams that could not be read or sent",
            *by("why", counts, ("dropped", "failed")),
        ),
        gauge("hyperscale_connections", "Usable connections to peers", len(server.connections)),
        gauge(
            "hyperscale_requests_in_flight",
            "Requests in progress, by priority",
            *by_priority(admission.in_flight),
        ),
        counter(
            "hyperscale_requests_acquired_total",
            "Requests accepted, by priority",
            *by_priority(admission.admitted),
        ),
        counter(
            "hyperscale_requests_shed_total",
            "Requests refused because of overload, by priority",
            *by_priority(admission.shed),
        ),
    ]
