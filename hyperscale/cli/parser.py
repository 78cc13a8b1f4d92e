"""The command line: a parser that raises errors instead of exiting, and suggests corrections."""

import argparse
import difflib
import re
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from hyperscale.config import parse_whole
from hyperscale.errors import InputError


class UsageError(InputError):
    """The command line is wrong; `program` is the command, such as `hyperscale run`."""

    def __init__(self, program: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or f"see '{program} --help'")
        self.program = program


class Parser(argparse.ArgumentParser):
    """`argparse` that raises `UsageError`: one message, exit code 2, no usage dump."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        # Text that starts like a number is a value, not a flag: -5s is an invalid duration.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.leading_words: tuple[str, ...] = ()  # one may stand before the arguments

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; `leading_word` is the one of `leading_words` given, or ""."""
        args = list(sys.argv[1:] if args is None else args)
        found = ""
        for place, word in enumerate(args):
            before = self._option_string_actions.get(args[place - 1]) if place else None
            is_value = before is not None and before.nargs != 0
            if word in self.leading_words and not is_value:
                found = args.pop(place)
                break
        parsed, unknown = super().parse_known_args(args, namespace)
        if self.leading_words:
            parsed.leading_word = found
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message)

    def refuse_unknown(self, arguments: Iterable[str]) -> None:
        """Raise for the first unknown argument, and suggest a flag with a similar name."""
        for argument in arguments:
            flag = argument.partition("=")[0]
            if not flag.startswith("-"):
                raise UsageError(self.prog, f"unexpected argument {argument!r}")
            raise UsageError(
                self.prog,
                f"unknown flag {flag}",
                hint=did_you_mean(flag, self._option_string_actions),
            )


def whole_number(text: str, flag: str, *, low: int = 1, most: int) -> int:
    """Return the value of a flag as a number; raise `InputError` if it is out of range."""
    number = parse_whole(text, low=low, most=most)
    if number is None:
        raise InputError(f"{flag}: {text!r} is not a whole number from {low} to {most}")
    return number


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean ...?`, or an empty text if no known name is similar."""
    bare = {name.lstrip("-"): name for name in known}  # the dashes would make any two flags similar
    word = word.lstrip("-")
    near = [name for name in bare if word and name.startswith(word)]
    near = near or difflib.get_close_matches(word, list(bare), n=1, cutoff=0.6)
    return f"did you mean {bare[near[0]]}?" if near else ""
