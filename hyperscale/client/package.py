"""Build the plan and the bundle that a client submits, on the user's machine.

Mistakes in a test file are found here, before a manager is asked.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hyperscale.client.submission import JobSubmission, Package
from hyperscale.errors import InputError
from hyperscale.execution.bundle import Bundle, merged
from hyperscale.graph import Overrides, Workflow
from hyperscale.plan.secrets import pack_secrets
from hyperscale.runner.local import Given, checked_parameters, load_given
from hyperscale.runner.source import LoadedTest, load_test_file
from hyperscale.testing.parameters import GivenParameters

_NO_OVERRIDES = Overrides()


def package_of(job: JobSubmission) -> Package:
    """Return the package of what was passed to `submit_job`."""
    params = checked_parameters(job.params, where="params")
    if job.file is not None:
        only: Sequence[str] = [job.only] if isinstance(job.only, str) else list(job.only)
        overrides = Overrides(vus=job.vus, duration=job.duration, only=only)
        return package_file(job.file, overrides, GivenParameters(params))
    if job.vus is not None or job.duration is not None or job.only:
        raise InputError(
            "submit_job: vus, duration and only are for test files",
            hint="set them on the classes, or give instances that have their own",
        )
    given: object = job.workflows
    if isinstance(given, Workflow | type) or not isinstance(given, Iterable):
        raise InputError(
            f"submit_job: {given!r} is no test file and no list of workflows",
            hint="as 'shop.py', [Shop] or [Shop()]",
        )
    workflows = list(job.workflows)
    name = job.test_name
    if not name and workflows:
        first = workflows[0][1] if isinstance(workflows[0], tuple) else workflows[0]
        name = first.__name__ if isinstance(first, type) else type(first).__name__
    return package_classes(workflows, test_name=name, params=params)


def package_file(
    file: str | Path,
    overrides: Overrides = _NO_OVERRIDES,
    parameters: GivenParameters | None = None,
) -> Package:
    """Package a test file with the local modules it imports and the files it names."""
    return _packed(load_test_file(file, overrides, parameters))


def package_classes(
    workflows: Iterable[Given | tuple[Iterable[str], Given]],
    *,
    test_name: str,
    params: Mapping[str, object] = MappingProxyType({}),
) -> Package:
    """Package workflow classes or instances, as `LocalRunner` takes them."""
    return _packed(load_given(test_name, workflows, where="submit_job", params=params))


def _packed(job: LoadedTest) -> Package:
    bundles: dict[str, tuple[Bundle, list[str]]] = {}  # with the workflows that they hold
    for workflow, code in job.code.items():
        bundles.setdefault(code.bundle.name, (code.bundle, []))[1].append(workflow)
    payload = merged(list(bundles.values())).payload
    digest = hashlib.sha256(payload).hexdigest()
    return Package(job.plan, payload, digest, job.reporters, pack_secrets(job.secrets))
