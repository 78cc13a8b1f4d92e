"""`hyperscale chaos`: run a job on a local cluster, inject faults, then check what must hold."""

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperscale._native import Target
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_file import read_cluster
from hyperscale.client.package import package_file
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.lab.chaos_checks import (
    VUS_PER_WORKER,
    ChaosReport,
    check_agreement,
    check_connections,
    check_ledger,
    check_nodes,
    check_requests,
    nodes_not_ready,
    read_counts,
    reset_counts,
)
from hyperscale.lab.faults import Fault, FaultInjector, make_plan
from hyperscale.reporting.results import RunResult

READY_S = 30.0
"""How long nodes may take to be ready before the first fault."""
END_S = 90.0
"""How long after its load a job may take to end."""

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
                check_requests(result, counts, report)
                check_connections(result, counts, plan, report)
            return report
        result = await self._run_job(plan, file, duration_s, report)
        if not target_url:
            self._say("note    requests are not checked: --target URL names the target")
        elif result is not None:
            check_requests(result, await asyncio.to_thread(_counts_after, target_url), report)
        return report

    async def _check_inputs(self, file: Path | None, target_url: str) -> None:
        """Raise if the cluster, the test file or the target cannot be used."""
        async with HyperscaleClient(directory=self._directory, on_trouble=self._say) as client:
            await client.get_workers()  # fails at once if the cluster is gone
        missing = await nodes_not_ready(self._directory, within_s=0.0)
        if missing:
            self._say(f"{missing}; waiting for up to {READY_S:g} s")
            missing = await nodes_not_ready(self._directory, within_s=READY_S)
        if missing:
            raise RunError(
                f"chaos needs a cluster whose nodes are all ready; {missing}",
                hint=f"'hyperscale cluster start NODE --dir {shlex.quote(str(self._directory))}' "
                "restarts a node that has ended or a worker that was drained",
            )
        if file is not None:
            await asyncio.to_thread(package_file, file)  # raises what is wrong with the file
            if target_url:
                await asyncio.to_thread(reset_counts, target_url)
                await asyncio.to_thread(read_counts, target_url)

    def _make_plan(self, duration_s: float) -> list[Fault]:
        cluster = read_cluster(self._directory)
        managers = [node.id for node in cluster.managers]
        workers = [node.id for node in cluster.workers]
        plan = make_plan(self._seed, managers, workers, duration_s)
        count = "1 fault" if len(plan) == 1 else f"{len(plan)} faults"
        self._say(f"seed {self._seed}, {duration_s:g} s of load, {count}{':' * bool(plan)}")
        for fault in plan:
            self._say(f"  {fault.describe()}")
        return plan

    @contextmanager
    def _built_in_load(self, duration_s: float) -> Iterator[tuple[Path, Target]]:
        """A target server, and a test file that sends to it."""
        vus = VUS_PER_WORKER * max(1, len(read_cluster(self._directory).workers))
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
            job = await client.submit_job(file, duration=duration_s)
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
            await check_nodes(self._directory, report)
            if status is None:
                return None
            await check_agreement(self._directory, job, report)
            await check_ledger(self._directory, report)
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


def _counts_after(target_url: str) -> dict[str, Any]:
    try:
        return read_counts(target_url)
    except InputError as error:  # the target answered before the job, so the flag was right
        raise RunError(error.message) from error
