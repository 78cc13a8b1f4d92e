"""Check what callers pass to a client, before a manager is asked; a mistake is an `InputError`."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hyperscale.client.cluster_connection import UnknownJobError
from hyperscale.client.manager_connections import Address
from hyperscale.client.submission import JobSubmission
from hyperscale.config import parse_duration_s
from hyperscale.config.addresses import DEFAULT_PORT, format_address, parse_address
from hyperscale.errors import InputError
from hyperscale.gates.committed.events import GlobalOptions, LossPolicy
from hyperscale.gates.committed.transitions import DATACENTERS_MAX
from hyperscale.jobs.committed.events import JobOptions
from hyperscale.jobs.committed.keys import KEY_HINT, key_problem
from hyperscale.jobs.messages import Isolation
from hyperscale.plan.placement import parse_placement

if TYPE_CHECKING:  # a client that only asks questions does not load what builds runs
    from hyperscale.plan import Plan

JOBS_MOST = 100_000
_JOB_ID_MOST = 256  # characters; ids that managers make have about thirty
_REASON_MOST = 1_000


def entrances_of(gates: object, managers: object) -> list[Address]:
    """Return the addresses of gates, or of managers."""
    if gates and managers:
        raise InputError(
            "gate_tcp_addrs and manager_tcp_addrs are given",
            hint="gates reach the managers of every datacenter: give gate_tcp_addrs alone",
        )
    return addresses_of(gates or managers)


def addresses_of(given: object) -> list[Address]:
    """Return the addresses of managers, given as a list or as a single address."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Iterable):
        raise InputError(
            f"manager_tcp_addrs: {given!r} is no list of addresses", hint='as ["10.0.0.5:9000"]'
        )
    return [_address(each) for each in given]


def _address(given: object) -> Address:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int):
        given = format_address(str(given[0]), given[1])
    if not isinstance(given, str):
        raise InputError(
            f"manager_tcp_addrs: {given!r} is not an address",
            hint='write it as "host:9000" or ("host", 9000)',
        )
    return parse_address(given, default_port=DEFAULT_PORT, where="manager_tcp_addrs")


def checked_job(job_id: object) -> str:
    """Return a job id that a manager can be asked about."""
    if not isinstance(job_id, str):
        raise InputError(f"{job_id!r} is no job id", hint="pass the text that submit_job returned")
    if len(job_id) > _JOB_ID_MOST or not _is_utf8(job_id):  # no job can have this id
        raise UnknownJobError(job_id)
    return job_id


def checked_text(text: object, *, where: str) -> str:
    """Return text that can be encoded; `where` names the argument."""
    if not isinstance(text, str) or not _is_utf8(text):
        raise InputError(f"{where}: {text!r} is not valid text")
    return text


def checked_reason(given: object) -> str:
    """Return the reason for a cancellation, bounded in length."""
    reason = checked_text(given, where="reason")
    if (length := len(reason)) > _REASON_MOST:
        what = f"reason: {length} characters, more than {_REASON_MOST}"
        raise InputError(what, hint="give a shorter reason")
    return reason


def _is_utf8(text: str) -> bool:
    """Return True if the text can be encoded; arguments of a command may hold undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_limit(limit: object) -> int:
    """Return how many jobs to list."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= JOBS_MOST:
        raise InputError(f"limit: {limit!r} is not a whole number from 1 to {JOBS_MOST}")
    return limit


def checked_key(key: object) -> str:
    """Return a submission key that managers accept."""
    if not isinstance(key, str):
        raise InputError(f"key: {key!r} is not valid text")
    if (problem := key_problem(key)) is not None:
        raise InputError(f"key: {problem}", hint=KEY_HINT)
    return key


def checked_names(names: object, *, where: str) -> list[str]:
    """Return names given as a list or as a single name."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        names = [names]
    return [checked_text(name, where=where) for name in names]


def check_callbacks(**callbacks: Callable[..., Any] | None) -> None:
    """Raise `InputError` if one of the callbacks cannot be called."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise InputError(f"{name}: {callback!r} cannot be called", hint="give a function")


def options_of(job: JobSubmission) -> JobOptions:
    """Return the options of a submission as they are committed with the job."""
    try:
        isolation = Isolation(job.on_isolation)
    except ValueError:
        known = " or ".join(f'"{each.value}"' for each in Isolation)
        raise InputError(f"on_isolation: {job.on_isolation!r} is not {known}") from None
    for name in ("test_name", "by"):
        checked_text(getattr(job, name), where=name)
    if not isinstance(job.static, bool):
        raise InputError(f"static: {job.static!r} is not True or False")
    if str(job.log_level).upper() not in logging.getLevelNamesMapping():
        raise InputError(f"log_level: {job.log_level!r} is unknown", hint='as "info" or "debug"')
    limits: dict[str, Any] = {
        f"{name}_s": parse_duration_s(getattr(job, name), where=name)
        for name in ("timeout", "dispatch_timeout")
        if getattr(job, name) is not None
    }
    return JobOptions(
        on_isolation=isolation,
        log_level=job.log_level,
        static=job.static,
        report=_report_of(job),
        **limits,
    )


def placed_plan(plan: "Plan", job: JobSubmission) -> "Plan":
    """Return the plan with the constraints and the spread of the submission."""
    if not job.constraints and job.spread is None:
        return plan
    given = parse_placement(job.constraints, job.spread)
    workflows = [
        replace(workflow, placement=workflow.placement.overridden_by(given))
        for workflow in plan.workflows
    ]
    return replace(plan, workflows=tuple(workflows))


def _report_of(job: JobSubmission) -> tuple[str, ...] | None:
    """Return the names of the leader's reporters that get the result; None: the client sends."""
    if job.report_from not in ("client", "manager"):
        raise InputError(f'report_from: {job.report_from!r} is not "client" or "manager"')
    names = tuple(checked_names(job.report, where="report"))
    if names and job.report_from == "client":
        raise InputError(
            "report: names of reporters are those of the managers or gates",
            hint='add report_from="manager", or give the workflows reporters',
        )
    return names if job.report_from == "manager" else None


def across_of(job: JobSubmission, datacenters: Sequence[str]) -> GlobalOptions:
    """Return what a submission asks of gates."""
    policies = [policy.value for policy in LossPolicy]
    if job.on_datacenter_lost not in policies:
        raise InputError(
            f"on_datacenter_lost: {job.on_datacenter_lost!r} is not one of {', '.join(policies)}"
        )
    if not 1 <= job.datacenter_count <= DATACENTERS_MAX:
        raise InputError(f"datacenter_count: {job.datacenter_count} is not 1 to {DATACENTERS_MAX}")
    return GlobalOptions(
        datacenters=tuple(datacenters),
        datacenter_count=len(datacenters) or job.datacenter_count,
        fallback=job.fallback,
        policy=LossPolicy(job.on_datacenter_lost),
        vus_per_datacenter=job.vus_per_datacenter,
        start_timeout_s=parse_duration_s(job.start_timeout, where="start_timeout"),
        lost_after_s=parse_duration_s(job.lost_after, where="lost_after"),
        spill_over_s=(
            None if job.spill_over is None else parse_duration_s(job.spill_over, where="spill_over")
        ),
    )
