"""What a client submits: a plan and one bundle, made where the user is.

Everything that can be wrong with what a user wrote is found here, before anyone is asked.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hyperscale.execution.bundle import Bundle, merged
from hyperscale.graph import Overrides
from hyperscale.plan import Plan
from hyperscale.reporting.reporter import Sink
from hyperscale.runner.local import Given, plan_of
from hyperscale.runner.source import Job, job_from_classes, job_from_file

_NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Package:
    """Ready to be submitted, as often as need be."""

    plan: Plan
    payload: bytes
    sha256: str
    reporters: tuple[Sink, ...] = ()


def package_file(file: str | Path, overrides: Overrides = _NO_OVERRIDES) -> Package:
    """A test file with the local modules it imports and the files it names."""
    return _packed(job_from_file(file, overrides))


def package_classes(
    workflows: Iterable[Given | tuple[Iterable[str], Given]], *, test_name: str
) -> Package:
    """Classes or instances at hand, as `LocalRunner` takes them."""
    classes, plan = plan_of(test_name, workflows, where="submit_job")
    return _packed(job_from_classes(classes, plan))


def _packed(job: Job) -> Package:
    bundles: dict[str, Bundle] = {}
    homes: dict[str, list[str]] = {}
    for workflow, code in job.code.items():
        bundles[code.bundle.name] = code.bundle
        homes.setdefault(code.bundle.name, []).append(workflow)
    payload = merged([(bundles[name], homes[name]) for name in bundles]).payload
    return Package(
        plan=job.plan,
        payload=payload,
        sha256=hashlib.sha256(payload).hexdigest(),
        reporters=job.reporters,
    )
