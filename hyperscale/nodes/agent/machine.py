"""The machine of a worker: its labels, and the cores that the worker offers."""

import platform

from hyperscale.config.labels import label_value, parse_labels
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError
from hyperscale.execution.cores import default_executors


def labels_of(config: NodeConfig, worker: str) -> dict[str, str]:
    """Return the labels of a worker: those of its configuration and the built-in ones."""
    major, minor, _ = platform.python_version_tuple()
    return parse_labels(config.worker.labels, where="worker.labels") | {
        "arch": label_value("arch", platform.machine()),
        "os": platform.system().lower(),
        "python": f"{major}.{minor}",
        "host": platform.node(),
        "worker": worker,
        "datacenter": config.node.datacenter,
        "failure_domain": config.node.failure_domain or worker,
    }


def offered_cores(config: NodeConfig) -> int:
    """Return the cores that a worker offers: as configured, or all that are not reserved."""
    if config.node.cores:
        return config.node.cores
    available, reserved = default_executors(), config.worker.reserved_cores
    if reserved >= available:
        raise InputError(
            f"worker.reserved_cores = {reserved} leaves no core: this process may use {available}",
            hint="a worker offers at least one core",
        )
    return available - reserved
