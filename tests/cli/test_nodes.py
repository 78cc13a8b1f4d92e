"""The commands for nodes: `config`, `members`, `manager`, `worker`, `secret`."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hyperscale.cli.members import _table
from hyperscale.config.schema import settings
from hyperscale.nodes.messages import ListMembersReply, MemberRow, NodeMetadata
from tests.lab.command import run
from tests.lab.nodes import NodeCluster


def test_config_check_shows_every_setting_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text('[node]\ncluster = "acme"\n')
    monkeypatch.setenv("HYPERSCALE_LISTEN_PORT", "9500")
    monkeypatch.setenv("HYPERSCALE_SECRET", "correct horse battery staple")
    done = run("config", "check", "--file", "node.toml", "--log-level", "debug", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    shown = tomllib.loads(done.stdout)
    assert {f"{section}.{key}" for section in shown for key in shown[section]} == {
        setting.name for setting in settings()
    }
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert 'cluster = "acme" # node.toml' in lines
    assert "port = 9500 # HYPERSCALE_LISTEN_PORT" in lines
    assert 'level = "debug" # --log-level' in lines
    assert 'host = "127.0.0.1" # default' in lines
    assert "# HYPERSCALE_SECRET is set # environment" in lines
    assert "horse" not in done.stdout


def test_the_output_of_config_check_is_a_configuration_file(tmp_path: Path) -> None:
    first = run("config", "check", "--role", "worker", "--seed", "a:1", "--dns", "é", cwd=tmp_path)
    (tmp_path / "node.toml").write_text(first.stdout)
    second = run("config", "check", "--role", "worker", "--file", "node.toml", cwd=tmp_path)
    assert second.code == 0
    assert tomllib.loads(second.stdout) == tomllib.loads(first.stdout)


def test_config_check_reports_all_errors_of_a_file_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text("[listen]\nport = 99999\nprot = 1\n")
    monkeypatch.setenv("HYPERSCALE_CONFIG", "node.toml")
    done = run("config", "check", "--role", "worker", cwd=tmp_path)
    assert done.code == 2
    assert len(done.stderr.splitlines()) == 3
    assert "did you mean listen.port?" in done.stderr
    assert "# port is invalid" in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--secret-file", "nothing"), "cannot be read"),
        (("--host", "0.0.0.0"), "loopback only"),
        (
            ("--membership-suspicion-min-s", "5s", "--membership-suspicion-max-s", "5s"),
            "suspicion_max_s",
        ),
        (
            ("--certificate", "a", "--key", "b", "--authority", "c"),
            "the certificate file a does not exist",
        ),
    ],
)
def test_config_check_reads_secret_and_certificate_files_and_checks_across_settings(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    done = run("config", "check", *flags, cwd=tmp_path)
    assert done.code == 2
    assert words in done.stderr


def test_a_short_secret_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERSCALE_SECRET", "swordfish")
    for command in (("config", "check"), ("manager", "--port", "0", "--http-port", "0")):
        done = run(*command, cwd=tmp_path)
        assert done.code == 2
        assert "at least 16" in done.stderr
        assert "swordfish" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("", "is empty"),
        ("swordfish", "at least 16"),
    ],
)
@pytest.mark.parametrize("command", ["manager", "worker", "members", "config"])
def test_an_unusable_secret_file_of_the_environment_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    content: str | None,
    words: str,
) -> None:
    if content is not None:
        (tmp_path / "cluster.secret").touch(mode=0o600)
        (tmp_path / "cluster.secret").write_text(content)
    monkeypatch.setenv("HYPERSCALE_SECRET_FILE", "cluster.secret")
    flags = {"worker": ("--seed", "127.0.0.1:1"), "config": ("check",)}.get(command, ())
    done = run(command, *flags, cwd=tmp_path)
    assert done.code == 2
    assert "cluster.secret" in done.stderr
    assert words in done.stderr
    assert "swordfish" not in done.stdout + done.stderr


def test_a_secret_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    line = f"ulimit -f 0; {sys.executable} -m hyperscale.cli.main secret --out cluster.secret"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "cluster.secret cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_secret_and_a_secret_file_cannot_be_combined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.secret").touch(mode=0o600)
    (tmp_path / "cluster.secret").write_text("correct horse battery staple")
    monkeypatch.setenv("HYPERSCALE_SECRET_FILE", "cluster.secret")
    assert run("config", "check", cwd=tmp_path).code == 0
    monkeypatch.setenv("HYPERSCALE_SECRET", "correct horse battery staple")
    for command in (("config", "check"), ("members",), ("manager",)):
        done = run(*command, cwd=tmp_path)
        assert done.code == 2
        assert "both HYPERSCALE_SECRET and HYPERSCALE_SECRET_FILE are given" in done.stderr
        assert "horse" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("worker",), "--seed HOST:PORT"),
        (("manager", "--prot", "1"), "did you mean --port?"),
        (("manager", "--port", "x"), "listen.port (--port)"),
        (("manager", "--config", "nothing.toml"), "nothing.toml cannot be read"),
        (("members", "--connect", "a:b"), "--connect"),
        (("members", "--timeout", "soon"), "--timeout"),
        (("drain", "w1", "--dir", "here", "--manager", "there"), "cannot be combined"),
        (("jobs", "--limit", "9" * 30), "--limit"),
        (("jobs", "--certificate-key", "k"), "must be given together"),
        (("drain", "w1", "--certificate-key", "k"), "must be given together"),
        (("submit", "shop.py", "--key", ""), "--key: is empty"),
        (("cluster", "start", "w1", "--dir", "nowhere"), "nowhere holds no cluster"),
        (("cluster", "up", "--dir", ""), "--dir: is empty"),
        (("jobs", "--dir", ""), "--dir: is empty"),
        (("jobs", "--dir", "no where"), "hyperscale cluster up --dir 'no where'"),
        (("config", "chekc"), "invalid choice"),
    ],
)
def test_invalid_flags_are_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_local_run_imports_no_module_of_nodes(tmp_path: Path) -> None:
    """These imports would slow down the start of every local run."""
    script = (
        "import sys; from hyperscale.cli.main import main; main(['run', '--help']);"
        "import hyperscale.runner, hyperscale.graph;"
        "heavy = ('nodes', 'wire', 'membership', 'health', 'config.schema', 'config.loading');"
        "names = tuple(f'hyperscale.{each}' for each in heavy) + ('cryptography', 'dns');"
        "found = [m for m in sys.modules if m.startswith(names)];"
        "sys.exit(f'loaded: {found}' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["manager", "worker", "members", "config"])
def test_the_help_of_node_commands_lists_settings_and_the_secret(
    tmp_path: Path, command: str
) -> None:
    done = run(command, "--help", cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    if command == "worker":
        assert "generates load on them" in " ".join(done.stdout.split())
    if command in ("manager", "worker"):
        assert all(setting.flag in done.stdout for setting in settings())
    if command != "config":
        assert "HYPERSCALE_SECRET_FILE" in done.stdout


def test_config_without_an_action_prints_its_help(tmp_path: Path) -> None:
    done = run("config", cwd=tmp_path)
    assert done.code == 0
    assert "check" in done.stdout


def test_members_lists_all_nodes_as_a_table_and_as_json(tmp_path: Path) -> None:
    with NodeCluster(tmp_path) as cluster:
        nodes = cluster.form(1, 1)
        for node in nodes:
            table = run("members", "--connect", node.address, cwd=tmp_path)
            assert table.code == 0, table.stderr
            rows = {line.split()[0]: line.split() for line in table.stdout.splitlines() if line}
            assert rows["m0"][1:4] == ["manager", "alive", nodes[0].address]
            assert rows["w0"][1:4] == ["worker", "alive", nodes[1].address]
            assert rows[node.name][4] == "self"
            assert "2 of 2 alive in hyperscale/default" in table.stdout
        listed = run("members", "--connect", nodes[0].address, "--json", cwd=tmp_path)
        members = {row["node"]: row for row in json.loads(listed.stdout)["members"]}
        assert members["w0"]["metadata"]["cores"] >= 1
        assert members["w0"]["metadata"]["http"] == nodes[1].http.removeprefix("http://")
        assert members["m0"]["is_self"]


def test_control_characters_in_metadata_of_a_node_are_not_printed() -> None:
    row = MemberRow(
        node="n",
        role="worker",
        state="alive",
        address="a:1",
        incarnation=1,
        since_s=1.0,
        metadata=NodeMetadata(datacenter="\x1b[2Jx\n", overload=""),
    )
    shown = _table(ListMembersReply("c", "e", (row,)))
    assert shown.replace("\n", "").isprintable()
    assert "?[2Jx?" in shown.split()


def test_a_node_whose_port_is_in_use_does_not_start(tmp_path: Path) -> None:
    with NodeCluster(tmp_path) as cluster:
        node = cluster.start("manager", "m0").wait_listening()
        done = run("manager", "--port", str(node.port), "--http-port", "0", cwd=tmp_path)
        assert done.code == 2
        assert "cannot listen" in done.stderr


NODE = '{"id": "m", "pid": 1, "tcp": "nowhere", "udp": "127.0.0.1:1", "http": "127.0.0.1:1"}'


@pytest.mark.parametrize(
    "content",
    [
        *("{", '{"secret_file": 5}', '{"secret_file": "x"}', "\udcff"),
        f'{{"secret_file": "x", "managers": [{NODE}]}}',
    ],
)
def test_an_unreadable_cluster_file_is_an_error_with_advice(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content, errors="surrogateescape")
    done = run("members", "--dir", ".", cwd=tmp_path)
    assert done.code == 2
    assert "cluster.json is not what 'hyperscale cluster up' wrote" in done.stderr
    assert "remove it" in done.stderr
