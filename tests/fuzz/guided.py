"""One target under the coverage-guided fuzzer: `guided TARGET CORPUS [libFuzzer flags]`.

libFuzzer ends the process when it is done, so there is one for each target.
"""

import sys

import atheris  # type: ignore[import-not-found]  # only `make fuzz` installs it

_INSTRUMENTED = ["hyperscale.wire", "hyperscale.membership", "hyperscale.nodes", "tests.fuzz"]

with atheris.instrument_imports(include=_INSTRUMENTED):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


main()
