"""One gate and one datacenter: jobs run, and mistakes are named with the right exit code."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.conftest import RunningTarget
from tests.lab.command import CommandOutcome, run
from tests.nodes.gates.tiers import Tiers, run_tiers, start_gate, write_test


@pytest.mark.timeout(180)
def test_mistakes_with_gates_and_datacenters_are_named_with_the_right_exit_code(
    tmp_path: Path, target: RunningTarget
) -> None:
    test = write_test(tmp_path, target.url, vus=2, duration="1s")

    async def work(tiers: Tiers) -> None:
        def is_refused(shown: CommandOutcome, code: int, *texts: str) -> None:
            assert shown.code == code, shown
            assert all(text in shown.stderr for text in texts), shown.stderr
            assert "Traceback" not in shown.stderr

        async def elsewhere(*arguments: str) -> CommandOutcome:
            return await asyncio.to_thread(run, *arguments, cwd=tmp_path)

        hyperscale = tiers.hyperscale
        passed = await hyperscale("submit", str(test), "--out", str(tmp_path / "out"))
        assert passed.code == 0, passed.stderr
        too_many = await hyperscale("submit", str(test), "--datacenters", "2")
        is_refused(too_many, 2, "2 datacenters are wanted, but only 1 can run the job: east")
        unknown = await hyperscale("submit", str(test), "--datacenter", "easst")
        is_refused(unknown, 2, "no datacenter is called 'easst'", "known datacenters: east")
        both = await hyperscale("submit", str(test), "--datacenter", "east", "--datacenters", "1")
        is_refused(both, 2, "--datacenter and --datacenters cannot be combined")
        is_refused(await hyperscale("datacenters", "pause", "east"), 2, "unknown action 'pause'")
        is_refused(await hyperscale("datacenters", "drain"), 2, "the name is missing")
        is_refused(await hyperscale("route"), 2, "give a test file or --job")
        manager = tiers.managers["east"].address
        wrong = await elsewhere("submit", str(test), "--gate", manager)
        is_refused(wrong, 2, "m-east is a manager, not a gate")
        wrong = await elsewhere("datacenters", "--gate", manager)
        assert wrong.code in (2, 3)
        assert "Traceback" not in wrong.stderr
        alone = await start_gate(tmp_path, "lonely")
        flags = ("--gate", alone.address, "--submit-timeout", "3s")
        nowhere = await elsewhere("submit", str(test), *flags)
        is_refused(nowhere, 3, "no datacenter has answered this gate yet")
        await alone.graceful_shutdown()
        url = f"http://{tiers.gates[0].member.http_address}/metrics"
        metrics = await asyncio.to_thread(lambda: urlopen(url, timeout=10).read().decode())
        assert 'hyperscale_gate_state{state="active"} 1' in metrics
        assert 'hyperscale_datacenter_reachable{datacenter="east"} 1' in metrics
        assert 'hyperscale_global_jobs{status="completed"} 1' in metrics

    run_tiers(tmp_path, work, datacenters=("east",))
