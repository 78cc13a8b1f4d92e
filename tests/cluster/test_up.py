"""`hyperscale cluster up`: what it starts and prints, and that it leaves no process."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from hyperscale.client.cluster_file import read_cluster
from hyperscale.config.addresses import split_address
from hyperscale.errors import InputError, RunError
from hyperscale.lab.cluster import restart_node
from hyperscale.lab.layout import (
    ClusterOptions,
    ClusterShape,
    find_ports,
    former_shape,
    lay_out,
    shape_of,
)
from hyperscale.lab.node_processes import children_of
from tests.lab.cluster import Cluster, running_cluster
from tests.lab.command import HYPERSCALE, run
from tests.lab.processes import is_alive
from tests.lab.waiting import WAIT_S, until


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("small") / "lab"
    with running_cluster(directory, "--managers", "1", "--workers", "2", "--cores", "2") as one:
        yield one


def output_of(cluster: Cluster) -> str:
    return (cluster.directory.parent / "lab.out").read_text()


def test_cluster_up_prints_the_addresses_of_all_nodes(small: Cluster) -> None:
    found = json.loads((small.directory / "cluster.json").read_text())
    assert found["gates"] == []
    assert [node["id"] for node in found["managers"]] == ["manager-1"]
    assert [node["id"] for node in found["workers"]] == ["worker-1", "worker-2"]
    for node in [*found["managers"], *found["workers"]]:
        assert is_alive(node["pid"])
        assert node["tcp"] == node["udp"]
        assert node["id"] in output_of(small)
        assert urlopen(f"http://{node['http']}/readyz").status == 200
    assert os.stat(found["secret_file"]).st_mode & 0o777 == 0o600
    listed = small.run("workers", "--dir", str(small.directory), "--json")
    rows = json.loads(listed.stdout)["workers"]
    assert sorted((row["worker"], row["cores"]) for row in rows) == [
        ("worker-1", 2),
        ("worker-2", 2),
    ]


def test_a_node_that_dies_is_reported_and_restarted_only_on_request(small: Cluster) -> None:
    small.heal()
    with pytest.raises(RunError, match="worker-1 is already running"):
        restart_node(small.directory, "worker-1")
    small.kill("worker-1")
    until(
        lambda: "worker-1 was killed by SIGKILL" in output_of(small), what="the death is reported"
    )
    where = ("--dir", str(small.directory))
    until(
        lambda: "dead" in small.run("workers", *where).stdout,
        what="managers know that the worker is dead",
    )
    refused = small.run("drain", "worker-1", *where)
    assert (refused.returncode, "worker-1 is dead" in refused.stderr) == (3, True), refused.stderr
    before = small.node("worker-1").pid
    done = small.run("cluster", "start", "worker-1", *where)
    assert done.returncode == 0, done.stderr
    assert small.node("worker-1").pid != before
    small.wait_ready()
    unknown = small.run("cluster", "start", "worker-9", "--dir", str(small.directory))
    assert unknown.returncode == 2
    assert "worker-9" in unknown.stderr


def test_a_directory_holds_one_cluster(small: Cluster) -> None:
    done = small.run("cluster", "up", "--dir", str(small.directory))
    assert done.returncode == 2
    assert "another cluster is running" in done.stderr


def test_the_same_directory_continues_the_same_cluster(tmp_path: Path) -> None:
    shape = ("--managers", "1", "--workers", "1")
    with running_cluster(tmp_path / "lab", *shape) as first:
        file = first.paced(vus=1, duration="1s")
        done = first.run("submit", str(file), "--dir", str(first.directory), "--detach")
        job = done.stdout.strip()
        assert first.run("watch", job, "--dir", str(first.directory)).returncode == 0
        ports = [row.tcp for row in first.file.nodes]
    with running_cluster(tmp_path / "lab") as second:
        assert [row.tcp for row in second.file.nodes] == ports
        again = second.run("results", job, "--dir", str(second.directory))
        assert again.returncode == 0, again.stderr
    ended = run("members", "--dir", "lab", cwd=tmp_path)
    assert ended.code == 3
    assert "'hyperscale cluster up --dir lab' starts it again" in ended.stderr
    other = run("cluster", "up", "--dir", "lab", "--managers", "3", cwd=tmp_path)
    assert other.code == 2
    assert "holds a cluster of --managers 1 --workers 1" in other.stderr


def test_options_left_out_stay_as_before_except_ports_in_use(
    tmp_path: Path,
) -> None:
    assert shape_of(ClusterOptions()) == ClusterShape(managers=3, workers=3, cores=1)
    config = tmp_path / "nodes.toml"
    shape = ClusterShape(managers=1, workers=2, cores=3, base_port=find_ports(6), config=config)
    before = lay_out(shape, tmp_path, tmp_path / "secret")
    assert shape_of(ClusterOptions(), before) == shape
    with socket.create_server(split_address(before.workers[1].http)):
        other = shape_of(ClusterOptions(cores=1), before)
    assert other == msgspec.structs.replace(shape, cores=1, base_port=None)


def test_a_directory_keeps_its_gates_and_datacenters(tmp_path: Path) -> None:
    shape = ClusterShape(gates=3, datacenters=2, managers=1, workers=2, base_port=find_ports(18))
    before = lay_out(shape, tmp_path, tmp_path / "secret")
    assert [node.id for node in before.gates] == ["gate-1", "gate-2", "gate-3"]
    assert before.node("dc2-worker-2").datacenter == "dc2"
    assert former_shape(before).flags == "--gates 3 --datacenters 2 --managers 1 --workers 2"
    assert shape_of(ClusterOptions(), before) == shape
    with pytest.raises(InputError, match="2 datacenters need gates"):
        shape_of(ClusterOptions(gates=0), before)


def test_no_node_survives_a_killed_cluster_up(tmp_path: Path) -> None:
    base = find_ports(4)
    with running_cluster(
        tmp_path / "lab", "--managers", "1", "--workers", "1", "--base-port", str(base)
    ) as cluster:
        nodes = [row.pid for row in cluster.file.nodes]
        assert cluster.file.managers[0].tcp == f"127.0.0.1:{base}"
        (worker,) = cluster.file.workers
        until(lambda: children_of(worker.pid), what="the worker has an executor")
        nodes += [pid for node in nodes for pid in children_of(node)]
        os.kill(cluster.file.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, nodes)), what="all nodes are gone")


def test_cluster_up_explains_on_a_terminal_what_it_waits_for(tmp_path: Path) -> None:
    master, slave = os.openpty()
    shape = ("--managers", "1", "--workers", "0")
    with subprocess.Popen(
        [*HYPERSCALE, "cluster", "up", "--dir", str(tmp_path / "lab"), *shape],
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        manager = read_cluster(tmp_path / "lab").node("manager-1")
        os.kill(manager.pid, signal.SIGKILL)  # the report has no reader any more
        until(lambda: not is_alive(manager.pid), what="the manager has ended")
        assert restart_node(tmp_path / "lab", "manager-1") != manager.pid
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
    shown = os.read(master, 65536).decode()
    os.close(slave)
    os.close(master)
    assert process.returncode == 0
    assert "starting nodes" in shown
    assert "ending all nodes" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--datacenters", "2"), "2 datacenters need gates"),
        (("--gates", "-1"), "--gates: '-1' is not a whole number from 0"),
        (("--managers", "none"), "--managers: 'none' is not a whole number from 1"),
        (("--base-port", "65530"), "too high"),
    ],
)
def test_impossible_options_of_cluster_up_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run("cluster", "up", "--dir", "lab", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert message in done.stderr


def test_a_module_that_only_the_submitter_has_is_named_with_the_worker(
    small: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.heal()
    (tmp_path / "only_here.py").write_text("PRICE = 3\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = small.paced()
    file.write_text("import only_here\n" + file.read_text())
    done = small.run("submit", str(file), "--watch", "--dir", str(small.directory))
    assert done.returncode == 3
    assert re.search(rf"on worker-\d: .*{file.name}:1: no module named 'only_here'", done.stdout)
    assert "install it, or put the module beside the test file; " in done.stdout
