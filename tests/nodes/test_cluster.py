"""Clusters of real processes on loopback: nodes join, die, pause, leave and move.

No time is asserted here; the soak tests print the times.
"""

import os
import signal
import time

import pytest

from tests.lab.nodes import NodeCluster, deaths, members_of, wait_for_death, wait_for_view
from tests.lab.ports import free_port, has_ipv6
from tests.lab.processes import busy_cores, group_members, open_sockets
from tests.lab.waiting import until


def test_a_cluster_forms_in_any_start_order(cluster: NodeCluster) -> None:
    """The worker starts first, then a manager whose seed is the manager that starts last."""
    port = free_port()
    seed = ("--seed", f"127.0.0.1:{port}")
    worker = cluster.start("worker", "w0", *seed).wait_listening()
    assert worker.get("/readyz")[0] == 503
    early = cluster.start("manager", "m1", *seed).wait_listening()
    assert (
        early.get("/readyz")[0] == 503
    )  # a manager with seeds waits until it has joined their ledger
    late = cluster.start("manager", "m0", "--port", str(port)).wait_listening()
    wait_for_view([worker, early, late])
    until(lambda: worker.get("/readyz")[0] == 200, what="the worker is ready")
    until(lambda: early.get("/readyz")[0] == 200, what="the manager has joined the ledger")
    assert worker.get("/healthz")[0] == 200
    assert not deaths([worker, early, late])


def test_identical_seed_lists_make_one_cluster(cluster: NodeCluster) -> None:
    """Each node finds itself among its seeds, by a name, and does not join itself."""
    ports = [free_port() for _ in range(3)]
    seeds = [word for port in ports for word in ("--seed", f"localhost:{port}")]
    nodes = [
        cluster.start("manager", f"m{n}", "--port", str(port), *seeds)
        for n, port in enumerate(ports)
    ]
    for node in nodes:
        node.wait_listening()
    wait_for_view(nodes)
    assert not [event for node in nodes for event in node.warnings()]


def test_a_killed_node_is_declared_dead_by_all_once(cluster: NodeCluster) -> None:
    nodes = cluster.form(2, 1)
    victim, *others = reversed(nodes)
    victim.kill()
    wait_for_death(victim.name, others)
    wait_for_view(others)
    for node in others:
        assert len(node.seen("member.died", member=victim.name)) == 1
        assert node.seen("member.died")[0]["evidence"] == "refused"
    told = sum(node.metric("hyperscale_gossip_informed_deaths_total") for node in others)
    found = sum(node.metric("hyperscale_deaths_total") for node in others)
    assert (found, told <= 1) == (2, True)  # at least one node detected the death itself


def test_a_restarted_node_joins_with_a_new_incarnation(cluster: NodeCluster) -> None:
    first, second = cluster.form(2, 0)
    flags = ("--seed", first.address, "--port", str(free_port()))
    worker = cluster.start("worker", "w0", *flags).wait_listening()
    wait_for_view([first, second, worker])
    worker.kill()
    wait_for_death("w0", [first, second])
    again = cluster.start("worker", "w0", *flags).wait_listening()
    assert again.address == worker.address
    wait_for_view([first, second, again])


def test_a_new_node_at_the_address_of_a_dead_node_is_another_member(
    cluster: NodeCluster,
) -> None:
    first, second = cluster.form(2, 0)
    flags = ("--seed", first.address, "--port", str(free_port()))
    worker = cluster.start("worker", "w0", *flags).wait_listening()
    wait_for_view([first, second, worker])
    worker.kill()
    heir = cluster.start("worker", "w1", *flags).wait_listening()
    wait_for_view([first, second, heir])
    wait_for_death("w0", [first, second])


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_cluster_forms_over_ipv6(cluster: NodeCluster) -> None:
    nodes = cluster.form(2, 1, "--host", "::1")
    assert all(node.address.startswith("[::1]:") for node in nodes)
    nodes[2].kill()
    wait_for_death("w0", nodes[:2])


def test_a_node_paused_for_four_seconds_is_not_declared_dead(cluster: NodeCluster) -> None:
    nodes = cluster.form(2, 1)
    still = nodes[-1]
    still.signal(signal.SIGSTOP)
    try:
        time.sleep(4)  # the fault, not a wait for a condition
    finally:
        still.signal(signal.SIGCONT)
    until(lambda: still.seen("node.stalled"), what="the node logged that it stalled")
    wait_for_view(nodes)
    assert not deaths(nodes)


def test_a_stopped_node_leaves_the_cluster_and_no_process_or_socket_behind(
    cluster: NodeCluster,
) -> None:
    last = cluster.start("manager", "m0").wait_listening()
    alone = len(open_sockets(last.process.pid))
    seed = ("--seed", last.address)
    nodes = [last, cluster.start("manager", "m1", *seed), cluster.start("worker", "w0", *seed)]
    for node in nodes:
        node.wait_listening()
    wait_for_view(nodes)
    for leaver in (nodes[2], nodes[1]):
        assert leaver.stop() == 0
        others = [node for node in nodes if node.process.poll() is None]
        until(
            lambda who=leaver, rest=others: all(n.states()[who.name] == "left" for n in rest),
            what=f"{leaver.name} has left, as all others see it",
        )
        assert not group_members(leaver.process.pid)
        assert not leaver.warnings()
        assert leaver.read()[-1]["event"] == "node.stopped"
    assert not deaths(nodes)
    until(lambda: len(open_sockets(last.process.pid)) <= alone, what="connections are closed")
    assert last.stop() == 0
    assert not last.warnings()


def test_a_manager_routes_work_only_to_healthy_workers(cluster: NodeCluster) -> None:
    manager, worker, other = cluster.form(1, 2)

    def routing() -> dict[str, str | None]:
        return {row.node: row.routing for row in members_of(manager).members}

    until(
        lambda: routing() == {"m0": None, "w0": "route", "w1": "route"},
        what="both workers get work",
    )
    other.kill()
    wait_for_death("w1", [manager])
    assert routing()["w1"] == "evict"
    assert manager.metric("hyperscale_workers", decision="route") == 1
    assert worker.stop() == 0
    until(lambda: manager.states()["w0"] == "left", what="the worker has left")
    assert routing() == {"m0": None, "w0": None, "w1": "evict"}


def test_a_second_signal_skips_the_farewell(cluster: NodeCluster) -> None:
    node = cluster.start("manager", "m0", "--membership-leave-s", "50s", "--stop-s", "60s")
    node.wait_listening()
    node.signal(signal.SIGINT)
    until(lambda: node.seen("node.leaving"), what="the node leaves")
    node.signal(signal.SIGINT)
    assert node.process.wait(30) == 0


def test_a_node_may_restart_at_another_address(cluster: NodeCluster) -> None:
    first, second, worker = cluster.form(2, 1)
    before = worker.address
    worker.kill()
    moved = cluster.start("worker", "w0", "--seed", first.address).wait_listening()
    assert moved.address != before
    wait_for_view([first, second, moved])
    for node in (first, second):
        until(
            lambda node=node: (
                [m.address for m in members_of(node).members if m.node == "w0"] == [moved.address]
            ),
            what=f"{node.name} knows the new address",
        )


def test_no_member_is_declared_dead_on_a_busy_machine(cluster: NodeCluster) -> None:
    nodes = cluster.form(2, 1)
    with busy_cores(2 * (os.cpu_count() or 1)):
        time.sleep(8)  # the fault
    wait_for_view(nodes)
    assert not deaths(nodes)


def test_a_hangup_ends_nothing_and_every_line_of_the_log_is_json(cluster: NodeCluster) -> None:
    manager, worker = cluster.form(1, 1)
    for node in (manager, worker):
        node.signal(signal.SIGHUP)
        until(lambda node=node: node.seen("credentials.reloaded"), what="it is logged")
    until(lambda: manager.get("/readyz")[0] == 200, what="the manager is ready")
    assert (worker.stop(), manager.stop()) == (0, 0)
    assert worker.seen("node.stopped")  # `seen` reads every line as JSON


def test_metrics_are_served(cluster: NodeCluster) -> None:
    nodes = cluster.form(1, 1)
    node = nodes[0]
    status, text = node.get("/metrics")
    assert status == 200
    assert node.metric("hyperscale_members", state="alive") == 2
    assert node.metric("hyperscale_peers_unconfirmed") == 0
    assert node.metric("hyperscale_datagrams_total", direction="received") > 0
    assert 'hyperscale_node_info{version="' in text
    until(
        lambda: "hyperscale_peer_rtt_seconds{" in node.get("/metrics")[1],
        what="a round-trip time is measured",
    )
    assert node.get("/nothing")[0] == 404
