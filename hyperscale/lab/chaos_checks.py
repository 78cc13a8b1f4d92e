"""What must hold when the faults of a chaos run are over.

All nodes are ready; every manager reports the same end of the job; all replicas of the ledger are
equal; the target received what was reported, within the stated gaps.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_connection import ask_node
from hyperscale.client.cluster_file import read_cluster
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.lab.cluster import why_not_ready
from hyperscale.lab.faults import Fault, FaultKind
from hyperscale.ledger.server.operator_messages import Verify, VerifyReply
from hyperscale.reporting.results import RunResult

BACK_S = 60.0
VUS_PER_WORKER = 4
_POLL_S = 0.1
_RECORD_S = 30.0
_VERIFY_S = 15.0
_TARGET_S = 10.0
_TARGET_HINT = "'hyperscale target' starts a target server and prints its URL"


@dataclass(slots=True)
class ChaosReport:
    """The checks that held, and those that did not."""

    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def check(self, holds: bool, what: str) -> None:
        """Add one check."""
        (self.held if holds else self.broken).append(what)


async def nodes_not_ready(directory: Path, *, within_s: float) -> str:
    """Wait until all nodes are ready; return which ones are not, and why, after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while True:
        nodes = read_cluster(directory).nodes
        missing = {node.id: why for node in nodes if (why := why_not_ready(node))}
        if not missing:
            return ""
        if time.monotonic() > deadline_s:
            return f"not ready: {', '.join(f'{name} ({missing[name]})' for name in missing)}"
        await asyncio.sleep(_POLL_S)


async def check_nodes(directory: Path, report: ChaosReport) -> None:
    """Check that all nodes are ready again."""
    missing = await nodes_not_ready(directory, within_s=BACK_S)
    count = len(read_cluster(directory).nodes)
    report.check(not missing, f"nodes: {missing or f'all {count} are ready'}")


async def check_agreement(directory: Path, job: str, report: ChaosReport) -> None:
    """Check that each manager reports the same end of the job."""
    answers: dict[str, str] = {}
    cluster = read_cluster(directory)
    settings = {"security": {"secret_file": cluster.secret_file}}
    for manager in cluster.managers:
        try:
            async with HyperscaleClient([manager.tcp], settings=settings) as client:
                record = await client.get_record(job, within_s=_RECORD_S)
                view = (await client.get_job(job)).job
                answers[manager.id] = f"{view.status.value} {hash(record)}"
        except HyperscaleError as error:
            answers[manager.id] = f"no answer: {error}"
    same = len(set(answers.values())) == 1
    what = "every manager reports the same end" if same else f"managers disagree: {answers}"
    report.check(same, f"job: {what}")


async def check_ledger(directory: Path, report: ChaosReport) -> None:
    """Check that all replicas of each group are equal; wait for replicas that catch up."""
    cluster = read_cluster(directory)
    config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
    host, port = split_address(cluster.managers[0].tcp)
    deadline_s = time.monotonic() + BACK_S
    while True:
        digests: dict[int, set[str]] = {}
        missing: list[str] = []
        try:
            reply = await ask_node(config, host, port, Verify(), VerifyReply, timeout_s=_VERIFY_S)
            for row in reply.rows:
                found = digests.setdefault(row.group, set())
                if row.digest:
                    found.add(row.digest)
                else:
                    missing.append(f"group {row.group} on {row.node}: {row.why_not}")
        except RunError as error:
            missing.append(error.message)
        differing = [group for group, found in digests.items() if len(found) > 1]
        if not missing or differing or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(1.0)
    problems = [*(f"the replicas of group {group} differ" for group in differing), *missing]
    what = ", ".join(problems) or f"the replicas of {len(digests)} groups are equal"
    report.check(not problems, f"ledger: {what}")


def check_requests(result: RunResult, counts: dict[str, Any], report: ChaosReport) -> None:
    """Check that the target received what was reported, less what was cut, plus the gaps."""
    sent = sum(step.sent for workflow in result.workflows for step in workflow.steps)
    cut = sum(step.cut for workflow in result.workflows for step in workflow.steps)
    gaps = sum(gap.requests_max for gap in result.gaps)
    total = counts["total"]
    report.check(
        sent - cut <= total <= sent + gaps,
        f"requests: reported {sent:,}{f' ({cut:,} cut)' if cut else ''}, target {total:,}, "
        f"gaps up to {gaps:,}",
    )


def check_connections(
    result: RunResult, counts: dict[str, Any], plan: Sequence[Fault], report: ChaosReport
) -> None:
    """Check that there were never more connections than virtual users.

    A paused executor keeps its connections, though it sends nothing over them.
    """
    peak = counts["connections"]["peak"]
    paused = {each.node for each in plan if each.kind is FaultKind.PAUSE_ALL}
    most = result.workflows[0].vus + VUS_PER_WORKER * len(paused)
    report.check(peak <= most, f"connections: at most {peak} at once, {most} allowed")


def read_counts(target_url: str) -> dict[str, Any]:
    """Return what the target has counted; raise `InputError` if it does not answer in JSON."""
    answer = _request(target_url, "/counts", "GET")
    try:
        counts: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        raise InputError(
            f"--target: {target_url} does not answer with its counts in JSON: {error}",
            hint=_TARGET_HINT,
        ) from error
    return counts


def reset_counts(target_url: str) -> None:
    """Set the counts of the target to zero."""
    _request(target_url, "/counts/reset", "POST")


def _request(url: str, path: str, method: str) -> bytes:
    try:
        request = Request(url.rstrip("/") + path, method=method)  # noqa: S310  the user's URL
        with urlopen(request, timeout=_TARGET_S) as answer:  # noqa: S310  the user's URL
            body: bytes = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(
            f"--target: the counts of {url} cannot be read: {getattr(error, 'reason', error)}",
            hint=_TARGET_HINT,
        ) from error
    return body
