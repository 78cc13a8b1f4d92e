"""The metrics of a member: members by state, deaths by evidence, refusals, traffic, admission.

Labels come from closed sets: nothing that a peer sends becomes a label, except the names of
members in round trips, of which there are at most `RTT_MEMBERS_MAX`.
"""

import time
from collections import Counter

from hyperscale.membership.events import MemberState
from hyperscale.nodes.membership import MembershipDriver
from hyperscale.telemetry.metrics import Family, counter, gauge
from hyperscale.wire.datagrams import DatagramSocket
from hyperscale.wire.errors import RefusalReason
from hyperscale.wire.registry import MessagePriority
from hyperscale.wire.roles import NODES
from hyperscale.wire.server import PeerServer

RTT_MEMBERS_MAX = 1_000


class MemberMetrics:
    """Reads the counts of a member's parts when /metrics is requested."""

    def __init__(
        self, driver: MembershipDriver, server: PeerServer, datagrams: DatagramSocket
    ) -> None:
        self._driver = driver
        self._server = server
        self._datagrams = datagrams
        self._started_s = time.monotonic()

    def collect(self) -> list[Family]:
        """Return the metrics of a member."""
        return [
            *self._node(),
            *self._members(),
            *self._discovery(),
            *self._refusals(),
            *self._traffic(),
            *self._admission(),
        ]

    def _node(self) -> list[Family]:
        local = self._server.local
        labels = {
            "version": local.version,
            "node": local.node_id,
            "role": str(local.role),
            "cluster": local.cluster,
            "environment": local.environment,
            "datacenter": local.datacenter,
        }
        uptime_s = time.monotonic() - self._started_s
        return [
            gauge("hyperscale_node_info", "Identity of this node", (labels, 1)),
            gauge(
                "hyperscale_node_incarnation", "Incarnation of this node", ({}, local.incarnation)
            ),
            gauge("hyperscale_node_uptime_seconds", "Time since this node started", ({}, uptime_s)),
        ]

    def _members(self) -> list[Family]:
        core, counts = self._driver.core, self._driver.counts
        by_state: Counter[tuple[str, str]] = Counter()
        for role in NODES:
            for state in MemberState:
                by_state[str(role), str(state)] = 0
        rtts: list[tuple[dict[str, str], float]] = []
        unconfirmed = 0
        for member in core.members():
            by_state[str(member.role), str(member.state)] += 1
            unconfirmed += member.state is MemberState.UNCONFIRMED
            if member.rtt_s is not None and len(rtts) < RTT_MEMBERS_MAX:
                rtts.append(({"peer_id": member.node}, member.rtt_s))
        audit = core.audit_log.counts
        return [
            gauge(
                "hyperscale_members",
                "Members this node knows, itself included",
                *(
                    ({"role": role, "state": state}, number)
                    for (role, state), number in sorted(by_state.items())
                ),
            ),
            gauge(
                "hyperscale_peers_unconfirmed",
                "Members announced by others and never reached",
                ({}, unconfirmed),
            ),
            gauge("hyperscale_peer_rtt_seconds", "Smoothed round-trip time", *rtts),
            counter(
                "hyperscale_deaths_total",
                "Members found dead, by evidence",
                *(
                    ({"evidence": each}, self._driver.deaths[each])
                    for each in ("refused", "silent")
                ),
            ),
            counter(
                "hyperscale_gossip_informed_deaths_total",
                "Deaths learned from other members",
                ({}, counts["gossip_informed_deaths"]),
            ),
            counter(
                "hyperscale_gossip_informed_leaves_total",
                "Departures learned from other members",
                ({}, counts["leaves"]),
            ),
            counter(
                "hyperscale_suspicions_total",
                "Suspicions by outcome",
                ({"outcome": "raised"}, audit.get("member.suspected", 0)),
                ({"outcome": "cleared"}, audit.get("suspicion.cleared", 0)),
                ({"outcome": "refuted_own"}, audit.get("suspicion.refuted", 0)),
            ),
            gauge(
                "hyperscale_local_health_score",
                "Lifeguard health score, 0 (healthy) to 8",
                ({}, core.awareness.score),
            ),
            gauge(
                "hyperscale_gossip_waiting",
                "Gossip updates waiting to be sent",
                ({}, len(core.gossip)),
            ),
            counter("hyperscale_stalls_total", "Times this node stalled", ({}, counts["stalls"])),
            counter(
                "hyperscale_view_exchanges_total",
                "Push-pull exchanges of the whole view",
                ({"result": "success"}, counts["syncs"]),
                ({"result": "error"}, counts["syncs_failed"]),
            ),
        ]

    def _discovery(self) -> list[Family]:
        driver = self._driver.discovery
        lookups = driver.dns_lookups
        return [
            counter(
                "hyperscale_discovery_dns_lookups_total",
                "DNS lookups",
                *(({"result": result}, lookups[result]) for result in ("success", "error")),
            ),
            driver.dns_duration.family(),
            gauge(
                "hyperscale_discovery_candidate_set_size",
                "Addresses from seeds and DNS",
                ({}, len(driver.core.candidates)),
            ),
        ]

    def _refusals(self) -> list[Family]:
        local = self._server.local
        refused = self._server.refusals.counts + self._datagrams.refusals.counts
        rejected = self._server.refusals.rejections
        return [
            counter(
                "hyperscale_peers_refused_total",
                "Connections and messages this node refused",
                *(
                    ({"reason": str(reason)}, self._server.refusals.counts[reason])
                    for reason in RefusalReason
                ),
            ),
            counter(
                "hyperscale_datagrams_refused_total",
                "Datagrams this node refused",
                *(
                    ({"reason": str(reason)}, self._datagrams.refusals.counts[reason])
                    for reason in RefusalReason
                ),
            ),
            counter(
                "hyperscale_peer_rejections_total",
                "Times peers refused this node",
                *(({"reason": str(reason)}, rejected[reason]) for reason in RefusalReason),
            ),
            counter(
                "hyperscale_discovery_cluster_id_rejections_total",
                "Peers of another cluster",
                ({"expected": local.cluster}, refused[RefusalReason.CLUSTER]),
            ),
            counter(
                "hyperscale_discovery_environment_id_rejections_total",
                "Peers of another environment",
                ({"expected": local.environment}, refused[RefusalReason.ENVIRONMENT]),
            ),
            counter(
                "hyperscale_discovery_role_rejections_total",
                "Peers whose role may not connect here",
                ({"target_role": str(local.role)}, refused[RefusalReason.ROLE]),
            ),
        ]

    def _traffic(self) -> list[Family]:
        counts = self._datagrams.counts
        return [
            counter(
                "hyperscale_datagrams_total",
                "DatagramSocket",
                *(({"direction": way}, counts[way]) for way in ("received", "sent")),
            ),
            counter(
                "hyperscale_datagram_bytes_total",
                "Bytes of datagrams, sealed",
                *(({"direction": way}, counts[f"{way}_bytes"]) for way in ("received", "sent")),
            ),
            counter(
                "hyperscale_datagrams_lost_total",
                "Datagrams dropped or failed",
                *(({"why": why}, counts[why]) for why in ("dropped", "failed")),
            ),
            gauge(
                "hyperscale_connections",
                "Usable connections to peers",
                ({}, len(self._server.connections)),
            ),
        ]

    def _admission(self) -> list[Family]:
        admission = self._server.admission
        names = {priority: {"priority": priority.name.lower()} for priority in MessagePriority}
        return [
            gauge(
                "hyperscale_requests_in_flight",
                "Requests in flight",
                *((names[each], admission.in_flight[each]) for each in MessagePriority),
            ),
            counter(
                "hyperscale_requests_acquired_total",
                "Requests admitted",
                *((names[each], admission.admitted[each]) for each in MessagePriority),
            ),
            counter(
                "hyperscale_requests_shed_total",
                "Requests shed",
                *((names[each], admission.shed[each]) for each in MessagePriority),
            ),
        ]
