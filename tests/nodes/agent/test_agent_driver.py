"""A worker with real executors and a job leader that the test plays.

The counters of the target server are compared with the results.
"""

import asyncio
import hashlib
import os
import resource
from pathlib import Path

import pytest

from hyperscale._native import Target
from hyperscale.jobs.messages import (
    AnnounceCores,
    AnnouncePrepareFailed,
    AnnounceReady,
    DeliverResult,
    ForwardOutput,
    Isolation,
    PartPhase,
    Refusal,
    ReportProgress,
)
from hyperscale.nodes.agent import storage
from hyperscale.plan.context import decode_provided
from hyperscale.plan.status import PartStatus
from tests.lab.job_leader import (
    Code,
    StandInLeader,
    counted,
    is_quiet,
    load,
    run_id,
    stand_in_leader,
    total,
    worker,
)
from tests.lab.loops import run
from tests.lab.reports import read
from tests.lab.waiting import until_async


def test_the_result_of_a_completed_part_is_exact(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="1500ms")

    async def work() -> None:
        async with worker(tmp_path, cores=2) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            run = await leader.run(code, cores=2)
            finished = await leader.hears(DeliverResult)
            assert (finished.attempt_id, finished.status) == (run, PartStatus.COMPLETED)
            assert finished.error is None
            assert total(finished) == await is_quiet(target) > 0
            assert finished.elapsed_s >= 1.5
            assert len(finished.provided) == 2
            assert [decode_provided(each).slot for each in finished.provided] == [0, 1]
            progress = leader.said(ReportProgress)
            totals = [read(each.parts[0].report).steps[0].counts.total for each in progress]
            assert totals == sorted(totals)
            assert len(totals) >= 2
            (fetched,) = leader.fetches
            assert fetched == hashlib.sha256(code.bundle.payload).hexdigest()
            leader.acknowledge(run)
            await until_async(lambda: not list(tmp_path.rglob("*.result")))
            cores = leader.said(AnnounceCores)
            assert (cores[-1].total, cores[-1].held) == (2, [])
            assert any(held.cores == 2 for each in cores for held in each.held)

    run(work)


def test_a_result_is_repeated_until_it_is_acknowledged(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="200ms")

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            run = await leader.run(code)
            await until_async(lambda: len(leader.said(DeliverResult)) >= 3)
            assert len({repr(each.attempt_id) for each in leader.said(DeliverResult)}) == 1
            assert len(list(tmp_path.rglob("*.result"))) == 1
            leader.acknowledge(run)
            await until_async(lambda: not list(tmp_path.rglob("*.result")))

    run(work)


def test_load_stops_when_its_lease_is_not_renewed(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.run(code, lease_ms=1_500)
            await leader.loads(target)
            finished = await leader.hears(DeliverResult)
            assert (finished.status, finished.error) == (PartStatus.STOPPED, "lease expired")
            assert finished.is_retryable
            assert finished.elapsed_s < 30.0  # of 60
            assert total(finished) == await is_quiet(target)

    run(work)


def test_renewals_keep_the_load_going(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="4s", pause_s=0.02)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.run(code, lease_ms=1_500)
            stamp_ms = 0
            while not leader.said(DeliverResult):
                renewed = await leader.renew(lease_ms=1_500, stamp_ms=stamp_ms)
                stamp_ms = renewed.stamp_ms
                await asyncio.sleep(0.3)
            (finished,) = leader.said(DeliverResult)[:1]
            assert finished.status is PartStatus.COMPLETED
            assert finished.elapsed_s >= 4.0
            assert total(finished) == counted(target)

    run(work)


def test_a_part_continues_in_isolation_if_the_job_says_so(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="3s", pause_s=0.02)

    async def work() -> None:
        async with worker(tmp_path) as node:
            async with stand_in_leader() as leader:
                await leader.meet(node.address)
                await leader.run(code, lease_ms=500, on_isolation=Isolation.CONTINUE)
                await leader.loads(target)
            async with stand_in_leader("m2") as heir:
                await heir.meet(node.address)
                await asyncio.sleep(1.0)
                here = await heir.who_runs(term=2)
                assert [view.phase for view in here.parts] == [PartPhase.RUNNING]
                assert here.parts[0].report is not None
                finished = await heir.hears(DeliverResult)
                assert finished.status is PartStatus.COMPLETED
                assert total(finished) == counted(target)

    run(work)


def test_load_continues_when_the_leader_changes(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="3s", pause_s=0.02)

    async def work() -> None:
        async with (
            worker(tmp_path) as node,
            stand_in_leader("m1") as old,
            stand_in_leader("m2") as new,
        ):
            await old.meet(node.address)
            await new.meet(node.address)
            run = await old.run(code)
            await old.hears(ReportProgress)
            renewed = await new.renew(run, term=2)
            assert (renewed.accepted, renewed.unknown) == (True, [])
            progress = await new.hears(ReportProgress)
            assert progress.parts[0].attempt_id == run
            assert not (await old.renew(run, term=1)).accepted
            refused = await old.stop(run, term=1)
            assert (refused.refusal, refused.seen_term) == (Refusal.STALE_TERM, 2)
            finished = await new.hears(DeliverResult)
            assert finished.status is PartStatus.COMPLETED
            assert total(finished) == counted(target)
            assert old.said(DeliverResult) == []

    run(work)


def test_a_higher_attempt_takes_the_cores_of_the_older_one(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, pause_s=0.02)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.run(code)
            await leader.loads(target)
            newer = await leader.run(code, run_id(2), elapsed_s=59.0)
            old = await leader.hears(DeliverResult, lambda each: each.attempt_id == run_id(1))
            assert (old.status, old.error) == (PartStatus.STOPPED, "superseded by attempt 2")
            late = await leader.prepare(code, run_id(1))
            assert late.phase is PartPhase.FINISHED
            done = await leader.hears(DeliverResult, lambda each: each.attempt_id == newer)
            assert done.status is PartStatus.COMPLETED
            assert 0.9 < done.elapsed_s < 30.0
            assert done.report is not None
            assert read(done.report).elapsed_s >= 60.0
            assert total(old) + total(done) == await is_quiet(target)

    run(work)


def test_a_stop_ends_the_load_and_leaves_a_tombstone(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            late = run_id(job="dc.1-late")
            assert (await leader.stop(late)).accepted
            assert (await leader.prepare(code, late)).refusal is Refusal.STALE_ATTEMPT
            run = await leader.run(code)
            await leader.loads(target)
            assert (await leader.stop(run, reason="cancelled by alice")).accepted
            finished = await leader.hears(DeliverResult)
            assert (finished.status, finished.error) == (PartStatus.STOPPED, "cancelled by alice")
            assert total(finished) == await is_quiet(target)
            assert (await leader.prepare(code, run)).phase is PartPhase.FINISHED
            assert (await leader.start(run)).phase is PartPhase.FINISHED

    run(work)


def test_a_part_can_be_stopped_while_it_is_preparing(tmp_path: Path) -> None:
    code = Code(
        tmp_path,
        """
        class Load(Workflow):
            vus = 1
            duration = "5s"

            @setup(per="executor")
            async def hang(self) -> None:
                await asyncio.sleep(60)

            @step()
            async def one(self) -> Result:
                return Result()
        """,
    )

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            assert (await leader.prepare(code)).phase is PartPhase.PREPARING
            assert (await leader.stop()).phase is PartPhase.STOPPING
            finished = await leader.hears(DeliverResult)
            assert finished.status is PartStatus.STOPPED
            assert (await leader.stop()).phase is PartPhase.FINISHED

    run(work)


def test_code_that_never_yields_is_killed_and_its_core_is_used_again(
    tmp_path: Path, target: Target
) -> None:
    (tmp_path / "hog").mkdir()
    hog = Code(
        tmp_path / "hog",
        """
        class Load(Workflow):
            vus = 1
            duration = "60s"

            @step()
            async def hog(self) -> Result:
                print("hogging", flush=True)
                while True:
                    pass
        """,
    )
    code = load(tmp_path, target, duration="300ms")

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            run = await leader.run(hog, lease_ms=60_000)
            output = await leader.hears(ForwardOutput)
            assert (output.stream, output.text) == ("stdout", "hogging\n")
            assert (await leader.stop(run)).phase is PartPhase.STOPPING
            other = run_id(job="dc.1-b")
            assert (await leader.prepare(code, other)).refusal is Refusal.NO_CORES
            finished = await leader.hears(DeliverResult)
            assert (finished.attempt_id, finished.status) == (run, PartStatus.STOPPED)
            await leader.run(code, other)
            finished = await leader.hears(DeliverResult, lambda each: each.attempt_id == other)
            assert finished.status is PartStatus.COMPLETED

    run(work)


def test_the_result_of_a_dead_executor_holds_its_last_report(
    tmp_path: Path, target: Target
) -> None:
    code = Code(
        tmp_path,
        f"""
        class Load(Workflow):
            vus = 4
            duration = "60s"

            @step()
            async def hit(self, url: URL = "http://127.0.0.1:{target.port}/") -> HTTPResponse:
                if os.path.exists({str(tmp_path / "die")!r}):
                    os.kill(os.getpid(), 9)
                await asyncio.sleep(0.01)
                return await self.client.http.get(url)
        """,
    )

    async def work() -> None:
        async with worker(tmp_path, cores=2) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.run(code, cores=2)
            await leader.hears(
                ReportProgress, lambda each: read(each.parts[0].report).iterations > 10
            )
            (tmp_path / "die").touch()
            finished = await leader.hears(DeliverResult)
            assert finished.status is PartStatus.FAILED
            assert finished.is_retryable
            assert finished.error is not None
            assert "SIGKILL" in finished.error
            assert 0 < total(finished) <= counted(target)

    run(work)


@pytest.mark.parametrize("cause", ["missing", "changed"])
def test_a_bundle_that_cannot_be_fetched_is_a_retryable_failure(
    tmp_path: Path, target: Target, cause: str
) -> None:
    code = load(tmp_path, target)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            leader.blobs[code.sha256] = b"something else"
            if cause == "missing":
                del leader.blobs[code.sha256]
                leader.blobs = _Nothing()
            await leader.prepare(code)
            refused = await leader.hears(AnnouncePrepareFailed)
            assert refused.is_retryable
            assert code.sha256[:12] in refused.error
            leader.acknowledge()
            await until_async(lambda: leader.said(AnnounceCores)[-1].held == [])
            assert list(tmp_path.rglob("*.part")) == []

    run(work)


class _Nothing(dict[str, bytes]):
    """A dictionary that stores nothing."""

    def setdefault(self, key: str, default: bytes = b"", /) -> bytes:
        return default


def test_a_bundle_is_fetched_once_and_kept(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="200ms")

    async def work() -> None:
        for life in range(2):
            async with worker(tmp_path, cores=2) as node, stand_in_leader() as leader:
                await leader.meet(node.address)
                runs = [run_id(job=f"dc.{life}-{n}") for n in range(2)]
                await asyncio.gather(*(leader.run(code, run) for run in runs))
                for run in runs:
                    await leader.hears(DeliverResult, lambda each, run=run: each.attempt_id == run)  # type: ignore[misc]  # bound now
                    leader.acknowledge(run)
                assert len(leader.fetches) == (1 if life == 0 else 0)

    run(work)


def test_a_bundle_is_fetched_from_another_manager_if_the_leader_is_silent(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "FIRST_CHUNK_S", 0.2)
    code = load(tmp_path, target, duration="200ms")

    async def work() -> None:
        async with (
            worker(tmp_path) as node,
            stand_in_leader() as leader,
            stand_in_leader("m2") as other,
        ):
            leader.gives_bundles = False
            other.blobs[code.sha256] = code.bundle.payload
            await other.meet(node.address)
            await leader.meet(node.address)
            await leader.prepare(code)
            await leader.hears(AnnounceReady)
            assert leader.fetches == other.fetches == [code.sha256]

    run(work)


def test_a_file_that_cannot_be_imported_is_an_input_error(tmp_path: Path) -> None:
    code = Code(
        tmp_path,
        """
        if "hyperscale.execution.service" in sys.modules:
            import a_module_that_is_only_on_the_laptop

        class Load(Workflow):
            @step()
            async def one(self) -> Result:
                return Result()
        """,
    )

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.prepare(code)
            refused = await leader.hears(AnnouncePrepareFailed)
            assert not refused.is_retryable
            assert "a_module_that_is_only_on_the_laptop" in refused.error

    run(work)


def test_a_new_attempt_runs_only_the_remaining_iterations(tmp_path: Path, target: Target) -> None:
    code = Code(
        tmp_path,
        f"""
        class Load(Workflow):
            vus = 4
            duration = "30s"
            iterations = 101

            @step()
            async def hit(self, url: URL = "http://127.0.0.1:{target.port}/") -> HTTPResponse:
                return await self.client.http.get(url)
        """,
    )

    async def work() -> None:
        async with worker(tmp_path, cores=2) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.run(code, run_id(2), cores=2, elapsed_s=3.0, iterations_done=60)
            finished = await leader.hears(DeliverResult)
            assert finished.status is PartStatus.COMPLETED
            assert total(finished) == counted(target) == 41

    run(work)


def test_a_shared_part_runs_beside_the_part_that_holds_the_core(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, duration="2s", pause_s=0.02)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            beside = run_id(job="dc.1-b")
            run = await leader.run(code)
            await leader.run(code, beside, shared=True)
            first = await leader.hears(DeliverResult, lambda each: each.attempt_id == run)
            second = await leader.hears(DeliverResult, lambda each: each.attempt_id == beside)
            assert first.status is second.status is PartStatus.COMPLETED
            assert total(first) + total(second) == await is_quiet(target)

    run(work)


def test_a_part_without_file_descriptors_is_a_retryable_failure(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, pause_s=0.02)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            beside = run_id(job="dc.1-b")
            run = await leader.run(code)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                assert (await leader.prepare(code, beside, shared=True)).accepted
                refused = await leader.hears(AnnouncePrepareFailed)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (refused.attempt_id, refused.is_retryable) == (beside, True)
            leader.acknowledge(beside)
            await until_async(
                lambda: [held.attempt_id for held in leader.said(AnnounceCores)[-1].held] == [run]
            )
            await _stopped(leader)

    run(work)


def test_a_stopping_worker_hands_its_part_over_with_exact_counts(
    tmp_path: Path, target: Target
) -> None:
    code = load(tmp_path, target, pause_s=0.01)

    async def work() -> None:
        async with stand_in_leader() as leader:
            async with worker(tmp_path) as node:
                await leader.meet(node.address)
                run = await leader.run(code)
                await leader.loads(target, more_than=10)
                stopping = asyncio.ensure_future(node.graceful_shutdown())
                finished = await leader.hears(DeliverResult)
                assert (await leader.prepare(code, run_id(job="x"))).refusal is Refusal.DRAINING
                leader.acknowledge(run)
                await stopping
            assert finished.status is PartStatus.STOPPED
            assert finished.error == "the worker is leaving"
            assert finished.is_retryable
            assert total(finished) == await is_quiet(target)
            assert list(tmp_path.rglob("*.result")) == []

    run(work)


def test_a_result_survives_a_restart_of_the_worker(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target, duration="300ms")

    async def work() -> None:
        async with stand_in_leader() as leader, worker(tmp_path) as node:
            await leader.meet(node.address)
            await leader.run(code)
            first = await leader.hears(DeliverResult)
        async with stand_in_leader("m2") as heir, worker(tmp_path) as node:
            await heir.meet(node.address)
            again = await heir.hears(DeliverResult)
            assert again == first
            assert (await heir.prepare(code, term=2)).phase is PartPhase.FINISHED
            heir.acknowledge(term=2)
            await until_async(lambda: not list(tmp_path.rglob("*.result")))

    run(work)


def test_metrics_show_free_cores_and_attempts(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target)

    async def work() -> None:
        async with worker(tmp_path, cores=2) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            metrics = node.member.metrics().decode()
            assert "hyperscale_worker_cores_free 2" in metrics
            await leader.run(code)
            metrics = node.member.metrics().decode()
            assert "hyperscale_worker_cores_free 1" in metrics
            assert 'hyperscale_worker_attempts{phase="running"} 1' in metrics
            await leader.stop()
            await leader.hears(DeliverResult)
            leader.acknowledge()

    run(work)


def test_a_start_with_an_old_stamp_is_refused(tmp_path: Path, target: Target) -> None:
    code = load(tmp_path, target)

    async def work() -> None:
        async with worker(tmp_path) as node, stand_in_leader() as leader:
            await leader.meet(node.address)
            await leader.prepare(code)
            ready = await leader.hears(AnnounceReady)
            stale = await leader.start(stamp_ms=ready.stamp_ms - 9_000)
            assert stale.refusal is Refusal.INVALID
            assert counted(target) == 0
            await _stopped(leader)

    run(work)


async def _stopped(leader: StandInLeader) -> None:
    await leader.stop()
    await leader.hears(DeliverResult)
    leader.acknowledge()
