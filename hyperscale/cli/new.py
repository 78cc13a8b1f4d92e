"""`hyperscale new FILE`: write a commented test file to start from."""

import argparse
import json
import re
from pathlib import Path

from hyperscale.errors import InputError
from hyperscale.testing.arguments import split_url

DEFAULT_URL = "http://localhost:8080"

DESCRIPTION = """\
Write a commented test file to start from. It runs without changes against 'hyperscale target';
with --url, it sends requests to that URL only.
"""
EPILOG = f"""\
examples:
  hyperscale new shop.py
  hyperscale new shop.py --url https://shop.test

then:
  hyperscale target                 in another terminal; serves {DEFAULT_URL}
  hyperscale check shop.py
  hyperscale run shop.py
"""

TEMPLATE = '''\
"""A load test.

    hyperscale check {file}     run two users briefly, show requests and responses
    hyperscale run {file}       run the load
"""

from hyperscale import Param, Workflow, check, metric, step
from hyperscale.testing import URL, {parts}HTTPResponse

# A parameter: hyperscale run {file} --set base=https://staging.shop.test
base = Param({url})


class {name}(Workflow):
    # Virtual users; each of them loops over the steps below for this long.
    vus = 50
    duration = "10s"

    # Pace: a virtual user starts at most one iteration per interval.
    interval = "100ms"

    # Conditions for the run to pass (exit code 0): latency of a step, share of calls
    # that failed, calls per second and more.
    thresholds = {{
        "errors": "<1%",
        "home.p99": "<500ms",
    }}

    # @step() without arguments runs first. Default values such as the URL are resolved and
    # encoded once, before the load starts. A status of 400 or more is a failure unless the
    # step accepts it: @step(accept=[404]).
    @step()
    async def home(self, url: URL = {home}) -> HTTPResponse:
        return await self.client.http.get(url)

    # @step("home") runs after home; steps with the same dependencies run concurrently.
    # A parameter named like an earlier step receives the response of that step.
    @step("home")
    async def search(
        self, home: HTTPResponse | None = None, url: URL = {search}
    ) -> HTTPResponse:
        seen = home.status if home else 0
        return await self.client.http.get(url, params={{"seen": seen}})

{order}
    # A check runs in every iteration. A failed check fails the run (exit code 1), unless a
    # threshold on "checks" says how many may fail.
    @check()
{judge}

    # A metric of your own: count, rate, gauge, distribution or timer.
    @metric("distribution")
    def home_bytes(self, home: HTTPResponse) -> int:
        return len(home.content)
'''

# For the built-in target, which answers POST requests and JSON.
_TARGET = {
    "parts": "Data, ",
    "home": 'f"{base}/json"',
    "search": 'f"{base}/echo"',
    "order": """\
    @step("home")
    async def order(
        self, url: URL = f"{base}/echo", body: Data = {"item": 7, "count": 2}
    ) -> HTTPResponse:
        return await self.client.http.post(url, data=body)
""",
    "judge": """\
    def home_is_json(self, home: HTTPResponse) -> bool:
        return home.headers.get("content-type", "").startswith("application/json")""",
}
# For any other server: only the address that was given is known to exist there.
_SERVER = {
    "parts": "",
    "order": """\
    # A step that sends a body; `from hyperscale.testing import Data`:
    #
    # @step("home")
    # async def order(
    #     self, url: URL = f"{base}/orders", body: Data = {"item": 7, "count": 2}
    # ) -> HTTPResponse:
    #     return await self.client.http.post(url, data=body)
""",
    "judge": """\
    def home_is_found(self, home: HTTPResponse) -> bool:
        return home.status < 400""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="file to write")
    add("--url", metavar="URL", default=DEFAULT_URL, help="URL to test (default: %(default)s)")
    add("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    if not Path(args.file).stem.strip("."):
        raise InputError(
            f"{args.file!r} is not the name of a file", hint="give a file name, such as shop.py"
        )
    path = Path(args.file if args.file.endswith(".py") else f"{args.file}.py")
    text = TEMPLATE.format(file=path, name=class_name(path.stem), **_parts_for(args.url))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path}: already exists", hint="--force overwrites it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    print(f"wrote {path}\nnext: hyperscale check {path}, then hyperscale run {path}")
    return 0


def _parts_for(url: str) -> dict[str, str]:
    """Return the parts of the template that depend on the server."""
    has_path = split_url(url).path not in ("", "/")
    base = url if has_path else url.rstrip("/")
    if base == DEFAULT_URL:
        return {"url": json.dumps(base), **_TARGET}
    page = "base" if has_path else 'f"{base}/"'
    return {"url": json.dumps(base), "home": page, "search": page, **_SERVER}


def class_name(stem: str) -> str:
    """Turn a file name into a class name: `load-test` into `LoadTest`."""
    words = re.findall(r"[^\W_]+", stem)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    return name if name.isidentifier() and name != "Workflow" else f"Test{name}"
