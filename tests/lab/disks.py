"""Small file systems in memory that tests can fill or make read-only. They need root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory on a directory; skip the test if that is not permitted."""
    directory.mkdir(exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def remount(directory: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(directory)], check=True)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only, also for processes that have files in it open for writing."""
    here = str(directory)
    subprocess.run(["mount", "--bind", here, here], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", here], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", here], check=True)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Fill the file system of a directory."""
    path = directory / "ballast"
    block = bytes(64 * 1024)
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(block)
    try:
        yield
    finally:
        path.unlink()
