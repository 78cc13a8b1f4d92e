"""Setup and teardown of a workflow on one machine: once, whatever the number of executors."""

from pathlib import Path

import pytest

from hyperscale.reporting.results import RunStatus
from tests.runner.test_local_runner import logged, run_file, write

ONCE = """
    import asyncio
    from hyperscale import setup, teardown

    class Once(Workflow):
        vus = 6
        duration = "30s"
        iterations = 12

        @setup()
        async def open(self):
            self.context["token"] = f"t-{{os.getpid()}}"
            self.context["ids"] = [1, 2]
            log("setup", self.vu)

        @setup(per="executor")
        def pool(self):
            {pool}

        @step()
        async def use(self, token=None) -> Tick:
            self.context["ids"].append(self.vu)
            log("use", token, self.vu)
            await asyncio.sleep(0)
            {use}
            return Tick()

        @teardown()
        async def close(self):
            log("teardown", self.context["token"], len(self.context["ids"]))
            {close}
"""


def once(tmp_path: Path, *, pool: str = "pass", use: str = "pass", close: str = "pass") -> Path:
    return write(tmp_path, ONCE.format(pool=pool, use=use, close=close))


def told(file: Path) -> tuple[list[list[str]], set[str], list[list[str]]]:
    """Return the lines of setup, the tokens that steps saw, and the lines of teardown."""
    lines = logged(file)
    setups = [line for line in lines if line[0] == "setup"]
    tokens = {line[1] for line in lines if line[0] == "use"}
    return setups, tokens, [line for line in lines if line[0] == "teardown"]


def test_setup_runs_once_every_slot_gets_its_context_and_teardown_runs_once_at_the_end(
    tmp_path: Path,
) -> None:
    file = once(tmp_path)
    result = run_file(file, workers=3)
    assert result.status is RunStatus.COMPLETED
    setups, tokens, teardowns = told(file)
    assert setups == [["setup", "0"]]
    assert len(tokens) == 1
    # Teardown finds what setup left, not what virtual users made of it.
    assert teardowns == [["teardown", *tokens, "2"]]
    assert logged(file)[-1] == teardowns[0]
    assert {line[2] for line in logged(file) if line[0] == "use"} == set("012345")
    counts = {step.name: step.ok for step in result.workflows[0].steps}
    assert (counts["open"], counts["use"], counts["close"]) == (1, 12, 1)


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ({"pool": "raise RuntimeError('no pool')"}, RunStatus.FAILED),
        ({"use": "os._exit(3)"}, RunStatus.FAILED),
        ({"close": "raise RuntimeError('stuck')"}, RunStatus.COMPLETED),
        ({"close": "os._exit(3)"}, RunStatus.FAILED),
    ],
    ids=["preparing fails", "executors die", "teardown raises", "teardown dies"],
)
def test_what_was_set_up_is_torn_down_once_however_the_workflow_ends(
    tmp_path: Path, broken: dict[str, str], status: RunStatus
) -> None:
    file = once(tmp_path, **broken)
    result = run_file(file, workers=2)
    assert result.status is status
    setups, _, teardowns = told(file)
    assert (len(setups), len(teardowns)) == (1, 1)
    died = "close" in broken and "_exit" in broken["close"]
    assert any("teardown did not end" in text for text in result.workflows[0].warnings) is died


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("asyncio.Lock()", "self.context['bad']: a Lock cannot be passed on"),
        ("'x' * 70_000", "setup leaves 70"),
    ],
)
def test_context_that_cannot_be_sent_fails_the_workflow_and_names_the_key(
    tmp_path: Path, value: str, said: str
) -> None:
    file = once(tmp_path)
    text = file.read_text().replace('log("setup"', f'self.context["bad"] = {value}; log("setup"')
    file.write_text(text.replace("asyncio.Lock()", "type('Lock', (), {'__reduce__': None})()"))
    result = run_file(file)
    assert result.status is RunStatus.FAILED
    error = result.workflows[0].error or ""
    assert said in error
    assert "'bad'" in error
    assert 'per="executor"' in error
    assert len(told(file)[2]) == 1  # where setup ran
