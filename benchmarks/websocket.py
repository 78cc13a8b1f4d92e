"""Messages per CPU second over WebSockets: static and Python steps beside k6 and `websockets`."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.lab import HYPERSCALE, PEERS, fetch, interleave, median, run, save, target

VUS = 100
MESSAGES = 300_000
ROUNDS = 3
TIMES_MIN = 5.0

WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, WebsocketResponse


class Load(Workflow):
    vus = {vus}
    duration = "10m"
    iterations = {messages}

    @step()
    async def say(self, url: URL = {url!r}) -> WebsocketResponse:
        return await self.client.websocket.exchange(url, text="hello")
"""

PYTHON_WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, WebsocketResponse


class Load(Workflow):
    vus = {vus}
    duration = "10m"
    iterations = {messages}

    @step()
    async def say(self, url: URL = {url!r}) -> WebsocketResponse:
        response = await self.client.websocket.exchange(url, text="hello")
        assert response.text == "hello"
        return response
"""

K6_SCRIPT = """
import {{ WebSocket }} from 'k6/experimental/websockets';
export const options = {{
  scenarios: {{ all: {{
    executor: 'per-vu-iterations', vus: {vus}, iterations: 1, maxDuration: '10m',
  }} }},
}};
export default function () {{
  let left = {messages} / {vus};
  const socket = new WebSocket('{url}');
  socket.onopen = () => socket.send('hello');
  socket.onmessage = () => {{ if (--left > 0) socket.send('hello'); else socket.close(); }};
}}
"""

LIBRARY = """
import asyncio
import uvloop
from websockets.asyncio.client import connect


async def use():
    async with connect({url!r}, compression=None) as socket:
        for _ in range({messages} // {vus}):
            await socket.send("hello")
            await socket.recv()


async def main():
    await asyncio.gather(*(use() for _ in range({vus})))


uvloop.run(main())
"""

Tool = Callable[[], float]


def main() -> None:
    with target() as base, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        url = base.replace("http://", "ws://") + "/ws"

        def tool(name: str, text: str, *command: object) -> Tool:
            file = place / name
            file.write_text(text.format(url=url, vus=VUS, messages=MESSAGES))
            words = [str(file) if word is ... else str(word) for word in command]
            return lambda: _per_cpu_second(base, words)

        ours = (HYPERSCALE, "run", ..., "--workers", "1", "--json", place / "r.json")
        seen = interleave(
            ROUNDS,
            {
                "hyperscale, static": tool("static.py", WORKFLOW, *ours),
                "hyperscale, Python, looks at the text": tool("loop.py", PYTHON_WORKFLOW, *ours),
                "websockets": tool("library.py", LIBRARY, sys.executable, ...),
                "k6": tool("k6.js", K6_SCRIPT, PEERS / "k6", "run", "--quiet", ...),
            },
        )
    rows = {name: median(values) for name, values in seen.items()}
    lines = [
        f"{VUS} sockets, {MESSAGES:,} round trips of a short text with the built-in target; "
        f"median of {ROUNDS} rounds of messages per CPU second, start-up included.",
        "",
        "| tool | messages per CPU second | times websockets | times k6 |",
        "|---|---|---|---|",
    ]
    for name, value in rows.items():
        times = f"{value / rows['websockets']:.1f} | {value / rows['k6']:.1f}"
        lines.append(f"| {name} | {value:,.0f} | {times} |")
    save("websocket", "\n".join(lines), seen)
    slowest = rows["hyperscale, static"] / max(rows["websockets"], rows["k6"])
    if slowest < TIMES_MIN:
        raise SystemExit(f"{slowest:.1f} times the other tools: below {TIMES_MIN:g}")


def _per_cpu_second(base: str, command: list[str]) -> float:
    before = _messages(base)
    cpu_s = run(command).cpu_s
    return (_messages(base) - before) / cpu_s


def _messages(base: str) -> int:
    counts = json.loads(fetch(f"{base}/counts"))
    return int(counts["streams"]["websocket"]["messages_in"])
