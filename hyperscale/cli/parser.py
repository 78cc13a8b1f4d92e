"""An argument parser that raises instead of exiting, and suggests what was meant."""

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from hyperscale.errors import InputError


class Parser(argparse.ArgumentParser):
    """`argparse` with our errors: one message, exit code 2, no usage dump."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        # What begins like a number is the value of a flag, not a flag: -5s is a wrong duration.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}", hint=f"see '{self.prog} --help'")

    def refuse_unknown(self, arguments: Iterable[str]) -> None:
        """Raises for the first argument nobody took, with the flag it may have meant."""
        for argument in arguments:
            flag = argument.partition("=")[0]
            if not flag.startswith("-"):
                raise InputError(
                    f"{self.prog}: unexpected argument {argument!r}",
                    hint=f"see '{self.prog} --help'",
                )
            raise InputError(
                f"{self.prog}: unknown flag {flag}",
                hint=did_you_mean(flag, self._option_string_actions) or f"see '{self.prog} --help'",
            )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or nothing if nothing is near."""
    bare = {name.lstrip("-"): name for name in known}  # dashes make any two flags look alike
    word = word.lstrip("-")
    near = [name for name in bare if word and name.startswith(word)]
    near = near or difflib.get_close_matches(word, list(bare), n=1, cutoff=0.6)
    return f"did you mean {bare[near[0]]}?" if near else ""
