"""`make wheel-check`: installs the wheel in new environments, outside the repository, and uses it.

    python -m tests.wheel_check dist [PYTHON ...]

Without PYTHON it uses every Python from 3.11 to 3.13 that it finds: on the PATH and among the
versions of pyenv.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
NAME = re.compile(r"hyperscale-[\d.]+-cp311-abi3-(?:many)?linux\w*\.whl")
PACKAGED = (
    "hyperscale/__init__.py",
    "hyperscale/_native.abi3.so",
    "hyperscale/_native.pyi",
    "hyperscale/py.typed",
    "hyperscale/reporting/schema.json",
    "hyperscale/reporting/html/style.css",
    "hyperscale/reporting/html/script.js",
)
OUTPUTS = {"report.html", "results.json", "junit.xml", "steps.csv"}
LOAD = ("--vus", "20", "--duration", "2s", "--out", "results")
WITHIN_S = 300


def wheel_in(directory: Path) -> Path:
    """Return the one wheel of a directory, after a look at its name and its files."""
    wheels = sorted(directory.glob("*.whl"))
    if len(wheels) != 1 or not NAME.fullmatch(wheels[0].name):
        sys.exit(f"expected one abi3 wheel in {directory}, found {[w.name for w in wheels]}")
    packed = zipfile.ZipFile(wheels[0]).namelist()
    if missing := [name for name in PACKAGED if name not in packed]:
        sys.exit(f"{wheels[0].name} lacks {', '.join(missing)}")
    if strange := [name for name in packed if not name.startswith(("hyperscale/", "hyperscale-"))]:
        sys.exit(f"{wheels[0].name} has files that are not ours: {', '.join(strange)}")
    return wheels[0]


def pythons() -> Iterator[str]:
    """Find one interpreter of each version that works."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in VERSIONS:
        found = [shutil.which(f"python{version}")]
        found += [str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python"))]
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        for python in filter(None, found):
            told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
            if told.stdout.strip() == version:
                yield python
                break


@contextmanager
def served(hyperscale: Path, directory: Path) -> Iterator[str]:
    """Run the built-in target of the installed wheel; yield its address."""
    command = [hyperscale, "target", "--port", "0", "--quiet"]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as target:
        try:
            assert target.stdout is not None
            yield target.stdout.readline().split()[-1]
        finally:
            target.terminate()


def check(python: str, wheel: Path) -> str:
    """Install the wheel and run a new test file; return the version that was used."""
    with tempfile.TemporaryDirectory(prefix="hyperscale-wheel-") as place:
        directory = Path(place)
        # pip of this environment installs into the other: a venv of Debian may lack its own.
        subprocess.run([python, "-m", "venv", "--without-pip", directory / "venv"], check=True)
        binaries = directory / "venv" / "bin"
        pip = [sys.executable, "-m", "pip", "--python", str(binaries / "python")]
        subprocess.run([*pip, "install", "-q", str(wheel)], check=True, cwd=directory)

        def use(command: str, *arguments: str) -> str:
            """Run a command of the new environment, away from the repository."""
            done = subprocess.run(
                [binaries / command, *arguments],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=WITHIN_S,
                check=False,
            )
            if done.returncode != 0:
                used = " ".join((command, *arguments))
                sys.exit(f"{python}: {used}: exit code {done.returncode}\n{done.stderr}")
            return done.stdout

        with served(binaries / "hyperscale", directory) as url:
            use("hyperscale", "new", "shop.py", "--url", url)
            use("hyperscale", "check", "shop.py")
            use("hyperscale", "run", "shop.py", *LOAD)
        written = {path.name for path in directory.rglob("results/**/*") if path.is_file()}
        if missing := OUTPUTS - written:
            sys.exit(f"{python}: the run did not write {', '.join(sorted(missing))}")
        (results,) = directory.rglob("results.json")
        result = json.loads(results.read_text())
        if not result["passed"] or not result["workflows"][0]["sent"]:
            sys.exit(f"{python}: the run did not pass: {result['warnings']}")
        where = "import hyperscale, sys; print(sys.version.split()[0], hyperscale.__file__)"
        version, file = use("python", "-c", where).split()
        if not Path(file).is_relative_to(directory):
            sys.exit(f"{python}: imported {file}, not the wheel")
        return f"Python {version}: {result['workflows'][0]['sent']:,} requests"


def main(arguments: list[str]) -> None:
    wheel = wheel_in(Path(arguments[0])).resolve()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    chosen = arguments[1:] or list(pythons())
    if not chosen:
        sys.exit(f"no Python of {', '.join(VERSIONS)} found")
    for python in chosen:
        print(check(python, wheel), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
