"""The data directory of a node: private to its user, and used by one process."""

import os
from pathlib import Path

import pytest

from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.nodes.data_directory import hold_data_directory, node_id_of
from hyperscale.nodes.server import complete_config
from tests.lab.nodes import NodeCluster


def config_of(directory: Path, **security: bool) -> NodeConfig:
    tables = {"node": {"id": "m1", "data_dir": str(directory)}, "security": security}
    return complete_config("manager", tables)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_others_could_read_is_closed_when_the_node_starts(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    (directory / "ledger").mkdir(parents=True)
    database = directory / "ledger" / "ledger.db"
    database.touch()
    for path, mode in ((directory, 0o755), (directory / "ledger", 0o755), (database, 0o644)):
        path.chmod(mode)
    with hold_data_directory(config_of(directory)):
        assert mode_of(directory) == mode_of(directory / "ledger") == 0o700
        assert {mode_of(path) for path in directory.rglob("*") if path.is_file()} == {0o600}


def test_what_others_could_have_written_is_refused_unless_allowed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    entry = directory / "bundle.zip"
    entry.touch()
    entry.chmod(0o666)
    with (
        pytest.raises(InputError, match=r"bundle.zip can be written by other users: mode 666"),
        hold_data_directory(config_of(directory)),
    ):
        pass
    with hold_data_directory(config_of(directory, insecure_files=True)):
        assert mode_of(entry) == 0o600


def test_a_symbolic_link_in_the_directory_is_refused_and_a_link_to_it_is_not(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    (tmp_path / "way").symlink_to(directory)
    with hold_data_directory(config_of(tmp_path / "way")):
        pass
    (directory / "ledger").symlink_to(tmp_path)
    with (
        pytest.raises(InputError, match="ledger is a symbolic link"),
        hold_data_directory(config_of(directory)),
    ):
        pass


def test_a_second_user_of_a_directory_is_refused_with_the_first_one_named(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    with (
        hold_data_directory(config),
        pytest.raises(InputError, match=rf"another process uses .* \(process {os.getpid()}\)"),
        hold_data_directory(config),
    ):
        pass
    with hold_data_directory(config):  # free again
        pass


def test_a_worker_keeps_its_generated_name_after_a_restart(tmp_path: Path) -> None:
    tables = {
        "node": {"data_dir": str(tmp_path / "data")},
        "discovery": {"seeds": ["127.0.0.1:9000"]},
    }
    config = complete_config("worker", tables)
    with hold_data_directory(config):
        pass
    assert node_id_of(complete_config("worker", tables)) == config.node.id


def test_two_worker_processes_on_one_directory_are_refused(
    cluster: NodeCluster, tmp_path: Path
) -> None:
    manager = cluster.start("manager", "m0").wait_listening()
    place = ("--seed", manager.address, "--data-dir", str(tmp_path / "shared"))
    cluster.start("worker", "w0", *place).wait_listening()
    second = cluster.start("worker", "w1", *place)
    assert second.process.wait(30) == 2
    assert "another process uses the data directory" in second.output()
    assert cluster.start("worker", "w2", *place[:2]).wait_listening()
