"""`hyperscale new FILE`: a commented test file that runs as it is."""

import argparse
import re
from pathlib import Path

from hyperscale.cli.parser import Parser
from hyperscale.errors import InputError

DEFAULT_URL = "http://localhost:8080"

_DESCRIPTION = """\
Writes a commented test file to start from. It runs as it is, against the built-in target.
"""
_EPILOG = f"""\
examples:
  hyperscale new shop.py
  hyperscale new shop.py --url https://shop.test

then:
  hyperscale target                 in another terminal: serves {DEFAULT_URL}
  hyperscale check shop.py
  hyperscale run shop.py
"""

TEMPLATE = '''\
"""A load test.

    hyperscale check {file}     one pass: every request and response
    hyperscale run {file}       the load
"""

from hyperscale import Workflow, check, metric, step
from hyperscale.testing import URL, Data, HTTPResponse


class {name}(Workflow):
    # Virtual users, each looping the steps below by itself, for this long.
    vus = 50
    duration = "10s"

    # Think time: iterations of a virtual user start at least this far apart.
    interval = "100ms"

    # What must hold for the run to pass (exit code 0): a step's latency, the share of
    # failed requests, the rate, ...
    thresholds = {{
        "errors": "<1%",
        "home.p99": "<500ms",
    }}

    # A step without arguments begins the iteration. Request parts given as defaults are
    # resolved and encoded once, before the clock starts. A status of 400 or more is a
    # failure, unless the step accepts it: @step(accept=[404]).
    @step()
    async def home(self, url: URL = "{url}/json") -> HTTPResponse:
        return await self.client.http.get(url)

    # Steps that name another run after it; those that name the same one run side by side.
    # A parameter called like an earlier step receives its response.
    @step("home")
    async def search(
        self, home: HTTPResponse | None = None, url: URL = "{url}/echo"
    ) -> HTTPResponse:
        seen = home.status if home else 0
        return await self.client.http.get(url, params={{"seen": seen}})

    @step("home")
    async def order(
        self, url: URL = "{url}/echo", body: Data = {{"item": 7, "count": 2}}
    ) -> HTTPResponse:
        return await self.client.http.post(url, data=body)

    # A check is counted for every iteration; one that fails, fails the run.
    @check()
    def home_is_json(self, home: HTTPResponse) -> bool:
        return home.headers.get("content-type", "").startswith("application/json")

    # A number of your own: count, rate, gauge, distribution or timer.
    @metric("distribution")
    def home_bytes(self, home: HTTPResponse) -> int:
        return len(home.content)
'''


def add_parser(subparsers: "argparse._SubParsersAction[Parser]") -> None:
    parser = subparsers.add_parser(
        "new",
        help="write a commented test file to start from",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="the file to write")
    parser.add_argument("--url", metavar="URL", default=DEFAULT_URL, help="what to test")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> int:
    from hyperscale.testing.arguments import split_url

    if not Path(args.file).stem.strip("."):
        raise InputError(f"{args.file!r} is not the name of a file", hint="as in shop.py")
    path = Path(args.file if args.file.endswith(".py") else f"{args.file}.py")
    split_url(args.url)
    text = TEMPLATE.format(file=path, name=class_name(path.stem), url=args.url.rstrip("/"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if args.force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path}: is there already", hint="--force replaces it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    print(f"wrote {path}\nnext: hyperscale check {path}, then hyperscale run {path}")
    return 0


def class_name(stem: str) -> str:
    """`load-test` as `LoadTest`."""
    words = re.findall(r"[^\W_]+", stem)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    return name if name.isidentifier() and name != "Workflow" else f"Test{name}"
