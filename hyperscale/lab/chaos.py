"""Trouble for a local cluster while a job runs, and what must hold afterwards.

The job must end once, the same for everyone; every request the target saw must be reported or
within a stated gap; nodes must be back and replicas equal.
"""

import asyncio
import json
import os
import shlex
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from hyperscale._native import Target
from hyperscale.client.client import HyperscaleClient
from hyperscale.client.cluster_file import NodeRow, read_cluster
from hyperscale.client.package import package_file
from hyperscale.client.query import ask
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.lab.cluster import why_not_ready
from hyperscale.lab.control import start_again
from hyperscale.lab.fault_plan import Kind, Trouble, make_plan
from hyperscale.nodes.ledger.operator_messages import Verify, VerifyReply
from hyperscale.reporting.results import RunResult

READY_S = 30.0
"""How long a cluster may take to be whole before there is trouble."""
BACK_S = 60.0
END_S = 90.0
"""How long after its load a job may take to end."""
_VUS_PER_WORKER = 4
_STOP_S = 20.0
_LOOK_S = 0.1

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
class Verdict:
    """What was checked, and what does not hold."""

    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def check(self, holds: bool, what: str) -> None:
        (self.held if holds else self.broken).append(what)


class Chaos:
    """One seed: the job, its trouble, the verdict. `say` gets lines for people."""

    def __init__(self, directory: Path, *, seed: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._seed = seed
        self._say = say
        self._ours: dict[str, int] = {}  # nodes that are down because of us: the process that was
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._began_s = 0.0

    async def run(
        self, *, duration_s: float, file: Path | None = None, target_url: str = ""
    ) -> Verdict:
        """Cancelled, it brings the cluster back, ends its job and is over. Files run for
        `duration_s` too."""
        cluster = read_cluster(self._directory)
        async with HyperscaleClient(directory=self._directory, on_trouble=self._say) as client:
            await client.get_workers()  # a cluster that is gone is told at once
        missing = await self._not_ready(within_s=0.0)
        if missing:
            self._say(f"{missing}; waiting for up to {READY_S:g} s")
            missing = await self._not_ready(within_s=READY_S)
        if missing:
            raise RunError(
                f"trouble is for a cluster that is whole; {missing}",
                hint=f"'hyperscale cluster start NODE --dir {shlex.quote(str(self._directory))}' "
                "starts a node that has ended, and a drained worker takes work again after that",
            )
        if file is not None:
            await asyncio.to_thread(package_file, file)  # so is what is wrong with the file
            if target_url:
                await asyncio.to_thread(_reset, target_url)
                await asyncio.to_thread(_counts, target_url)
        managers = [node.id for node in cluster.managers]
        workers = [node.id for node in cluster.workers]
        plan = make_plan(self._seed, managers, workers, duration_s)
        count = "1 trouble" if len(plan) == 1 else f"{len(plan)} troubles"
        self._say(f"seed {self._seed}, {duration_s:g} s of load, {count}{':' * bool(plan)}")
        for trouble in plan:
            self._say(f"  {trouble.describe()}")
        vus = _VUS_PER_WORKER * max(1, len(workers))
        target = None
        if file is None:
            target = Target("127.0.0.1", 0, 1)
            file = self._directory / f"chaos-{self._seed}.py"
        try:
            if target is not None:
                _write(file, _LOAD.format(vus=vus, duration_s=duration_s, port=target.port))
            return await self._run(plan, file, duration_s, target=target, target_url=target_url)
        finally:
            if target is not None:
                target.stop()

    async def _run(
        self,
        plan: list[Trouble],
        file: Path,
        duration_s: float,
        *,
        target: Target | None,
        target_url: str,
    ) -> Verdict:
        verdict = Verdict()
        async with HyperscaleClient(directory=self._directory, connect_timeout=30.0) as client:
            job = await client.submit_job(file, duration=duration_s)
            self._began_s = time.monotonic()
            self._event(f"job {job} submitted")
            try:
                status = await self._carry_out(plan, client, job, duration_s)
            except asyncio.CancelledError:
                self._event("interrupted: all nodes are brought back, the job is cancelled")
                await self._to_the_end(self._cancel(client, job))
                raise
            finally:
                await self._to_the_end(self._bring_back())
            verdict.check(status is not None, f"the job ended: {status or 'it did not'}")
            await self._check_nodes(verdict)
            if status is None:
                return verdict
            await self._check_agreement(job, verdict)
            await self._check_ledger(verdict)
            result = await client.get_results(job)
        for note in result.warnings:
            self._say(f"note    {note}")
        counts = None
        if target is not None:
            counts = json.loads(target.counts())
        elif target_url:
            try:
                counts = await asyncio.to_thread(_counts, target_url)
            except InputError as error:  # it did when this began
                raise RunError(error.message) from error
        if counts is None:
            self._say("note    no target was asked what it has seen: --target URL names one")
        else:
            _check_counts(result, counts, verdict)
        if target is not None and counts is not None:
            _check_connections(counts, result.workflows[0].vus, plan, verdict)
        return verdict

    # -- trouble --------------------------------------------------------------------------

    async def _carry_out(
        self, plan: list[Trouble], client: HyperscaleClient, job: str, duration_s: float
    ) -> str | None:
        """How the job ended, if it did, when the last trouble is over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for trouble in plan:
                    tasks.create_task(self._make(trouble), name=trouble.describe())
                ending = tasks.create_task(self._ended(client, job, duration_s), name="job")
        except* HyperscaleError as group:
            raise group.exceptions[0] from None
        return ending.result()

    async def _make(self, trouble: Trouble) -> None:
        await asyncio.sleep(max(0.0, self._began_s + trouble.at_s - time.monotonic()))
        async with self._busy[trouble.node]:  # one that takes long to stop is in trouble enough
            node = read_cluster(self._directory).node(trouble.node)
            match trouble.kind:
                case Kind.PAUSE | Kind.PAUSE_ALL:
                    await self._pause(node, trouble)
                case Kind.KILL | Kind.RESTART:
                    await self._end(node, trouble)

    async def _pause(self, node: NodeRow, trouble: Trouble) -> None:
        pids = [node.pid]
        if trouble.kind is Kind.PAUSE_ALL:
            pids += children_of(node.pid)
        self._event(f"{node.id} paused, {len(pids)} processes")
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(trouble.away_s)
        finally:
            for pid in reversed(pids):
                _signal(pid, signal.SIGCONT)
        self._event(f"{node.id} goes on")

    async def _end(self, node: NodeRow, trouble: Trouble) -> None:
        self._ours[node.id] = node.pid
        is_kill = trouble.kind is Kind.KILL
        self._event(f"{node.id} {'killed' if is_kill else 'told to stop'}")
        _signal(node.pid, signal.SIGKILL if is_kill else signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_S
        while _is_alive(node.pid):
            if time.monotonic() > deadline_s:
                _signal(node.pid, signal.SIGKILL)
                self._event(f"{node.id} did not stop within {_STOP_S:g} s and was killed")
                deadline_s += _STOP_S
            await asyncio.sleep(0.02)
        await asyncio.sleep(trouble.away_s)
        await self._start(node.id)
        del self._ours[node.id]

    async def _start(self, node: str) -> None:
        """Asked again while its end has not been noticed; broken off, it may be back already."""
        deadline_s = time.monotonic() + _STOP_S + 10.0
        while True:
            try:
                pid = await asyncio.to_thread(start_again, self._directory, node)
            except RunError as error:
                if read_cluster(self._directory).node(node).pid != self._ours[node]:
                    return
                if time.monotonic() > deadline_s or "is running" not in error.message:
                    raise
                await asyncio.sleep(_LOOK_S)
            else:
                self._event(f"{node} started again, pid {pid}")
                return

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """However often it is cancelled meanwhile: the cluster is somebody's."""
        task = asyncio.ensure_future(work)
        is_cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                is_cancelled = True
                self._event("interrupted again: the nodes are brought back first")
        task.result()
        if is_cancelled:
            raise asyncio.CancelledError

    @staticmethod
    async def _cancel(client: HyperscaleClient, job: str) -> None:
        with suppress(HyperscaleError):
            await client.cancel_job(job, "chaos was interrupted")

    async def _bring_back(self) -> None:
        """Whoever is still down because of us, also when it was broken off."""
        for node in sorted(self._ours):
            with suppress(RunError):
                await self._start(node)

    async def _ended(self, client: HyperscaleClient, job: str, duration_s: float) -> str | None:
        try:
            final = await client.wait_for_completion(job, timeout=duration_s + END_S)
        except TimeoutError:
            return None
        except HyperscaleError as error:
            self._event(f"the job cannot be followed any more: {error}")
            return None
        self._event(f"the job ended: {final.status}{': ' * bool(final.reason)}{final.reason}")
        return final.status

    # -- what must hold -------------------------------------------------------------------

    async def _check_nodes(self, verdict: Verdict) -> None:
        missing = await self._not_ready(within_s=BACK_S)
        count = len(read_cluster(self._directory).nodes)
        verdict.check(not missing, f"nodes: {missing or f'all {count} are ready'}")

    async def _not_ready(self, *, within_s: float) -> str:
        """Who is not, and why, if that lasts."""
        deadline_s = time.monotonic() + within_s
        while True:
            nodes = read_cluster(self._directory).nodes
            missing = {node.id: why for node in nodes if (why := why_not_ready(node))}
            if not missing:
                return ""
            if time.monotonic() > deadline_s:
                return f"not ready: {', '.join(f'{name} ({missing[name]})' for name in missing)}"
            await asyncio.sleep(_LOOK_S)

    async def _check_agreement(self, job: str, verdict: Verdict) -> None:
        """Each manager tells the same end of the job."""
        said: dict[str, str] = {}
        cluster = read_cluster(self._directory)
        settings = {"security": {"secret_file": cluster.secret_file}}
        for manager in cluster.managers:
            try:
                async with HyperscaleClient([manager.tcp], settings=settings) as client:
                    record = await client.get_record(job, within_s=30.0)
                    view = (await client.get_job(job)).job
                    said[manager.id] = f"{view.status.value} {hash(record)}"
            except HyperscaleError as error:
                said[manager.id] = f"no answer: {error}"
        same = len(set(said.values())) == 1
        what = "every manager tells the same end" if same else f"managers disagree: {said}"
        verdict.check(same, f"job: {what}")

    async def _check_ledger(self, verdict: Verdict) -> None:
        cluster = read_cluster(self._directory)
        config = node_config("manager", {"security": {"secret_file": cluster.secret_file}})
        deadline_s = time.monotonic() + BACK_S
        while True:
            wrong: dict[int, list[str]] = {}
            groups: set[int] = set()
            try:
                host, port = split_address(cluster.managers[0].tcp)
                told = await ask(config, host, port, Verify(), VerifyReply, timeout_s=15.0)
                found: dict[int, set[str]] = {}
                for row in told.rows:
                    found.setdefault(row.group, set()).add(row.digest)
                    if not row.digest:
                        wrong.setdefault(row.group, []).append(f"{row.node}: {row.why_not}")
                groups = set(found)
                for group, digests in found.items():
                    if len(digests - {""}) > 1:
                        wrong[group] = ["replicas differ"]
            except RunError as error:
                wrong[0] = [error.message]
            differ = any("differ" in why for whys in wrong.values() for why in whys)
            if not wrong or differ or time.monotonic() > deadline_s:
                break
            await asyncio.sleep(1.0)  # replicas that were away catch up
        what = f"wrong: {wrong}" if wrong else f"replicas of {len(groups)} groups are equal"
        verdict.check(not wrong, f"ledger: {what}")

    def _event(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.2f} s  {text}")


def _check_counts(result: RunResult, counts: dict[str, int], verdict: Verdict) -> None:
    """`sent`, short by what was cut, is what the target must have seen at least."""
    sent = sum(step.sent for workflow in result.workflows for step in workflow.steps)
    cut = sum(step.cut for workflow in result.workflows for step in workflow.steps)
    gaps = sum(gap.requests_max for gap in result.gaps)
    total = counts["total"]
    verdict.check(
        sent - cut <= total <= sent + gaps,
        f"requests: reported {sent:,}{f' ({cut:,} cut)' if cut else ''}, target {total:,}, "
        f"gaps up to {gaps:,}",
    )


def _check_connections(
    counts: dict[str, dict[str, int]], vus: int, plan: list[Trouble], verdict: Verdict
) -> None:
    """A frozen executor keeps its connections, though it sends nothing on them."""
    peak = counts["connections"]["peak"]
    frozen = {each.node for each in plan if each.kind is Kind.PAUSE_ALL}
    most = vus + _VUS_PER_WORKER * len(frozen)
    verdict.check(peak <= most, f"connections: at most {peak} at once, asked for {most}")


def children_of(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_text("ascii", "replace")
                if int(stat.rpartition(")")[2].split()[1]) == pid:
                    found.append(int(name))
    return found


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _counts(target_url: str) -> dict[str, int]:
    answer = _ask_target(target_url, "/counts", "GET")
    try:
        found: dict[str, int] = json.loads(answer)
    except ValueError as error:
        raise InputError(
            f"--target: {target_url} does not say in JSON what it counted: {error}",
            hint="'hyperscale target' starts one that does, and prints its URL",
        ) from error
    return found


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise InputError(
            f"{file} cannot be written: {error.strerror}",
            hint="trouble is for a cluster of your own",
        ) from error


def _reset(target_url: str) -> None:
    _ask_target(target_url, "/counts/reset", "POST")


def _ask_target(url: str, path: str, method: str) -> bytes:
    try:
        request = Request(url.rstrip("/") + path, method=method)  # noqa: S310  its user gave it
        with urlopen(request, timeout=10) as answer:  # noqa: S310  as above
            body: bytes = answer.read()
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(
            f"--target: {url} cannot be asked what it counted: {getattr(error, 'reason', error)}",
            hint="'hyperscale target' starts one, and prints its URL",
        ) from error
    return body
