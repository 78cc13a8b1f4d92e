"""Results into whatever a user writes: subclass `CustomReporter` and define `submit`."""

from abc import ABC, abstractmethod

from msgspec import Struct

from hyperscale.errors import InputError
from hyperscale.reporting.results import RunResult


class CustomReporter(ABC):
    """A sink of the user's own. Each method is called once per run, in order, in one event loop."""

    async def connect(self) -> None:  # noqa: B027  optional on purpose: most sinks need none
        """Open what `submit` uses. Does nothing by default."""

    @abstractmethod
    async def submit(self, result: RunResult) -> None:
        """Deliver the result. An exception marks the reporter as failed, not the run."""

    async def close(self) -> None:  # noqa: B027  optional on purpose: most sinks need none
        """Close what `connect` opened; called even if `submit` raised. Does nothing by default."""


class CustomConfig(Struct, frozen=True):
    reporter: CustomReporter

    def __post_init__(self) -> None:
        if not isinstance(self.reporter, CustomReporter):
            raise InputError(
                f"CustomConfig: {self.reporter!r} is not a CustomReporter",
                hint="pass an instance of your subclass of CustomReporter",
            )

    def open_sink(self) -> CustomReporter:
        return self.reporter
