"""No message can execute code: nothing that nodes import can unpickle."""

import subprocess
import sys

import pytest

FORBIDDEN = ("pickle", "_pickle", "cloudpickle", "shelve", "dill")

_PROGRAM = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, sys.argv[1] + "."):
    importlib.import_module(found.name)
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


@pytest.mark.parametrize("package", ["wire", "membership", "health", "nodes"])
def test_nothing_reachable_imports_pickle(package: str) -> None:
    name = f"hyperscale.{package}"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name, *FORBIDDEN],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
