"""What the rest of the program sees of a UI, and the UI that shows nothing.

`open_ui` in the package's root picks the implementation.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from hyperscale.reporting.results import RunResult
    from hyperscale.stats.view import RunView

Mode = Literal["full", "ci", "none"]


class Ui(Protocol):
    """A context manager around a run. No method blocks on the terminal, except `finish`."""

    mode: Mode

    def __enter__(self) -> "Ui": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the terminal back, whatever happened."""

    def update(self, view: "RunView") -> None:
        """The run as it is now. Cheap; call it as often as there is news."""

    def log(self, text: str, *, source: str = "output") -> None:
        """What user code printed. Kept and shown on demand, or line by line in `ci`."""

    def finish(self, result: "RunResult") -> None:
        """End the live view and print the summary."""


class SilentUi:
    """Shows nothing: `none`, and `--quiet`."""

    mode: Mode = "none"

    def __enter__(self) -> "SilentUi":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return

    def update(self, view: "RunView") -> None:  # noqa: ARG002 - it shows nothing
        return

    def log(self, text: str, *, source: str = "output") -> None:
        del text, source

    def finish(self, result: "RunResult") -> None:  # noqa: ARG002 - it shows nothing
        return
