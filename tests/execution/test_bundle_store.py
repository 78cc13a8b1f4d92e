"""Bundles on disk are complete or missing."""

import hashlib
import os
from pathlib import Path

import pytest

from hyperscale.errors import RunError
from hyperscale.execution import bundle_store
from hyperscale.execution.bundle_store import BundleStore


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def received(store: BundleStore, data: bytes) -> Path:
    with store.receive(sha256(data)) as receiving:
        receiving.write(data[:3])
        receiving.write(data[3:])
        return receiving.finish()


def test_a_bundle_is_found_once_it_is_complete(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles")
    store.open()
    assert store.find(sha256(b"code")) is None
    path = received(store, b"code")
    assert path.read_bytes() == b"code"
    assert store.find(sha256(b"code")) == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_bytes_with_another_hash_are_not_stored(tmp_path: Path) -> None:
    with BundleStore(tmp_path).receive(sha256(b"code")) as receiving:
        receiving.write(b"other")
        with pytest.raises(RunError, match="the 5 bytes received are"):
            receiving.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_over_the_size_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_store, "BUNDLE_BYTES_MAX", 1000)
    with BundleStore(tmp_path).receive("a" * 64) as receiving:
        receiving.write(b"x" * 1000)
        with pytest.raises(RunError, match="is over"):
            receiving.write(b"x")
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_bundles_are_removed_unless_in_use(tmp_path: Path) -> None:
    store = BundleStore(tmp_path, kept=2)
    paths = [received(store, f"code {n}".encode()) for n in range(5)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (1000.0 - age, 1000.0 - age))
    store.trim([sha256(b"code 0")])
    assert {path for path in paths if path.exists()} == {paths[0], paths[3], paths[4]}


def test_partial_bundles_are_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "abc.part").write_bytes(b"half")
    BundleStore(tmp_path).open()
    assert list(tmp_path.iterdir()) == []
