"""The number of executors of a machine, and the cores they are pinned to."""

import os
from pathlib import Path

import pytest

from hyperscale.execution.cores import cgroup_cores, default_executors, pinned_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_lowest_version_2_quota_of_all_parents_counts(tmp_path: Path) -> None:
    write(tmp_path / "a/b/cpu.max", "max 100000\n")
    write(tmp_path / "a/cpu.max", "250000 100000\n")
    write(tmp_path / "cpu.max", "400000 100000\n")
    assert cgroup_cores("0::/a/b\n", tmp_path) == 2.5


def test_version_1_quotas_are_read_from_the_cpu_controller(tmp_path: Path) -> None:
    write(tmp_path / "cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n")
    write(tmp_path / "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
    assert cgroup_cores("4:memory:/box\n3:cpu,cpuacct:/box\n", tmp_path) == 1.5


@pytest.mark.parametrize("membership", ["0::/\n", "1:name=systemd:/\n", ""])
def test_no_quota_is_no_limit(tmp_path: Path, membership: str) -> None:
    assert cgroup_cores(membership, tmp_path) is None


def test_an_unlimited_version_1_group_is_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000\n")
    assert cgroup_cores("3:cpu:/\n", tmp_path) is None


def test_the_default_number_of_executors_is_between_one_and_the_affinity() -> None:
    assert 1 <= default_executors() <= len(os.sched_getaffinity(0))


def test_each_executor_gets_its_own_core_if_there_are_enough() -> None:
    cores = os.sched_getaffinity(0)
    assert set(pinned_cores(len(cores))) == cores
    assert pinned_cores(len(cores) + 1) == [None] * (len(cores) + 1)
