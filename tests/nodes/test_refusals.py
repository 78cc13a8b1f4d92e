"""Nodes that are refused, and what both sides log; secrets and certificates."""

import os
import subprocess
from pathlib import Path

import pytest

from hyperscale.wire.cluster_secret import make_secret, write_secret_file
from tests.lab.command import HYPERSCALE
from tests.lab.nodes import NodeCluster, NodeProcess, wait_for_view
from tests.lab.waiting import until


def secret_file(directory: Path, name: str = "cluster.secret") -> tuple[str, ...]:
    path = directory / name
    if not path.exists():
        write_secret_file(path, make_secret())
    return ("--secret-file", str(path))


def told(node: NodeProcess) -> str:
    """Return what a node logged about peers that it refused or that refused it."""
    refused = [*node.seen("discovery.warned"), *node.seen("peer.refused")]
    return "\n".join(str(event["detail"]) for event in refused)


def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [*HYPERSCALE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("flag", "what"), [("--cluster", "cluster"), ("--environment", "environment")]
)
def test_a_node_of_another_cluster_or_environment_is_refused_by_name(
    cluster: NodeCluster, flag: str, what: str
) -> None:
    home = cluster.start("manager", "m0", flag, "ours").wait_listening()
    retry = ("--discovery-retry-most-s", "500ms")
    stray = cluster.start("manager", "m1", flag, "theirs", "--seed", home.address, *retry)
    stray.wait_listening()
    for node in (home, stray):
        until(lambda node=node: told(node), what=f"{node.name} logs the refusal")
        assert f"wrong {what}" in told(node)
        assert "ours" in told(node)
        assert "theirs" in told(node)
    assert not home.living()
    assert not stray.living()
    name = f"hyperscale_discovery_{what}_id_rejections_total"
    assert home.metric(name, expected="ours") >= 1
    # The refusal is logged once per peer, however often the peer tries.
    tries = home.metric("hyperscale_peers_refused_total", reason=what)
    until(
        lambda: home.metric("hyperscale_peers_refused_total", reason=what) > tries,
        what="the node tries again",
    )
    assert len(home.seen("peer.refused")) == 1


def test_a_node_with_another_secret_is_refused(cluster: NodeCluster, tmp_path: Path) -> None:
    home = cluster.start("manager", "m0", *secret_file(tmp_path)).wait_listening()
    stray = cluster.start(
        "worker", "w0", *secret_file(tmp_path, "other.secret"), "--seed", home.address
    ).wait_listening()
    for node in (home, stray):
        until(
            lambda node=node: "another secret" in told(node), what=f"{node.name} logs the refusal"
        )
    assert not home.living()
    assert not stray.living()
    assert home.metric("hyperscale_peers_refused_total", reason="secret") >= 1


def test_a_node_without_a_secret_is_refused_by_a_cluster_with_one(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    home = cluster.start("manager", "m0", *secret_file(tmp_path)).wait_listening()
    stray = cluster.start("worker", "w0", "--seed", home.address).wait_listening()
    for node in (home, stray):
        until(lambda node=node: "secret" in told(node), what=f"{node.name} logs the refusal")
    assert home.metric("hyperscale_peers_refused_total", reason="unsealed") >= 1


def test_nodes_with_one_secret_form_a_cluster_and_never_show_the_secret(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    secret = make_secret()
    nodes = cluster.form(1, 1, environment={"HYPERSCALE_SECRET": secret})
    assert not [node.name for node in nodes if secret in node.output()]
    code, out, err = run(
        "members", "--connect", nodes[0].address, environment={"HYPERSCALE_SECRET": secret}
    )
    assert (code, "2 of 2 alive" in out) == (0, True), err
    file = tmp_path / "cluster.secret"
    write_secret_file(file, secret)
    named = {"HYPERSCALE_SECRET_FILE": str(file)}
    cluster.start("worker", "w9", "--seed", nodes[0].address, environment=named).wait_listening()
    until(lambda: "w9" in nodes[0].living(), what="a node that reads the secret from a file joins")
    code, out, err = run("members", "--connect", nodes[0].address, environment=named)
    assert (code, "3 of 3 alive" in out) == (0, True), err
    code, _, err = run("members", "--connect", nodes[0].address)
    assert code == 2
    assert "secret" in err


def test_a_secret_is_rotated_without_losing_a_member(cluster: NodeCluster, tmp_path: Path) -> None:
    """While both secrets are accepted, nodes with either form one cluster."""
    old, new = secret_file(tmp_path, "old"), secret_file(tmp_path, "new")
    old_previous = ("--previous-secret-file", old[1])
    new_previous = ("--previous-secret-file", new[1])
    first = cluster.start("manager", "m0", *old, *new_previous).wait_listening()
    second = cluster.start("manager", "m1", *new, *old_previous, "--seed", first.address)
    second.wait_listening()
    wait_for_view([first, second])
    late = cluster.start("worker", "w0", *old, "--seed", second.address).wait_listening()
    wait_for_view([first, second, late])
    # The old secret is refused once it is dropped.
    done = cluster.start("manager", "m2", *new).wait_listening()
    stray = cluster.start("worker", "w1", *old, "--seed", done.address).wait_listening()
    until(lambda: "another secret" in told(stray), what="the old secret is refused")


def test_certificates_alone_do_not_replace_the_secret_off_loopback(tmp_path: Path) -> None:
    code, _, err = run("manager", "--host", "0.0.0.0", "--port", "0", "--http-port", "0")
    assert code == 2
    assert "loopback" in err
    assert "hyperscale secret" in err


def certificates(directory: Path) -> Path:
    path = directory / "certs"
    code, _, err = run(
        "certs", "--out", str(path), "--cluster", "acme", "--environment", "test",
        "--host", "127.0.0.1",
    )  # fmt: skip
    assert code == 0, err
    return path


def tls_flags(directory: Path, role: str) -> tuple[str, ...]:
    return (
        "--cluster", "acme", "--environment", "test",
        "--certificate", str(directory / f"{role}.pem"),
        "--key", str(directory / f"{role}-key.pem"),
        "--authority", str(directory / "ca.pem"),
    )  # fmt: skip


def test_nodes_with_certificates_form_a_cluster(cluster: NodeCluster, tmp_path: Path) -> None:
    certs = certificates(tmp_path)
    secret = secret_file(tmp_path)
    manager = cluster.start("manager", "m0", *tls_flags(certs, "manager"), *secret)
    manager.wait_listening()
    seed = ("--seed", manager.address)
    worker = cluster.start("worker", "w0", *tls_flags(certs, "worker"), *secret, *seed)
    worker.wait_listening()
    wait_for_view([manager, worker])
    operator = (*tls_flags(certs, "operator"), *secret)
    code, out, err = run("members", "--connect", manager.address, *operator)
    assert (code, "2 of 2 alive" in out) == (0, True), err
    # Clients and operators may ask about jobs; workers may not.
    for role, expected in (("client", 0), ("operator", 0), ("worker", 2)):
        flags = [flag.replace("--key", "--certificate-key") for flag in tls_flags(certs, role)]
        code, _, err = run("jobs", "--manager", manager.address, *flags, *secret)
        assert code == expected, err
    assert "says it is a client, its certificate says worker" in err
    # A manager with the certificate of a worker does not start.
    stray = cluster.start("manager", "m1", *tls_flags(certs, "worker"), *secret, *seed)
    assert stray.process.wait(30) == 2
    assert "is for the role worker, this node is a manager" in stray.output()
    # A node without a certificate is refused.
    plain = cluster.start(
        "manager", "m2", "--cluster", "acme", "--environment", "test", *secret, *seed
    ).wait_listening()
    until(lambda: told(plain), what="the node is refused")
    assert manager.living() == {"w0"}


def test_members_names_the_cluster_that_answered(cluster: NodeCluster) -> None:
    node = cluster.start("manager", "m0", "--cluster", "ours").wait_listening()
    code, _, err = run("members", "--connect", node.address)
    assert code == 2
    assert "'hyperscale'" in err
    assert "'ours'" in err


def test_members_of_an_address_without_a_node_is_an_error(tmp_path: Path) -> None:
    code, _, err = run("members", "--connect", "127.0.0.1:1")
    assert code == 3
    assert "is a node running there?" in err
