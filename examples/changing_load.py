"""Scale, pause and resume a run while it is under way, from Python.

    python examples/changing_load.py

On the command line, `hyperscale scale`, `pause` and `resume` do the same to a run (`--run DIR`) or
to a job of a cluster; in the live view, the keys + - and p. `HyperscaleClient` has `scale_job`,
`pause_job` and `resume_job`.
"""

import asyncio

from hyperscale import LocalRunner, Workflow, step
from hyperscale.errors import InputError
from hyperscale.testing import URL, HTTPResponse


class Browse(Workflow):
    vus = 2
    duration = "6s"
    interval = "20ms"

    @step()
    async def home(self, url: URL = "http://localhost:8080/") -> HTTPResponse:
        return await self.client.http.get(url)


async def change(runner: LocalRunner) -> None:
    """Change the load step by step."""
    while True:
        try:
            await runner.scale(vus=6, over="1s")
            break
        except InputError:  # the run has not begun yet
            await asyncio.sleep(0.1)
    await asyncio.sleep(1)
    await runner.pause()
    await asyncio.sleep(1)  # no part of the duration
    await runner.resume()


async def main() -> None:
    runner = LocalRunner(workers=1)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(runner.run("changes", [Browse], terminal_mode="ci"))
        tasks.create_task(change(runner))
    browse = run.result().workflows[0]
    for each in browse.changes:
        target = "" if each.target is None else f" to {each.target:g} users"
        print(f"{each.at_seconds:.1f} s: {each.kind}{target}")
    print(f"{browse.ok} ok, {browse.failed} failed, paused for {browse.paused_seconds:.1f} s")


# Executors import this file too: what only the script is to do stays below this line.
if __name__ == "__main__":
    asyncio.run(main())
