"""Bundles and results on disk: whole or not there."""

import hashlib
import os
from pathlib import Path

import pytest

from hyperscale.errors import RunError
from hyperscale.jobs.commands import PartFinished, PartStatus, RunId
from hyperscale.nodes.agent import files
from hyperscale.nodes.agent.files import BundleShelf, ResultSpool


def finished(job: str = "dc.1-a", attempt: int = 1) -> PartFinished:
    return PartFinished(
        worker="w1",
        group=1,
        run=RunId(job, "Load", 0, attempt),
        status=PartStatus.COMPLETED,
        report=None,
        provided=[b"\x00\xff"],
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def received(shelf: BundleShelf, data: bytes) -> Path:
    with shelf.receive(sha256(data)) as receiving:
        receiving.write(data[:3])
        receiving.write(data[3:])
        return receiving.finish()


def test_a_bundle_is_found_once_it_is_whole(tmp_path: Path) -> None:
    shelf = BundleShelf(tmp_path / "bundles")
    shelf.open()
    assert shelf.find(sha256(b"code")) is None
    path = received(shelf, b"code")
    assert path.read_bytes() == b"code"
    assert shelf.find(sha256(b"code")) == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_bytes_that_are_not_the_bundle_leave_nothing(tmp_path: Path) -> None:
    with BundleShelf(tmp_path).receive(sha256(b"code")) as receiving:
        receiving.write(b"other")
        with pytest.raises(RunError, match="the 5 bytes received are"):
            receiving.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_without_an_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUNDLE_BYTES_MAX", 1000)
    with BundleShelf(tmp_path).receive("a" * 64) as receiving:
        receiving.write(b"x" * 1000)
        with pytest.raises(RunError, match="is over"):
            receiving.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_bundles_not_used_for_long_go_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUNDLES_MAX", 2)
    shelf = BundleShelf(tmp_path)
    paths = [received(shelf, f"code {n}".encode()) for n in range(5)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1000.0 - age, 1000.0 - age))
    shelf.trim([sha256(b"code 0")])
    assert {path for path in paths if path.exists()} == {paths[0], paths[3], paths[4]}


def test_what_a_life_did_not_finish_receiving_is_forgotten_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "abc.part").write_bytes(b"half")
    BundleShelf(tmp_path).open()
    assert list(tmp_path.iterdir()) == []


def test_results_are_found_again_until_they_are_erased(tmp_path: Path) -> None:
    spool = ResultSpool(tmp_path / "results")
    assert spool.open() == ([], [])
    one, two = finished(), finished(attempt=2)
    spool.store(one)
    spool.store(two)
    spool.store(one)
    results, broken = ResultSpool(tmp_path / "results").open()
    assert sorted(each.run.attempt for each in results) == [1, 2]
    assert one in results
    assert broken == []
    spool.erase(one.run)
    spool.erase(one.run)
    assert ResultSpool(tmp_path / "results").open() == ([two], [])


def test_a_damaged_result_is_told_and_left_where_it_is(tmp_path: Path) -> None:
    spool = ResultSpool(tmp_path)
    spool.store(finished())
    (damaged,) = tmp_path.glob("*.result")
    damaged.write_bytes(damaged.read_bytes()[:-3])
    spool.store(finished("dc.1-b"))
    (tmp_path / "half.part").write_bytes(b"half")
    results, broken = spool.open()
    assert [each.run.job for each in results] == ["dc.1-b"]
    assert broken == [damaged]
    assert not (tmp_path / "half.part").exists()


def test_names_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    spool = ResultSpool(tmp_path / "results")
    spool.store(finished("../../outside"))
    assert len(list((tmp_path / "results").iterdir())) == 1
