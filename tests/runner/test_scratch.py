"""The directory of a run: its own while it lives, removed by the next if it was killed."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hyperscale.errors import RunError
from hyperscale.runner.scratch import scratch_directory

HOLDER = """
from hyperscale.runner.scratch import scratch_directory
with scratch_directory() as path:
    (path / "bundle.zip").write_text("")
    print(path, flush=True)
    input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_directory_of_a_run_is_removed_after_it(place: Path) -> None:
    with scratch_directory() as path:
        (path / "bundle.zip").write_text("")
    assert list(place.iterdir()) == []


def test_the_directory_of_a_killed_run_is_removed_and_that_of_a_live_run_is_not(
    place: Path,
) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        killed, living = [Path(os.fsdecode(run.stdout.readline().strip())) for run in runs]
        runs[0].send_signal(signal.SIGKILL)
        runs[0].wait()
        assert killed.exists()
        with scratch_directory() as own:
            assert not killed.exists()
            assert (living / "bundle.zip").exists()
            assert own.exists()
        runs[1].communicate(b"\n")
        assert list(place.iterdir()) == []
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def test_links_files_and_foreign_directories_are_not_removed(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    (place / "hyperscale-run-link").symlink_to(precious)
    (place / "hyperscale-run-file").write_text("")
    abandoned = place / "hyperscale-run-abandoned"
    abandoned.mkdir()
    (abandoned / "link").symlink_to(precious)
    with scratch_directory():
        assert not abandoned.exists()
    assert sorted(path.name for path in place.iterdir()) == [
        "hyperscale-run-file",
        "hyperscale-run-link",
        "precious",
    ]
    assert (precious / "file").exists()


def test_an_unusable_temporary_directory_is_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    with (
        pytest.raises(RunError, match="the temporary directory of the run"),
        scratch_directory(),
    ):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EPERM])
def test_a_file_system_without_locks_is_reported_and_left_as_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    of_another = place / "hyperscale-run-of-another"
    of_another.mkdir()
    told = f"flock: {os.strerror(number)}: '{place}/hyperscale-run-"
    with pytest.raises(RunError, match=told) as raised, scratch_directory():
        pass
    assert raised.value.hint == "free some disk space, or set TMPDIR to another directory"
    assert list(place.iterdir()) == [of_another]


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_directory_that_another_run_removed_as_abandoned_is_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    real, taken = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(place.iterdir())
            shutil.rmtree(taken[0])
            if is_locked:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with scratch_directory() as path:
        assert path.exists()
        assert path not in taken
    assert len(taken) == 1
    assert list(place.iterdir()) == []
