"""`hyperscale config check` finds what would fail later, all of it at once."""

import datetime
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperscale.config.loading import node_config
from hyperscale.nodes.preflight import problems_of
from hyperscale.wire.certificate_identity import CertificateIdentity
from hyperscale.wire.certificates import CertificateAndKey, make_authority, make_certificate
from hyperscale.wire.cluster_secret import make_secret, write_secret_file
from hyperscale.wire.roles import Role
from tests.lab.command import run

Tables = dict[str, Any]
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
FAR_AHEAD = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


def certificates(
    folder: Path,
    *,
    role: Role = Role.MANAGER,
    cluster: str = "hyperscale",
    environment: str = "default",
    datacenter: str = "",
    node_id: str = "",
    now: datetime.datetime | None = None,
    trusts_other: bool = False,
    has_other_key: bool = False,
) -> Tables:
    """Write a certificate, its key and an authority; return the settings that name them."""
    identity = CertificateIdentity(frozenset({role}), cluster, environment, datacenter, node_id)
    authority = make_authority("hyperscale", days=3000, now=now)
    made = make_certificate(authority, identity, name="node", days=30, now=now)
    if has_other_key:
        other = make_certificate(authority, identity, name="other", days=30, now=now)
        made = CertificateAndKey(made.certificate, other.key)
    if trusts_other:
        authority = make_authority("hyperscale", days=3000)
    content = {"node.pem": made.certificate, "key.pem": made.key, "ca.pem": authority.certificate}
    for name, data in content.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(data)
    files = {"certificate": "node.pem", "key": "key.pem", "authority": "ca.pem"}
    return {"security": {key: str(folder / name) for key, name in files.items()}}


def secret_with_mode(folder: Path, mode: int) -> Tables:
    path = folder / "secret"
    write_secret_file(path, make_secret())
    path.chmod(mode)
    return {"security": {"secret_file": str(path)}}


def short_secret(folder: Path) -> Tables:
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_text("swordfish")
    return {"security": {"secret_file": str(path)}}


def directory_of_another_node(folder: Path) -> Tables:
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / "node-id").write_text("manager-7\n")
    return {"node": {"id": "manager-1", "data_dir": str(folder / "data")}}


def file_as_directory(folder: Path) -> Tables:
    (folder / "data").touch()
    return {"node": {"data_dir": str(folder / "data")}}


def directory_open_to_others(folder: Path) -> Tables:
    (folder / "data").mkdir()
    (folder / "data").chmod(0o777)
    return {"node": {"data_dir": str(folder / "data")}}


WRONG: list[tuple[str, Callable[[Path], Tables], str]] = [
    ("expired", lambda f: certificates(f, now=LONG_AGO), r"expired on 2020-01-31"),
    ("not yet valid", lambda f: certificates(f, now=FAR_AHEAD), "is not valid before 2089-12-31"),
    ("role", lambda f: certificates(f, role=Role.WORKER), "for the role worker, this node is a"),
    ("cluster", lambda f: certificates(f, cluster="acme"), "'acme', this node has 'hyperscale'"),
    ("environment", lambda f: certificates(f, environment="prod"), "'prod', this node has 'def"),
    ("datacenter", lambda f: certificates(f, datacenter="eu"), "'eu', this node has 'default'"),
    ("authority", lambda f: certificates(f, trusts_other=True), "not signed by the authority"),
    ("key", lambda f: certificates(f, has_other_key=True), "are not a certificate and its key"),
    ("open secret", lambda f: secret_with_mode(f, 0o644), "open to other users: mode 644"),
    ("short secret", short_secret, "at least 16"),
    ("founders", lambda _: {"ledger": {"founders": 3}}, "no discovery.seeds"),
    ("foreign data", directory_of_another_node, "belongs to the node 'manager-7'"),
    ("no directory", file_as_directory, "cannot be written"),
    ("open directory", directory_open_to_others, "can be written by other users: mode 777"),
    ("one port", lambda _: {"listen": {"port": 9000, "http_port": 9000}}, "are both 9000"),
    ("no secret", lambda _: {"listen": {"host": "0.0.0.0"}}, "loopback only"),
]


@pytest.mark.parametrize(("make", "words"), [row[1:] for row in WRONG], ids=[r[0] for r in WRONG])
def test_a_configuration_that_would_fail_later_is_found(
    tmp_path: Path, make: Callable[[Path], Tables], words: str
) -> None:
    tables: Tables = {"listen": {"port": 0, "http_port": 0}, "node": {}}
    tables["node"]["data_dir"] = str(tmp_path / "fine")
    for section, table in make(tmp_path).items():
        tables[section] = {**tables.get(section, {}), **table}
    found = [str(problem) for problem in problems_of(node_config("manager", tables))]
    assert any(words in text for text in found), found
    assert not (tmp_path / "fine").exists()


@pytest.mark.parametrize("key", ["port", "http_port"])
def test_a_port_in_use_is_found(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = {"port": 0, "http_port": 0, key: taken.getsockname()[1]}
        tables: Tables = {"listen": listen, "node": {"data_dir": str(tmp_path)}}
        found = [str(problem) for problem in problems_of(node_config("manager", tables))]
    assert len(found) == 1
    assert "Address already in use" in found[0]


def test_more_cores_than_the_machine_has_are_found(tmp_path: Path) -> None:
    tables: Tables = {
        "node": {"cores": 4096, "data_dir": str(tmp_path)},
        "listen": {"port": 0, "http_port": 0},
        "discovery": {"seeds": ["127.0.0.1:9000"]},
    }
    (found,) = problems_of(node_config("worker", tables))
    assert f"this process may use {len(os.sched_getaffinity(0))}" in str(found)


def test_a_right_configuration_has_no_problem(tmp_path: Path) -> None:
    tables = certificates(tmp_path)
    tables |= {"listen": {"port": 0, "http_port": 0}, "node": {"data_dir": str(tmp_path / "d")}}
    assert problems_of(node_config("manager", tables)) == []


def test_the_command_reports_all_findings_and_exits_with_2(tmp_path: Path) -> None:
    short_secret(tmp_path)
    flags = ("--founders", "3", "--secret-file", "secret", "--port", "9000", "--http-port", "9000")
    done = run("config", "check", *flags, cwd=tmp_path)
    assert done.code == 2
    for words in ("at least 16", "ledger.founders = 3", "are both 9000"):
        assert words in done.stderr
    assert "founders = 3" in done.stdout


def test_a_node_does_not_start_with_a_certificate_that_others_would_refuse(tmp_path: Path) -> None:
    tables = certificates(tmp_path, now=LONG_AGO)["security"]
    flags = [word for key, path in tables.items() for word in (f"--{key}", path)]
    done = run("manager", "--port", "0", "--http-port", "0", *flags, cwd=tmp_path)
    assert done.code == 2
    assert "expired on 2020-01-31" in done.stderr
