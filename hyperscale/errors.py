"""Errors, typed by who must act.

`InputError` is for the user to correct, and nothing has run yet; `RunError` means a run
could not be carried through; `InvariantError` is a bug in Hyperscale. `reporting.exit_codes` maps
them to the exit codes of the command line.
"""


class HyperscaleError(Exception):
    """Base of every error this package raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class InputError(HyperscaleError):
    """What the user gave is wrong: a file, a class, a flag. Nothing ran."""


class RunError(HyperscaleError):
    """A run started and could not be carried through."""


class InvariantError(HyperscaleError):
    """A state that cannot be: a bug in Hyperscale, not in what the user wrote."""
