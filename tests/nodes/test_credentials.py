"""Secrets, certificates and clients that change while a node runs."""

import signal
from pathlib import Path

from tests.lab.command import run
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.waiting import until

OLD, NEW = "the secret of last year", "the secret of this year"


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def may_ask(node: NodeProcess, secret: Path, directory: Path) -> bool:
    """Return True if the node answers a client with this secret, False if it refuses it."""
    flags = ("--connect", node.address, "--secret-file", str(secret))
    done = run("members", *flags, cwd=directory)
    assert done.code in (0, 2), done.stderr
    return done.code == 0


def test_a_node_takes_new_secrets_and_clients_while_it_runs(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    own, clients = private(tmp_path / "own", OLD), private(tmp_path / "clients.toml", "")
    old, new = private(tmp_path / "old", OLD), private(tmp_path / "new", NEW)
    vera = private(tmp_path / "vera", "the secret of vera")
    flags = ("--secret-file", str(own), "--clients-file", str(clients))
    node = cluster.start("manager", "m0", *flags).wait_listening()
    assert may_ask(node, old, tmp_path)
    assert not may_ask(node, vera, tmp_path)

    # On SIGHUP, at once.
    private(clients, '[vera]\nrole = "viewer"\nsecret = "the secret of vera"\n')
    node.signal(signal.SIGHUP)
    until(lambda: node.seen("credentials.reloaded"), what="the clients are read")
    assert may_ask(node, vera, tmp_path)

    # A file that cannot be used changes nothing.
    private(own, "short")
    node.signal(signal.SIGHUP)
    until(lambda: node.seen("credentials.refused"), what="the short secret is refused")
    assert "at least 16 are needed" in node.seen("credentials.refused")[0]["detail"]
    assert may_ask(node, old, tmp_path)

    # Without a signal, once the file has settled.
    private(own, NEW)
    until(lambda: len(node.seen("credentials.reloaded")) == 2, what="the new secret is read")
    assert may_ask(node, new, tmp_path)
    assert not may_ask(node, old, tmp_path)
    assert node.metric("hyperscale_credentials_reloads_total", outcome="used") == 2
    assert node.stop() == 0


def test_a_node_takes_a_renewed_certificate_while_it_runs(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    made = ("certs", "--cluster", "acme", "--environment", "test", "--out")

    def make(directory: str, *flags: str) -> None:
        done = run(*made, directory, "--host", "127.0.0.1", *flags, cwd=tmp_path)
        assert done.code == 0, done.stderr

    for name, role in (("m0", "manager"), ("olga", "operator")):
        make("certs", "--role", role, "--name", name)
    make("other", "--role", "manager", "--name", "m0")
    certs = tmp_path / "certs"
    flags = ("--cluster", "acme", "--environment", "test", "--authority", str(certs / "ca.pem"))
    own = ("--certificate", str(certs / "m0.pem"), "--key", str(certs / "m0-key.pem"))
    node = cluster.start("manager", "m0", *flags, *own).wait_listening()
    olga = ("--certificate", str(certs / "olga.pem"), "--key", str(certs / "olga-key.pem"))
    ask = ("members", "--connect", node.address, *flags, *olga)
    assert run(*ask, cwd=tmp_path).code == 0
    expiry = node.metric("hyperscale_certificate_expiry_timestamp_seconds")

    def replace(source: str) -> None:
        for name in ("m0-key.pem", "m0.pem"):
            (tmp_path / source / name).replace(certs / name)
        node.signal(signal.SIGHUP)

    replace("other")  # of another authority
    until(lambda: node.seen("credentials.refused"), what="the certificate is refused")
    assert "is not signed by the authority" in node.seen("credentials.refused")[0]["detail"]
    assert run(*ask, cwd=tmp_path).code == 0
    for name in ("m0-key.pem", "m0.pem"):
        (certs / name).unlink()
    make("certs", "--role", "manager", "--name", "m0", "--days", "30")
    node.signal(signal.SIGHUP)
    until(lambda: node.seen("credentials.reloaded"), what="the renewed certificate is used")
    assert node.metric("hyperscale_certificate_expiry_timestamp_seconds") < expiry
    assert run(*ask, cwd=tmp_path).code == 0
    # The certificate is bound to its node.
    other = cluster.start("manager", "m1", *flags, *own)
    assert other.process.wait(60) == 2
    assert "m0" in other.output()
