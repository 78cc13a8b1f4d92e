"""What a node remembers about datagrams over a restart."""

from pathlib import Path

import msgspec
import pytest

from hyperscale.nodes.datagram_memory import FILE_NAME, DatagramMemory, RememberedDatagrams
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.sealing import DatagramSealer
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until


def sealer(node: str, incarnation: int) -> DatagramSealer:
    return DatagramSealer(Secrets("a secret of sixteen"), node, incarnation)


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    own = sealer("a", 7)
    own.open(sealer("b", 5).seal(b"hello"))
    memory = DatagramMemory(tmp_path)
    assert memory.read() == RememberedDatagrams()
    memory.save(own)
    assert DatagramMemory(tmp_path).read() == RememberedDatagrams(7, {"b": (5, 1)})
    own.renew(9)
    memory.save(own)
    assert DatagramMemory(tmp_path).read().incarnation == 9
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_damaged_file_is_logged_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xc1 nonsense")
    assert DatagramMemory(tmp_path).read() == RememberedDatagrams()
    assert "datagrams.not_read" in caplog.text


def test_a_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = DatagramMemory(tmp_path / "missing")
    memory.save(sealer("a", 1))
    memory.save(sealer("a", 2))
    assert caplog.text.count("datagrams.not_saved") == 1


def test_a_restarted_node_outranks_its_past_though_its_clock_was_set_back(
    cluster: NodeCluster,
) -> None:
    node = cluster.start("manager", "m0").wait_listening()
    assert node.stop() == 0
    path = cluster.directory / "hyperscale-data" / "m0" / FILE_NAME
    remembered = DatagramMemory(path.parent).read()
    assert remembered.incarnation > 0
    ahead = remembered.incarnation + 3_600_000  # as if the clock had been an hour ahead
    path.write_bytes(msgspec.msgpack.encode(RememberedDatagrams(ahead, {"w0": (5, 9)})))
    again = cluster.start("manager", "m0").wait_listening()
    until(lambda: DatagramMemory(path.parent).read().incarnation == ahead + 1, what="it is saved")
    assert DatagramMemory(path.parent).read().seen == {"w0": (5, 9)}
    assert again.stop() == 0
