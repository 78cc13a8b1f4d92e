"""Whether a worker can do what a part needs: the verdict on what the worker measured of itself.

A worker that is unfit gets no part, so that a full disk or a low limit costs no retry of any job.
"""

from enum import StrEnum

from msgspec import Struct

from hyperscale.plan.limits import BUNDLE_BYTES_MAX

FREE_BYTES_MIN = 2 * BUNDLE_BYTES_MAX
"""Room for the largest bundle, and as much for results and logs."""
DESCRIPTORS_SPARE = 64
"""For connections of managers and clients, files, and a few for each executor that is started."""
EXECUTOR_DESCRIPTORS_MIN = 256
"""An executor opens some forty itself; with the rest it can serve a small test."""
_REASON_CHARS_MAX = 300  # an announcement has them all; a path may be long


class WorkerFault(StrEnum):
    """What keeps a worker from running parts."""

    DATA_DIRECTORY = "data_directory"
    DISK = "disk"
    DESCRIPTORS = "descriptors"
    EXECUTORS = "executors"


class Measured(Struct, frozen=True, kw_only=True):
    """What a worker found when it checked itself. Errors are empty if there was none."""

    directory: str
    write_error: str = ""
    free_bytes: int | None = None  # None: the file system does not say
    descriptors_open: int
    descriptors_soft: int  # limit of this process
    descriptors_hard: int  # limit to which executors raise theirs
    executor_error: str = ""


def faults(measured: Measured) -> dict[WorkerFault, str]:
    """Return why the worker is unfit, in words, by what is at fault; empty if it is fit."""
    found: dict[WorkerFault, str] = {}
    if measured.write_error:
        found[WorkerFault.DATA_DIRECTORY] = (
            f"the data directory {measured.directory} cannot be written: {measured.write_error}"
        )
    free = measured.free_bytes
    if free is not None and free < FREE_BYTES_MIN:
        found[WorkerFault.DISK] = (
            f"the disk of {measured.directory} has {free / 2**20:.1f} MiB free, "
            f"{FREE_BYTES_MIN // 2**20} MiB are needed"
        )
    spare = measured.descriptors_soft - measured.descriptors_open
    if spare < DESCRIPTORS_SPARE:
        found[WorkerFault.DESCRIPTORS] = (
            f"{measured.descriptors_open} of {measured.descriptors_soft} file descriptors are in "
            f"use, {DESCRIPTORS_SPARE} must be spare: raise the limit (ulimit -n)"
        )
    elif measured.descriptors_hard < EXECUTOR_DESCRIPTORS_MIN:
        found[WorkerFault.DESCRIPTORS] = (
            f"an executor may open {measured.descriptors_hard} file descriptors, "
            f"{EXECUTOR_DESCRIPTORS_MIN} are needed: raise the hard limit (ulimit -Hn)"
        )
    if measured.executor_error:
        found[WorkerFault.EXECUTORS] = f"executors do not start: {measured.executor_error}"
    return {fault: reason[:_REASON_CHARS_MAX] for fault, reason in found.items()}
