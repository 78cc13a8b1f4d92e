"""`HyperscaleClient`: submit jobs to a cluster, follow them, get their results.

    async with HyperscaleClient(manager_tcp_addrs=["127.0.0.1:9000"]) as client:
        job = await client.submit_job([Shop], on_progress_update=print)
        final = await client.wait_for_completion(job)

Survives the loss of any manager it talks to. A submission is repeated with its key until it is
known to be accepted or refused, so a job is made once.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from hyperscale.client.api import (
    Callbacks,
    CancelResult,
    JobFinalResult,
    JobStatusPush,
    JobSubmission,
    Package,
    WorkflowResultPush,
    called,
    final_of,
    progress_of,
    results_in,
    status_of,
)
from hyperscale.client.cluster_file import read_cluster
from hyperscale.client.inputs import (
    addresses_of,
    check_callbacks,
    checked_job,
    checked_key,
    checked_limit,
    checked_names,
    checked_reason,
    checked_text,
    options_of,
)
from hyperscale.client.manager_links import Address, Managers, NoManagerError
from hyperscale.client.messages import (
    NEEDS_BUNDLE,
    CancelJob,
    CancelJobReply,
    DrainNode,
    DrainNodeReply,
    GetJob,
    GetJobRecord,
    GetJobReply,
    ListJobs,
    ListJobsReply,
    ListWorkers,
    ListWorkersReply,
    SubmitJob,
    SubmitJobReply,
    WatchJobUpdate,
)
from hyperscale.client.results import result_of
from hyperscale.client.upload import upload
from hyperscale.client.watch import PATIENCE_S, follow_job, unknown_job
from hyperscale.config import parse_duration_s
from hyperscale.config.addresses import DEFAULT_PORT
from hyperscale.config.loading import NodeSettings, node_config
from hyperscale.config.schema import NodeConfig
from hyperscale.errors import InputError, InvariantError, RunError
from hyperscale.jobs.committed.events import Code, JobOptions
from hyperscale.jobs.committed.state import JOB_ENDS, JobView
from hyperscale.reporting.results import RunResult
from hyperscale.wire.credentials import VERSION, asking_role, incarnation_now, security_of
from hyperscale.wire.errors import CallError, RemoteError, RemoteErrorCode
from hyperscale.wire.messages import Chunk, Introduction
from hyperscale.wire.server import PeerServer, ServerLimits

ASK_S = 30.0
SUBMIT_S = 60.0
CONNECT_S = 3.0
"""How long it is tried while no manager can be reached at all."""
_HANDSHAKE_S = 3.0
_RECORD_S = 120.0
_STATUS_S = 10.0
_NO_RESULTS_YET = frozenset({RemoteErrorCode.UNKNOWN_JOB, RemoteErrorCode.NOT_ENDED})

_log = logging.getLogger("hyperscale.client")

_R = TypeVar("_R", bound=msgspec.Struct)

if TYPE_CHECKING:  # what makes runs is not loaded to ask a question
    from hyperscale.runner.local import Given

    Work = str | Path | Iterable[Given | tuple[Iterable[str], Given]]


class HyperscaleClient:
    """A client of one cluster. Start it, or enter it; one event loop, any number of jobs."""

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
    ) -> None:
        """`directory`: that of a `hyperscale cluster up`, with its addresses and its secret.
        `settings`: what else a node's configuration would hold, as its secret or certificates.
        `on_trouble` is told what is waited for, while nothing comes.
        """
        config: NodeConfig | None = None
        tables: dict[str, Any] = {}
        if isinstance(settings, NodeConfig):
            config = settings
        elif isinstance(settings, Mapping):
            tables = dict(settings)
        elif settings is not None:
            raise InputError(
                f"settings: {settings!r} is no configuration",
                hint='as {"security": {"secret_file": "cluster.secret"}}',
            )
        if gate_tcp_addrs:
            raise InputError(
                "gate_tcp_addrs: there are no gates yet", hint="give manager_tcp_addrs"
            )
        addresses = addresses_of(manager_tcp_addrs)
        if directory is not None:
            cluster = read_cluster(Path(directory))
            addresses = addresses or addresses_of([node.tcp for node in cluster.managers])
            if config is None and not tables.get("security"):
                tables["security"] = {"secret_file": cluster.secret_file}
        self._addresses = addresses or [("127.0.0.1", DEFAULT_PORT)]
        self._config = config or node_config("manager", tables)
        self._patience_s = parse_duration_s(connect_timeout, where="connect_timeout")
        self.on_trouble = on_trouble
        self._name = name or f"client-{secrets.token_hex(6)}"
        self._managers: Managers | None = None
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()  # jobs that are known to exist

    # -- lifetime -------------------------------------------------------------------------

    async def start(self) -> None:
        """Ready to ask. Nobody is dialled before there is something to say."""
        if self._life is not None:
            raise InvariantError("a client is started once", hint="make another for another life")
        opened: asyncio.Future[Managers] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(opened), name=self._name)
        either: list[asyncio.Future[Any]] = [self._life, opened]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await self._life  # raises why it did not open
        self._managers = opened.result()

    async def stop(self) -> None:
        """Leaves the cluster; jobs go on."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._stop.set()
        if self._life is not None:
            await self._life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _live(self, opened: "asyncio.Future[Managers]") -> None:
        node = self._config.node
        security = security_of(self._config)
        local = Introduction(
            cluster=node.cluster,
            environment=node.environment,
            role=asking_role(self._config),
            node_id=self._name,
            incarnation=incarnation_now(),
            version=VERSION,
        )
        limits = ServerLimits(handshake_s=_HANDSHAKE_S)
        async with PeerServer(local, security, limits=limits) as server:
            rng = Random()  # noqa: S311  for an order
            opened.set_result(Managers(server, self._addresses, rng, self._tell))
            await self._stop.wait()

    def _tell(self, trouble: str) -> None:
        self.on_trouble(trouble)

    @property
    def _asked(self) -> Managers:
        if self._managers is None:
            raise InvariantError("the client is not started", hint="await start() first")
        if self._stop.is_set():
            raise InvariantError("the client is stopped", hint="make another one")
        return self._managers

    # -- submitting -----------------------------------------------------------------------

    async def submit_job(
        self,
        job: "JobSubmission | Work | Package",
        *,
        test_name: str = "",
        vus: int | None = None,
        duration: str | float | None = None,
        only: Sequence[str] = (),
        timeout: str | float | None = None,  # noqa: ASYNC109  of the job, not of this call
        dispatch_timeout: str | float | None = None,
        key: str = "",
        target_datacenters: Sequence[str] = (),
        on_isolation: str = "stop",
        log_level: str = "info",
        static: bool = True,
        by: str = "",
        submit_timeout: str | float = SUBMIT_S,
        on_status_update: Callable[[JobStatusPush], Any] | None = None,
        on_progress_update: Callable[..., Any] | None = None,
        on_workflow_result: Callable[[WorkflowResultPush], Any] | None = None,
    ) -> str:
        """Submits a test file or workflows (as `LocalRunner` takes them); returns the job's id.

        A `JobSubmission` says the same in one object. The same `key` again is the same job
        again; without one, each call makes a new job. While the cluster has no room for another
        job it is tried again, for `submit_timeout`. Callbacks may be coroutine functions.
        """
        if isinstance(job, JobSubmission):
            chosen = job
        else:
            chosen = JobSubmission(
                workflows=job if not isinstance(job, str | Path | Package) else (),
                file=job if isinstance(job, str | Path) else None,
                test_name=test_name,
                vus=vus,
                duration=duration,
                only=only,
                timeout=timeout,
                dispatch_timeout=dispatch_timeout,
                key=key,
                target_datacenters=target_datacenters,
                on_isolation=on_isolation,
                log_level=log_level,
                static=static,
                by=by,
            )
        check_callbacks(
            on_status_update=on_status_update,
            on_progress_update=on_progress_update,
            on_workflow_result=on_workflow_result,
        )
        options = options_of(chosen)
        datacenters = checked_names(chosen.target_datacenters, where="target_datacenters")
        key = checked_key(chosen.key or secrets.token_urlsafe(24))
        package = job if isinstance(job, Package) else await asyncio.to_thread(_package, chosen)
        await self._check_datacenters(datacenters)
        within_s = parse_duration_s(submit_timeout, where="submit_timeout")
        ack = await self._submit(package, key, options, chosen.by, within_s=within_s)
        self._seen.add(ack.job)
        callbacks = Callbacks(on_status_update, on_progress_update, on_workflow_result)
        if callbacks.are_any:
            self._spawn(self._call_back(ack.job, callbacks), name=f"callbacks:{ack.job}")
        return ack.job

    async def _submit(
        self,
        package: Package,
        key: str,
        options: JobOptions,
        by: str,
        *,
        within_s: float,
    ) -> SubmitJobReply:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        submission = SubmitJob(
            key=key, plan=package.plan, bundle=package.sha256, options=options, by=by
        )
        size = len(msgspec.msgpack.encode(submission))
        if size > 15 * 1024 * 1024:
            raise InputError(f"the plan is {size / 2**20:.1f} MiB, over the limit of 15 MiB")
        while True:
            left_s = max(0.1, deadline_s - loop.time())
            ack = await self._ask(submission, SubmitJobReply, within_s=left_s)
            if ack.accepted:
                return ack
            if ack.code == NEEDS_BUNDLE:
                began_s = loop.time()
                if began_s >= deadline_s:
                    raise RunError(f"no manager keeps the bundle; it was tried for {within_s:g} s")
                await upload(self._asked, package, within_s=within_s)
                deadline_s += loop.time() - began_s  # a slow network takes its time
                continue
            why, _, hint = (ack.error or ack.code).removesuffix(")").partition(" (hint: ")
            if ack.code != Code.CAPACITY.value:
                raise InputError(f"the job was refused: {why}", hint=hint)
            if loop.time() + ack.retry_after_s >= deadline_s:
                raise RunError(
                    f"the cluster has no room for another job: {why}",
                    hint=f"try again later; it was tried for {within_s:g} s",
                )
            self.on_trouble(f"the cluster has no room for another job yet: {why}")
            await asyncio.sleep(max(0.1, ack.retry_after_s))

    async def _check_datacenters(self, wanted: Sequence[str]) -> None:
        if not wanted:
            return
        known = await self.get_datacenters()
        unknown = sorted(set(wanted) - set(known))
        if unknown:
            raise InputError(
                f"target_datacenters: there is no {', '.join(unknown)}",
                hint=f"this cluster has {', '.join(known)}",
            )

    # -- asking ---------------------------------------------------------------------------

    async def get_job_status(self, job_id: str) -> JobStatusPush:
        """How a job is doing now, or what it came to. `InputError` if there is none of that
        name."""
        news = await self.job_news(job_id)
        if news.job.status in JOB_ENDS:
            with suppress(RunError):  # then it is told without its numbers
                result = await self.get_results(job_id, within_s=_STATUS_S)
                return final_of(result, news.job).as_status()
        return status_of(news)

    async def job_news(self, job_id: str) -> WatchJobUpdate:
        """All that is known of a job without following it."""
        job_id = checked_job(job_id)
        told = await self._ask_about(job_id, GetJob(job=job_id), GetJobReply)
        if told.job is None:
            raise unknown_job(job_id)
        return WatchJobUpdate(job=told.job, live=told.live)

    async def cancel_job(self, job_id: str, reason: str = "", *, by: str = "") -> CancelResult:
        """Ends a job early. Again is harmless; one that has ended stays what it became."""
        job_id = checked_job(job_id)
        reason = checked_reason(reason) or "cancelled by its user"
        cancel = CancelJob(job=job_id, reason=reason, by=by)
        told = await self._ask_about(job_id, cancel, CancelJobReply)
        if not told.accepted and told.code == Code.UNKNOWN_JOB.value:
            raise unknown_job(job_id)
        if not told.accepted and not told.status:
            raise RunError(f"{job_id} cannot be cancelled: {told.error or told.code}")
        return CancelResult(job_id=job_id, accepted=told.accepted, status=told.status)

    async def get_jobs(self, *, limit: int = 100, live_only: bool = False) -> ListJobsReply:
        """The jobs of the cluster, newest first."""
        asked = ListJobs(limit=checked_limit(limit), live_only=live_only)
        return await self._ask(asked, ListJobsReply)

    async def get_workers(self) -> ListWorkersReply:
        return await self._ask(ListWorkers(), ListWorkersReply)

    async def drain_node(self, node: str) -> DrainNodeReply:
        """Takes a node out of service; ask again for how much is left of its work.

        `InputError` if there is none of that name, `RunError` if it cannot be spared.
        """
        node = checked_text(node, where="node")
        try:
            told = await self._ask(DrainNode(node=node), DrainNodeReply)
        except RemoteError as error:
            if error.code is RemoteErrorCode.UNKNOWN_NODE:
                raise InputError(
                    f"there is no manager and no worker {node!r} in this cluster",
                    hint="'hyperscale workers' and 'hyperscale ledger status' name them",
                ) from error
            raise
        if told.refused:
            raise RunError(told.refused, hint=told.hint)
        return told

    async def get_datacenters(self) -> list[str]:
        """The datacenters this client can submit to."""
        await self._asked.connected()
        return self._asked.datacenters

    # -- following ------------------------------------------------------------------------

    async def follow_job(
        self,
        job_id: str,
        *,
        is_known: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> AsyncGenerator[WatchJobUpdate, None]:
        """News of a job twice a second, until it has ended."""
        job_id = checked_job(job_id)
        news_of = follow_job(
            self._asked,
            job_id,
            is_known=is_known or job_id in self._seen,
            patience_s=patience_s,
            first_patience_s=self._patience_s,
        )
        try:
            async for news in news_of:
                self._seen.add(job_id)
                yield news
        finally:
            await news_of.aclose()

    async def stream_workflow_results(
        self, job_id: str
    ) -> AsyncGenerator[WorkflowResultPush, None]:
        """Each workflow's result when it ends, those that ended before included; the stream
        ends with the job, whatever becomes of it."""
        told: set[str] = set()
        last: WatchJobUpdate | None = None
        async for news in self.follow_job(job_id):
            last = news
            if news.job.status in JOB_ENDS:
                break
            for push in results_in(news):
                if push.workflow_id not in told:
                    told.add(push.workflow_id)
                    yield push
        if last is not None:
            final = final_of(await self.get_results(job_id), last.job)
            for result in final.workflow_results:
                if result.name not in told:
                    yield WorkflowResultPush.of(job_id, result)

    async def wait_for_completion(
        self,
        job_id: str,
        timeout: str | float | None = None,  # noqa: ASYNC109  of the whole wait
    ) -> JobFinalResult:
        """The final result; `TimeoutError` if it is not there in time (the job goes on)."""
        limit_s = None if timeout is None else parse_duration_s(timeout, where="timeout")
        async with asyncio.timeout(limit_s):
            last: JobView | None = None
            async for news in self.follow_job(job_id):
                last = news.job
            assert last is not None  # it ends with the news that it has ended
            return final_of(await self.get_results(job_id), last)

    async def get_results(self, job_id: str, *, within_s: float = _RECORD_S) -> RunResult:
        """The results of a job that has ended, as `hyperscale run` would give them."""
        return result_of(await self.get_record(job_id, within_s=within_s))

    async def get_record(self, job_id: str, *, within_s: float = _RECORD_S) -> bytes:
        job_id = checked_job(job_id)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + within_s
        if not self._asked.has_reached:
            await self.job_news(job_id)  # that there is nobody, or no such job, is told soon
        while True:
            try:
                data = bytearray()
                pieces = self._asked.follow(
                    GetJobRecord(job=job_id), Chunk, within_s=within_s, silence_s=15.0
                )
                async for piece in pieces:
                    data += piece.data
                return bytes(data)
            except RemoteError as error:
                if loop.time() >= deadline_s or error.code in _NO_RESULTS_YET:
                    view = (await self.job_news(job_id)).job  # raises if there is no such job
                    if view.status not in JOB_ENDS:
                        raise InputError(
                            f"job {job_id} has not ended: it is {view.status.value}",
                            hint=f"follow it with 'hyperscale watch {job_id}'",
                        ) from error
                    if loop.time() >= deadline_s:
                        raise RunError(
                            f"no manager has the results of {job_id}: {error}"
                        ) from error
            except NoManagerError as error:
                if loop.time() >= deadline_s:
                    raise
                self._asked.on_trouble(error.message)
            except CallError as error:
                if loop.time() >= deadline_s:
                    raise RunError(f"the results of {job_id} did not come: {error}") from error
            await asyncio.sleep(0.3)

    # -- inside ---------------------------------------------------------------------------

    async def _ask(
        self, message: msgspec.Struct, reply: type[_R], *, within_s: float = ASK_S
    ) -> _R:
        return await self._asked.ask(message, reply, within_s=within_s, patience_s=self._patience_s)

    async def _ask_about(self, job_id: str, message: msgspec.Struct, reply: type[_R]) -> _R:
        try:
            return await self._ask(message, reply)
        except RemoteError as error:
            if error.code is RemoteErrorCode.UNKNOWN_JOB:
                raise unknown_job(job_id) from error
            raise

    async def _call_back(self, job_id: str, callbacks: Callbacks) -> None:
        """Tells callbacks what happens, one after the other, the end always last."""
        told: set[str] = set()
        status = ""
        async for news in self.follow_job(job_id, is_known=True):
            is_final = news.job.status in JOB_ENDS
            if callbacks.on_progress is not None:
                for progress in progress_of(news):
                    await called(callbacks.on_progress, progress)
            if callbacks.on_result is not None and not is_final:
                for push in results_in(news):
                    if push.workflow_id not in told:
                        told.add(push.workflow_id)
                        await called(callbacks.on_result, push)
            if is_final:
                await self._call_back_end(job_id, news, callbacks, told)
            elif callbacks.on_status is not None and news.job.status.value != status:
                status = news.job.status.value
                await called(callbacks.on_status, status_of(news))

    async def _call_back_end(
        self, job_id: str, news: WatchJobUpdate, callbacks: Callbacks, told: set[str]
    ) -> None:
        final = final_of(await self.get_results(job_id), news.job)
        if callbacks.on_result is not None:
            for result in final.workflow_results:
                if result.name not in told:
                    await called(callbacks.on_result, WorkflowResultPush.of(job_id, result))
        if callbacks.on_status is not None:
            await called(callbacks.on_status, final.as_status())

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s ended: %s", task.get_name(), error)


def _package(job: JobSubmission) -> Package:
    from hyperscale.client.package import package_of  # noqa: PLC0415  as above

    return package_of(job)
