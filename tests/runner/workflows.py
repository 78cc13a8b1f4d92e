"""Workflows that tests hand to `LocalRunner` as classes; executors import this module."""

from hyperscale import Workflow, step
from hyperscale.testing import CustomResult


class Tick(CustomResult):
    """A step that measures nothing but itself."""


class Quick(Workflow):
    vus = 2
    duration = "30s"
    iterations = 10
    tags = ("own",)

    @step()
    async def go(self) -> Tick:
        return Tick()


class Steady(Workflow):
    vus = 1
    duration = "2s"
    interval = "10ms"

    @step()
    async def go(self) -> Tick:
        return Tick()


class Endless(Workflow):
    vus = 1
    duration = "10m"
    interval = "10ms"

    @step()
    async def go(self) -> Tick:
        return Tick()
