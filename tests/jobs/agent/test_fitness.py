"""The verdict on what a worker measured of itself, and what its agent does about it."""

import pytest
from msgspec.structs import replace

from hyperscale.jobs.agent.fitness import (
    DESCRIPTORS_SPARE,
    EXECUTOR_DESCRIPTORS_MIN,
    FREE_BYTES_MIN,
    Measured,
    WorkerFault,
    faults,
)

FIT = Measured(
    directory="/data",
    free_bytes=FREE_BYTES_MIN,
    descriptors_open=40,
    descriptors_soft=40 + DESCRIPTORS_SPARE,
    descriptors_hard=EXECUTOR_DESCRIPTORS_MIN,
)


def test_a_worker_that_has_just_enough_is_fit() -> None:
    assert faults(FIT) == {}
    assert faults(replace(FIT, free_bytes=None)) == {}


@pytest.mark.parametrize(
    ("fault", "changes", "words"),
    [
        ("data_directory", {"write_error": "Read-only file system"}, "/data cannot be written: Re"),
        ("disk", {"free_bytes": 0}, "/data has 0.0 MiB free, 128 MiB are needed"),
        ("descriptors", {"descriptors_open": 41}, "41 of 104 file descriptors are in use"),
        ("descriptors", {"descriptors_hard": 255}, "an executor may open 255 file descriptors"),
        ("executors", {"executor_error": "no memory"}, "executors do not start: no memory"),
    ],
)
def test_each_fault_is_told_in_words(fault: str, changes: dict[str, object], words: str) -> None:
    found = faults(replace(FIT, **changes))
    assert list(found) == [WorkerFault(fault)]
    assert words in found[WorkerFault(fault)]


def test_all_faults_are_told_at_once_and_each_is_short_enough_to_be_announced() -> None:
    sick = replace(FIT, directory="/d" * 2000, write_error="?", free_bytes=1, executor_error="?")
    assert set(faults(sick)) == set(WorkerFault) - {WorkerFault.DESCRIPTORS}
    assert max(map(len, faults(sick).values())) <= 300
