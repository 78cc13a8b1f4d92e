"""`hyperscale chaos`: run a job on a local cluster, inject faults, then check what must hold.

All nodes are ready; every manager (or gate) reports the same end of the job; all replicas of every
ledger are equal; the target received what was reported, within the stated gaps.
"""

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from hyperscale._native import Target
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_connection import ask_node
from hyperscale.client.cluster_file import ClusterFile, ClusterNode, read_cluster
from hyperscale.client.package import package_file
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.lab.faults import Fault, FaultInjector, FaultKind, make_plan
from hyperscale.lab.readiness import nodes_not_ready
from hyperscale.ledger.server.operator_messages import Verify, VerifyReply
from hyperscale.reporting.results import RunResult

READY_S = 30.0
"""How long nodes may take to be ready before the first fault."""
END_S = 90.0
"""How long after its load a job may take to end."""
_BACK_S = 60.0
_VUS_PER_WORKER = 4
_POLL_S = 0.1
_RECORD_S = 30.0
_VERIFY_S = 15.0
_TARGET_S = 10.0
_TARGET_HINT = "'hyperscale target' starts a target server and prints its URL"

_LOAD = '''\
"""Paced load: each virtual user waits 20 ms for each answer."""

from hyperscale import Workflow, step
from hyperscale.testing import URL, HTTPResponse


class Chaos(Workflow):
    vus = {vus}
    duration = "{duration_s:g}s"

    @step()
    async def get(self, url: URL = "http://127.0.0.1:{port}/delay/20") -> HTTPResponse:
        return await self.client.http.get(url)
'''


@dataclass(slots=True)
class ChaosReport:
    """The checks that held, and those that did not."""

    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def check(self, holds: bool, what: str) -> None:
        """Add one check."""
        (self.held if holds else self.broken).append(what)


class Chaos:
    """One chaos run of one seed. `say` gets lines for people."""

    def __init__(self, directory: Path, *, seed: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._seed = seed
        self._say = say
        self._injector = FaultInjector(directory, self._log)
        self._began_s = 0.0

    async def run(
        self, *, duration_s: float, file: Path | None = None, target_url: str = ""
    ) -> ChaosReport:
        """Run a job for `duration_s` under faults; return which checks held.

        If cancelled, bring all nodes back and cancel the job first. Without `file`, the job loads
        a target of this process.
        """
        await self._check_inputs(file, target_url)
        plan = self._make_plan(duration_s)
        report = ChaosReport()
        if file is None:
            with self._built_in_load(duration_s) as (built_in, target):
                result = await self._run_job(plan, built_in, duration_s, report)
                counts = json.loads(target.counts())
            if result is not None:
                _check_requests(result, counts, report)
                _check_connections(result, counts, plan, report)
            return report
        result = await self._run_job(plan, file, duration_s, report)
        if not target_url:
            self._say("note    requests are not checked: --target URL names the target")
        elif result is not None:
            try:
                counts = await asyncio.to_thread(_read_counts, target_url)
            except InputError as error:  # the target answered before the job: the flag was right
                raise RunError(error.message) from error
            _check_requests(result, counts, report)
        return report

    async def _check_inputs(self, file: Path | None, target_url: str) -> None:
        """Raise if the cluster, the test file or the target cannot be used."""
        async with HyperscaleClient(directory=self._directory, on_trouble=self._say) as client:
            await client.get_jobs()  # fails at once if the cluster is gone
        missing = await _nodes_not_ready(self._directory, within_s=0.0)
        if missing:
            self._say(f"{missing}; waiting for up to {READY_S:g} s")
            missing = await _nodes_not_ready(self._directory, within_s=READY_S)
        if missing:
            raise RunError(
                f"chaos needs a cluster whose nodes are all ready; {missing}",
                hint=f"'hyperscale cluster start NODE --dir {shlex.quote(str(self._directory))}' "
                "restarts a node that has ended or a worker that was drained",
            )
        if file is not None:
            await asyncio.to_thread(package_file, file)  # raises what is wrong with the file
            if target_url:
                await asyncio.to_thread(_request, target_url, "/counts/reset", "POST")
                await asyncio.to_thread(_read_counts, target_url)

    def _make_plan(self, duration_s: float) -> list[Fault]:
        cluster = read_cluster(self._directory)
        plan = make_plan(self._seed, cluster, duration_s)
        count = "1 fault" if len(plan) == 1 else f"{len(plan)} faults"
        self._say(f"seed {self._seed}, {duration_s:g} s of load, {count}{':' * bool(plan)}")
        for fault in plan:
            self._say(f"  {fault.describe()}")
        return plan

    @contextmanager
    def _built_in_load(self, duration_s: float) -> Iterator[tuple[Path, Target]]:
        """A target server, and a test file that sends to it."""
        vus = _VUS_PER_WORKER * max(1, len(read_cluster(self._directory).workers))
        file = self._directory / f"chaos-{self._seed}.py"
        target = Target("127.0.0.1", 0, 1)
        try:
            try:
                file.write_text(_LOAD.format(vus=vus, duration_s=duration_s, port=target.port))
            except OSError as error:
                raise InputError(
                    f"{file} cannot be written: {error.strerror}",
                    hint="run chaos as the user who started the cluster",
                ) from error
            yield file, target
        finally:
            target.stop()

    async def _run_job(
        self, plan: list[Fault], file: Path, duration_s: float, report: ChaosReport
    ) -> RunResult | None:
        """Run the job under the faults; return its results, or None if it did not end."""
        async with HyperscaleClient(directory=self._directory, connect_timeout=30.0) as client:
            cluster = read_cluster(self._directory)
            datacenters = cluster.datacenters if cluster.gates else ()
            job = await client.submit_job(file, duration=duration_s, target_datacenters=datacenters)
            self._began_s = time.monotonic()
            self._log(f"job {job} submitted")
            try:
                status = await self._inject(plan, client, job, duration_s)
            except asyncio.CancelledError:
                self._log("interrupted: all nodes are brought back, the job is cancelled")
                await self._complete(self._cancel(client, job))
                raise
            finally:
                await self._complete(self._injector.bring_back())
            report.check(status is not None, f"the job ended: {status or 'it did not'}")
            await _check_nodes(self._directory, report)
            if status is None:
                return None
            await _check_agreement(self._directory, job, report)
            await _check_ledgers(self._directory, report)
            result = await client.get_results(job)
        for note in result.warnings:
            self._say(f"note    {note}")
        return result

    async def _inject(
        self, plan: list[Fault], client: HyperscaleClient, job: str, duration_s: float
    ) -> str | None:
        """Inject the faults and wait for the job; return its status, or None if it did not end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for fault in plan:
                    injecting = self._injector.inject(fault, began_s=self._began_s)
                    tasks.create_task(injecting, name=fault.describe())
                ending = tasks.create_task(self._ended(client, job, duration_s), name="job")
        except* HyperscaleError as group:
            raise group.exceptions[0] from None
        return ending.result()

    async def _ended(self, client: HyperscaleClient, job: str, duration_s: float) -> str | None:
        try:
            final = await client.wait_for_completion(job, timeout=duration_s + END_S)
        except TimeoutError:
            return None
        except HyperscaleError as error:
            self._log(f"the job cannot be followed any more: {error}")
            return None
        self._log(f"the job ended: {final.status}{': ' * bool(final.reason)}{final.reason}")
        return final.status

    async def _cancel(self, client: HyperscaleClient, job: str) -> None:
        try:
            await client.cancel_job(job, "chaos was interrupted")
        except HyperscaleError as error:
            self._log(f"the job could not be cancelled: {error}")

    async def _complete(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end although this task is cancelled: the nodes must come back."""
        task = asyncio.ensure_future(work)
        is_cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                is_cancelled = True
                self._log("interrupted again: the nodes are brought back first")
        task.result()
        if is_cancelled:
            raise asyncio.CancelledError

    def _log(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.2f} s  {text}")


async def _nodes_not_ready(directory: Path, *, within_s: float) -> str:
    """Wait until all nodes are ready; return which ones are not, and why, after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while True:
        missing = await nodes_not_ready(read_cluster(directory))
        if not missing:
            return ""
        if time.monotonic() > deadline_s:
            return f"not ready: {', '.join(f'{name} ({missing[name]})' for name in missing)}"
        await asyncio.sleep(_POLL_S)


async def _check_nodes(directory: Path, report: ChaosReport) -> None:
    """Check that all nodes are ready again."""
    missing = await _nodes_not_ready(directory, within_s=_BACK_S)
    count = len(read_cluster(directory).nodes)
    report.check(not missing, f"nodes: {missing or f'all {count} are ready'}")


async def _check_agreement(directory: Path, job: str, report: ChaosReport) -> None:
    """Check that each gate, or each manager if there are no gates, reports the same end."""
    answers: dict[str, str] = {}
    cluster = read_cluster(directory)
    settings = {"security": {"secret_file": cluster.secret_file}}
    role = "gate" if cluster.gates else "manager"
    for node in cluster.entrances:
        managers, gates = ((), [node.tcp]) if cluster.gates else ([node.tcp], ())
        try:
            async with HyperscaleClient(
                managers, gate_tcp_addrs=gates, settings=settings
            ) as client:
                record = await client.get_record(job, within_s=_RECORD_S)
                view = (await client.get_job(job)).job
                answers[node.id] = f"{view.status.value} {hash(record)}"
        except HyperscaleError as error:
            answers[node.id] = f"no answer: {error}"
    same = len(set(answers.values())) == 1
    what = f"every {role} reports the same end" if same else f"{role}s disagree: {answers}"
    report.check(same, f"job: {what}")


async def _check_ledgers(directory: Path, report: ChaosReport) -> None:
    """Check the ledger of the gates and of each datacenter."""
    cluster = read_cluster(directory)
    if cluster.gates:
        await _check_ledger(cluster, cluster.gates[0], "ledger of the gates", report)
    for name in cluster.datacenters:
        manager = next(node for node in cluster.managers if node.datacenter == name)
        which = f"ledger of {name}" if cluster.gates else "ledger"
        await _check_ledger(cluster, manager, which, report)


async def _check_ledger(
    cluster: ClusterFile, node: ClusterNode, which: str, report: ChaosReport
) -> None:
    """Check that all replicas of each group are equal; wait for replicas that catch up."""
    config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
    host, port = split_address(node.tcp)
    deadline_s = time.monotonic() + _BACK_S
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
    report.check(not problems, f"{which}: {what}")


def _check_requests(result: RunResult, counts: dict[str, Any], report: ChaosReport) -> None:
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


def _check_connections(
    result: RunResult, counts: dict[str, Any], plan: Sequence[Fault], report: ChaosReport
) -> None:
    """Check that there were never more connections than virtual users.

    A paused executor keeps its connections, though it sends nothing over them.
    """
    peak = counts["connections"]["peak"]
    paused = {node for each in plan if each.kind is FaultKind.PAUSE_ALL for node in each.nodes}
    most = result.workflows[0].vus + _VUS_PER_WORKER * len(paused)
    report.check(peak <= most, f"connections: at most {peak} at once, {most} allowed")


def _read_counts(target_url: str) -> dict[str, Any]:
    """Return what the target has counted; raise `InputError` if it does not answer in JSON."""
    answer = _request(target_url, "/counts", "GET")
    try:
        counts: dict[str, Any] = json.loads(answer)
    except ValueError as error:
        what = "does not answer with its counts in JSON"
        raise InputError(f"--target: {target_url} {what}: {error}", hint=_TARGET_HINT) from error
    return counts


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
