"""The interface of a UI, and the UI that shows nothing. `hyperscale.ui.open_ui` picks one."""

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from hyperscale.reporting.results import RunResult
    from hyperscale.stats.view import RunView

Mode = Literal["full", "ci", "none"]


class Ui(Protocol):
    """A context manager around a run. No method blocks on the terminal, except `finish`."""

    mode: Mode

    def __enter__(self) -> "Ui": ...

    def __exit__(self, *_: object) -> None:
        """Give the terminal back, whatever happened."""

    def update(self, view: "RunView") -> None:
        """Show the run as it is now. Cheap; call it as often as there is news."""

    def log(self, text: str, *, source: str = "output") -> None:
        """Take what user code printed: shown on demand, or line by line in `ci`."""

    def finish(self, result: "RunResult") -> None:
        """End the live view and print the summary."""


class SilentUi:
    """Shows nothing: `none`, and `--quiet`."""

    mode: Mode = "none"

    def __enter__(self) -> "SilentUi":
        return self

    def __exit__(self, *_: object) -> None: ...
    def update(self, view: "RunView") -> None: ...
    def log(self, text: str, *, source: str = "output") -> None: ...
    def finish(self, result: "RunResult") -> None: ...
