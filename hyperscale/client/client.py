"""`HyperscaleClient`: submit jobs to a cluster, follow them, get their results.

    async with HyperscaleClient(manager_tcp_addrs=["127.0.0.1:9000"]) as client:
        job = await client.submit_job([Shop], on_progress_update=print)
        final = await client.wait_for_completion(job)

The client survives the loss of any manager it talks to. It repeats a submission with its key
until the job is accepted or refused, so a key makes one job.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

from hyperscale.client.cluster_connection import ClusterConnection, UnknownJobError
from hyperscale.client.cluster_file import read_cluster
from hyperscale.client.datacenters import change_datacenter, route_job, route_of
from hyperscale.client.inputs import (
    across_of,
    addresses_of,
    check_callbacks,
    checked_job,
    checked_key,
    checked_limit,
    checked_names,
    checked_reason,
    checked_text,
    entrances_of,
    options_of,
    placed_plan,
)
from hyperscale.client.load_changes import JobLoadControl
from hyperscale.client.manager_connections import Address, NotAllowedError
from hyperscale.client.messages import (
    CancelJob,
    CancelJobReply,
    DrainNode,
    DrainNodeReply,
    ListJobs,
    ListJobsReply,
    ListWorkers,
    ListWorkersReply,
    SubmitJob,
    WatchJobUpdate,
)
from hyperscale.client.results import result_of
from hyperscale.client.submission import JobSubmission, Package, check_datacenters, submit
from hyperscale.client.updates import (
    CancelResult,
    JobFinalResult,
    JobStatusPush,
    WorkflowResultPush,
    call_back,
    final_of,
    results_in,
    status_of,
)
from hyperscale.client.watch import PATIENCE_S, RECORD_S, fetch_job, fetch_record, follow_job
from hyperscale.config import parse_duration_s
from hyperscale.config.addresses import DEFAULT_PORT
from hyperscale.config.loading import NodeSettings, node_config
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, RunError
from hyperscale.gates.datacenters.registry import DatacenterState
from hyperscale.gates.messages import (
    DatacenterRow,
    ListDatacenters,
    ListDatacentersReply,
    RouteJobReply,
)
from hyperscale.jobs.committed.events import Code
from hyperscale.jobs.committed.state import JOB_ENDS
from hyperscale.ledger.store import BEFORE_FIRST
from hyperscale.reporting.results import RunResult
from hyperscale.wire.errors import RemoteError, RemoteErrorCode

SUBMIT_S = 60.0
CONNECT_S = 3.0
"""How long the client tries while no manager can be reached at all."""
_STATUS_S = 10.0

if TYPE_CHECKING:  # a client that only asks questions does not load what builds runs
    from hyperscale.runner.local import Given

    Work = str | Path | Iterable[Given | tuple[Iterable[str], Given]]


class HyperscaleClient(JobLoadControl):
    """A client of one cluster, in one event loop, for any number of jobs.

    Use it as an async context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        manager_tcp_addrs: Sequence[str | Address] = (),
        *,
        gate_tcp_addrs: Sequence[str | Address] = (),
        directory: str | Path | None = None,
        settings: NodeSettings = None,
        connect_timeout: str | float = CONNECT_S,
        on_trouble: Callable[[str], None] = lambda _: None,
        name: str = "",
        rng: Random | None = None,
    ) -> None:
        """`directory`: that of a `hyperscale cluster up`, with its addresses and its secret.
        `settings`: other tables of a node's configuration, such as its secret or certificates.
        `on_trouble` is called with a sentence that says what the client waits for, while it
        waits. `rng` chooses the order in which managers are asked."""
        self.on_trouble = on_trouble
        self.has_gates = bool(gate_tcp_addrs)
        addresses = entrances_of(gate_tcp_addrs, manager_tcp_addrs)
        config, tables = _settings_of(settings)
        if directory is not None:
            cluster = read_cluster(Path(directory))
            self.has_gates = self.has_gates or bool(cluster.gates and not addresses)
            addresses = addresses or addresses_of([node.tcp for node in cluster.entrances])
            if config is None and not tables.get("security"):
                tables["security"] = {"secret_file": cluster.secret_file}
        self._cluster = ClusterConnection(
            config or node_config("manager", tables),
            addresses or [("127.0.0.1", DEFAULT_PORT)],
            name=name,
            patience_s=parse_duration_s(connect_timeout, where="connect_timeout"),
            rng=rng or Random(),  # noqa: S311  for an order and for jitter
            on_trouble=self._report,
        )
        self._known_jobs: set[str] = set()  # jobs that a manager has confirmed to exist

    def _report(self, trouble: str) -> None:
        self.on_trouble(trouble)  # the attribute may be replaced at any time

    async def start(self) -> None:
        """Get ready to ask. No manager is dialled before the first question."""
        await self._cluster.open()

    async def stop(self) -> None:
        """Close all connections. Jobs go on."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def submit_job(
        self,
        job: "JobSubmission | Work | Package",
        *,
        test_name: str = "",
        vus: int | None = None,
        duration: str | float | None = None,
        only: Sequence[str] = (),
        params: Mapping[str, object] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109  of the job, not of this call
        dispatch_timeout: str | float | None = None,
        key: str = "",
        target_datacenters: Sequence[str] = (),
        datacenter_count: int = 1,
        fallback: bool = False,
        on_datacenter_lost: str = "best_effort",
        vus_per_datacenter: bool = False,
        start_timeout: str | float = 30.0,
        lost_after: str | float = 120.0,
        spill_over: str | float | None = None,
        constraints: Mapping[str, str | Sequence[str]] | None = None,
        spread: str | None = None,
        on_isolation: str = "stop",
        log_level: str = "info",
        static: bool = True,
        report_from: str = "client",
        report: Sequence[str] = (),
        by: str = "",
        submit_timeout: str | float = SUBMIT_S,
        on_status_update: Callable[[JobStatusPush], Any] | None = None,
        on_progress_update: Callable[..., Any] | None = None,
        on_workflow_result: Callable[[WorkflowResultPush], Any] | None = None,
    ) -> str:
        """Submit a test file or workflows (as `LocalRunner` takes them); return the job's id.

        A `JobSubmission` holds the same options in one object. Submitting the same `key` again
        returns the same job; without a key, each call makes a new job. `params` has the values of
        the test's parameters (`Param`), by name.

        Through gates, `target_datacenters` names where the job runs; without it, gates choose
        `datacenter_count` datacenters. Named ones are replaced by others only with `fallback`. If
        a datacenter does not complete, the others go on (`on_datacenter_lost="best_effort"`) or
        are stopped ("all_or_nothing"). Virtual users and iterations are split over datacenters,
        unless `vus_per_datacenter`. After `start_timeout` datacenters that are ready start without
        the others; `lost_after` its own deadline, a silent datacenter is given up. A part that
        waits in a queue for longer than `spill_over` goes to another datacenter.

        `constraints` are labels that workers must have, in addition to those of the workflows, and
        `spread` is a label over whose values each workflow is spread evenly.

        With `report_from="manager"` the leader of the job, a manager or a gate, sends the result to
        the reporters of its own configuration: to those that `report` names, or to all.

        While the cluster has no room for another job, the client tries again until
        `submit_timeout`. Callbacks may be coroutine functions.
        """
        if isinstance(job, JobSubmission):
            chosen = job
        else:
            given = JobSubmission(
                test_name=test_name,
                vus=vus,
                duration=duration,
                only=only,
                params=params,
                timeout=timeout,
                dispatch_timeout=dispatch_timeout,
                key=key,
                target_datacenters=target_datacenters,
                datacenter_count=datacenter_count,
                fallback=fallback,
                on_datacenter_lost=on_datacenter_lost,
                vus_per_datacenter=vus_per_datacenter,
                start_timeout=start_timeout,
                lost_after=lost_after,
                spill_over=spill_over,
                constraints=constraints,
                spread=spread,
                on_isolation=on_isolation,
                log_level=log_level,
                static=static,
                report_from=report_from,
                report=report,
                by=by,
            )
            chosen = _submission_of(job, given)
        check_callbacks(
            on_status_update=on_status_update,
            on_progress_update=on_progress_update,
            on_workflow_result=on_workflow_result,
        )
        options = options_of(chosen)
        datacenters = checked_names(chosen.target_datacenters, where="target_datacenters")
        key = checked_key(chosen.key or secrets.token_urlsafe(24))
        package = job if isinstance(job, Package) else await asyncio.to_thread(_package, chosen)
        across = across_of(chosen, datacenters) if self.has_gates else None
        if across is None:
            await check_datacenters(self._cluster, datacenters)
        within_s = parse_duration_s(submit_timeout, where="submit_timeout")
        submission = SubmitJob(
            key=key,
            plan=placed_plan(package.plan, chosen),
            bundle=package.sha256,
            options=options,
            by=chosen.by,
            secrets=package.secrets,
            across=across,
        )
        job_id = await submit(self._cluster, submission, package, within_s=within_s)
        self._known_jobs.add(job_id)
        if on_status_update or on_progress_update or on_workflow_result:
            calling = call_back(
                self.follow_job(job_id),
                self._final_result,
                on_status=on_status_update,
                on_progress=on_progress_update,
                on_result=on_workflow_result,
            )
            self._cluster.tasks.spawn_request(calling, f"callbacks:{job_id}")
        return job_id

    async def get_job_status(self, job_id: str) -> JobStatusPush:
        """Return the job's state now; raise `InputError` if there is no such job."""
        news = await self.get_job(job_id)
        if news.job.status in JOB_ENDS:
            # No manager has the record, or it is not for this client: the status is without it.
            with suppress(RunError, NotAllowedError):
                result = await self.get_results(job_id, within_s=_STATUS_S)
                return final_of(result, news.job).as_status()
        return status_of(news)

    async def get_job(self, job_id: str) -> WatchJobUpdate:
        """Return all that managers know about a job now, without following it."""
        return await fetch_job(self._cluster, checked_job(job_id))

    async def cancel_job(self, job_id: str, reason: str = "", *, by: str = "") -> CancelResult:
        """Cancel a job. A job that has ended keeps its status; cancelling twice is harmless."""
        job_id = checked_job(job_id)
        reason = checked_reason(reason) or "cancelled by its user"
        cancel = CancelJob(job=job_id, reason=reason, by=by)
        reply = await self._cluster.ask_about(job_id, cancel, CancelJobReply)
        if not reply.accepted and reply.code is Code.UNKNOWN_JOB:
            raise UnknownJobError(job_id)
        if not reply.accepted and reply.status is None:
            raise RunError(f"{job_id} cannot be cancelled: {reply.error or reply.code.value}")
        status = "" if reply.status is None else reply.status.value
        return CancelResult(job_id=job_id, accepted=reply.accepted, status=status)

    async def get_jobs(self, *, limit: int = 100, live_only: bool = False) -> ListJobsReply:
        """Return the jobs of the cluster that have not ended, or ended lately, newest first."""
        question = ListJobs(limit=checked_limit(limit), live_only=live_only)
        return await self._cluster.ask(question, ListJobsReply)

    async def get_ended_jobs(
        self, *, since_ms: int = 0, limit: int = 100, after: tuple[int, int, int] = BEFORE_FIRST
    ) -> ListJobsReply:
        """Return jobs that ended since a date, oldest first; `after`: that of the last page."""
        asked = ListJobs(limit=checked_limit(limit), since_ms=since_ms, after=after)
        return await self._cluster.ask(asked, ListJobsReply)

    async def list_datacenters(self) -> list[DatacenterRow]:
        """Return the datacenters that the gates know, by name, with health and capacity."""
        return (await self.get_datacenter_list()).datacenters

    async def get_datacenter_list(self) -> ListDatacentersReply:
        """Return the datacenters, and warnings about the gates themselves."""
        self._require_gates()
        return await self._cluster.ask(ListDatacenters(), ListDatacentersReply)

    async def change_datacenter(
        self, name: str, state: DatacenterState, *, force: bool = False
    ) -> None:
        """Drain, resume or remove a datacenter; raise `InputError` if there is none of the name,
        `RunError` if the gates refuse."""
        self._require_gates()
        await change_datacenter(self._cluster, name, state, force=force)

    async def route_job(
        self, job: "JobSubmission | Work | Package", *, key: str = "", **options: Any
    ) -> RouteJobReply:
        """Return where a job would go now, as the gate decides that would own it. `options` are
        those of `submit_job` about datacenters."""
        self._require_gates()
        chosen = JobSubmission(key=key, **options)
        package = job
        if not isinstance(job, Package):
            package = await asyncio.to_thread(_package, _submission_of(job, chosen))
        assert isinstance(package, Package)
        return await route_job(self._cluster, package, chosen)

    async def get_route(self, job_id: str) -> RouteJobReply:
        """Return where a job went, and what the gates knew when they chose."""
        self._require_gates()
        return await route_of(self._cluster, job_id)

    def _require_gates(self) -> None:
        if not self.has_gates:
            raise InputError("only gates know datacenters", hint="give gate_tcp_addrs")

    async def get_workers(self) -> ListWorkersReply:
        """Return the workers of the cluster and the parts they run."""
        return await self._cluster.ask(ListWorkers(), ListWorkersReply)

    async def drain_node(self, node: str) -> DrainNodeReply:
        """Take a node out of service; call it again to see how much work the node still has. Raise
        `InputError` if there is no such node, `RunError` if the cluster needs it."""
        node = checked_text(node, where="node")
        try:
            reply = await self._cluster.ask(DrainNode(node=node), DrainNodeReply)
        except RemoteError as error:
            if error.code is not RemoteErrorCode.UNKNOWN_NODE:
                raise
            raise InputError(
                f"there is no manager and no worker {node!r} in this cluster",
                hint="'hyperscale workers' and 'hyperscale ledger status' name them",
            ) from error
        if reply.refused:
            raise RunError(reply.refused, hint=reply.hint)
        return reply

    async def get_datacenters(self) -> list[str]:
        """Return the datacenters this client can submit to."""
        if self.has_gates:
            return [row.datacenter for row in await self.list_datacenters()]
        return await self._cluster.datacenters()

    async def follow_job(
        self, job_id: str, *, is_known: bool = False, patience_s: float = PATIENCE_S
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        """Yield the state of a job twice a second, until it has ended.

        `is_known`: the job exists, so a manager that does not know it lags behind.
        `patience_s`: how long managers may be unreachable while a known job is followed.
        """
        job_id = checked_job(job_id)
        updates = follow_job(
            self._cluster.managers,
            job_id,
            is_known=is_known or job_id in self._known_jobs,
            patience_s=patience_s,
            first_patience_s=self._cluster.patience_s,
        )
        try:
            async for news in updates:
                self._known_jobs.add(job_id)
                yield news
        finally:
            await updates.aclose()

    async def stream_workflow_results(
        self, job_id: str
    ) -> AsyncGenerator[WorkflowResultPush, None]:
        """Yield the result of each workflow when it ends, also of those that ended before.

        The stream ends with the job, whatever its status is."""
        yielded: set[str] = set()
        async for news in self.follow_job(job_id):
            pushes = results_in(news)
            if news.job.status in JOB_ENDS:
                results = (await self._final_result(news)).workflow_results
                pushes = (WorkflowResultPush.of(job_id, result) for result in results)
            for push in pushes:
                if push.workflow_id not in yielded:
                    yielded.add(push.workflow_id)
                    yield push

    async def wait_for_completion(
        self,
        job_id: str,
        timeout: str | float | None = None,  # noqa: ASYNC109  of the whole wait
    ) -> JobFinalResult:
        """Return the final result; raise `TimeoutError` after `timeout` (the job goes on)."""
        limit_s = None if timeout is None else parse_duration_s(timeout, where="timeout")
        async with asyncio.timeout(limit_s):
            last: WatchJobUpdate | None = None
            async for news in self.follow_job(job_id):
                last = news
            assert last is not None  # the stream ends with an update of a job that has ended
            return await self._final_result(last)

    async def get_results(self, job_id: str, *, within_s: float = RECORD_S) -> RunResult:
        """Return the results of a job that has ended, as `hyperscale run` would write them."""
        return result_of(await self.get_record(job_id, within_s=within_s))

    async def get_record(self, job_id: str, *, within_s: float = RECORD_S) -> bytes:
        """Return the final record of a job that has ended (`result_of` decodes it)."""
        return await fetch_record(self._cluster, checked_job(job_id), within_s=within_s)

    async def _final_result(self, news: WatchJobUpdate) -> JobFinalResult:
        return final_of(await self.get_results(news.job.job), news.job)


def _settings_of(settings: object) -> tuple[NodeConfig | None, dict[str, Any]]:
    """Return the configuration, or the tables to make one of."""
    if settings is None or isinstance(settings, NodeConfig):
        return settings, {}
    if isinstance(settings, Mapping):
        return None, dict(settings)
    raise InputError(
        f"settings: {settings!r} is no configuration",
        hint='as {"security": {"secret_file": "cluster.secret"}}',
    )


def _package(job: JobSubmission) -> Package:
    from hyperscale.client.package import package_of  # noqa: PLC0415  it loads the test runner

    return package_of(job)


def _submission_of(job: "JobSubmission | Work | Package", options: JobSubmission) -> JobSubmission:
    """Return a submission of a test file or of workflows, with these options."""
    if isinstance(job, JobSubmission):
        return job
    if isinstance(job, str | Path):
        return replace(options, file=job)
    return options if isinstance(job, Package) else replace(options, workflows=job)
