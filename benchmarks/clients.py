"""Requests per CPU second of each client with a library, beside the library alone.

Both use 16 connections on one core. The library alone is a loop in 16 tasks on uvloop, without a
deadline, without statistics; its imports and connections are not counted. So the CPU time of a run
of Hyperscale is taken less that of a run with one iteration per user. The browser has no row: its
work is done in processes of Chromium.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.lab import HYPERSCALE, ROOT, interleave, median, run, save
from tests.clients.contracts import CONTRACTS
from tests.services import guard
from tests.services.fixtures import SERVICES

VUS = 16
DURATION_S = 8
ROUNDS = 2
SHARE_MIN = 0.85

WORKFLOW = """
from hyperscale import Workflow, step
from hyperscale.testing import URL, {response}


class Load(Workflow):
    vus = {vus}
    duration = "{seconds}s"
    {more}

    @step()
    async def call(self, url: URL = {url!r}) -> {response}:
        return await {step}
"""

BARE = """
import asyncio, sys, time
import uvloop

URL, VUS, SECONDS = {url!r}, {vus}, {seconds}

{code}

async def main():
    count = 0
    users = [await connect(URL) for _ in range(VUS)]
    until = time.monotonic() + SECONDS
    async def use(user):
        nonlocal count
        while time.monotonic() < until:
            await call(user)
            count += 1
    cpu = time.process_time()
    await asyncio.gather(*map(use, users))
    print(count, time.process_time() - cpu, flush=True)
    sys.stdout.flush()
    import os
    os._exit(0)

uvloop.run(main())
"""

# What `step` of each contract does, in the words of the library.
LIBRARY = {
    "postgres": """
import asyncpg
connect = asyncpg.connect
async def call(user):
    await user.fetch("SELECT name FROM items WHERE id = $1", 7)
""",
    "redis": """
from redis.asyncio import Redis
async def connect(url):
    return Redis.from_url(url, single_connection_client=True)
async def call(user):
    await user.get("item")
""",
    "mysql": """
import asyncmy
from urllib.parse import unquote, urlsplit
async def connect(url):
    at = urlsplit(url)
    return await asyncmy.connect(
        host=at.hostname, port=at.port, user=at.username, password=unquote(at.password),
        database=at.path[1:], autocommit=True)
async def call(user):
    async with user.cursor() as cursor:
        await cursor.execute("SELECT name FROM items WHERE id = %s", (1,))
        await cursor.fetchall()
""",
    "mongodb": """
from pymongo import AsyncMongoClient
async def connect(url):
    client = AsyncMongoClient(url, maxPoolSize=1)
    return client.get_default_database()
async def call(user):
    await user["items"].find({"_id": 7}, limit=1).to_list(1)
""",
    "kafka": """
from aiokafka import AIOKafkaProducer
async def connect(url):
    producer = AIOKafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), acks="all")
    await producer.start()
    return producer
async def call(user):
    await user.send_and_wait("counted", b"load", headers=[("h", b"1")])
""",
    "rabbitmq": """
import aio_pika
async def connect(url):
    connection = await aio_pika.connect(url)
    connection.used = await connection.channel()
    return connection
async def call(user):
    await user.used.default_exchange.publish(aio_pika.Message(b"load"), "counted")
""",
    "mqtt": """
import aiomqtt
from urllib.parse import unquote, urlsplit
async def connect(url):
    at = urlsplit(url)
    client = aiomqtt.Client(
        at.hostname, at.port, username=at.username, password=unquote(at.password))
    return await client.__aenter__()
async def call(user):
    await user.publish("counted", b"load", qos=1)
""",
    "smtp": """
import aiosmtplib
from urllib.parse import unquote, urlsplit
MAIL = b"From: load@x.test\\r\\nTo: shop@x.test\\r\\nSubject: load\\r\\n\\r\\nload\\r\\n"
async def connect(url):
    at = urlsplit(url)
    client = aiosmtplib.SMTP(hostname=at.hostname, port=at.port, start_tls=False)
    await client.connect()
    await client.login(at.username, unquote(at.password))
    return client
async def call(user):
    await user.sendmail("load@x.test", ["shop@x.test"], MAIL)
""",
    "ftp": """
import aioftp, itertools
from urllib.parse import unquote, urlsplit
names = itertools.count()
async def connect(url):
    at = urlsplit(url)
    client = aioftp.Client()
    await client.connect(at.hostname, at.port)
    await client.login(at.username, unquote(at.password))
    return client
async def call(user):
    async with user.upload_stream(f"counted/b{next(names)}") as stream:
        await stream.write(b"load")
""",
    "sftp": """
import asyncssh, itertools
from urllib.parse import parse_qs, urlsplit
names = itertools.count()
async def connect(url):
    at = urlsplit(url)
    link = await asyncssh.connect(
        at.hostname, at.port, username=at.username, known_hosts=None, config=None,
        agent_path=None, client_keys=parse_qs(at.query)["key"], compression_algs=None)
    session = await link.start_sftp_client()
    session.folder = at.path[1:]
    return session
async def call(user):
    async with user.open(f"{user.folder}/counted/b{next(names)}", "wb") as file:
        await file.write(b"load")
""",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        with guard.watch():
            rows = {name: measure(name, place) for name in LIBRARY}
    lines = [
        f"{VUS} connections, {DURATION_S} s, one core; median of {ROUNDS} rounds of calls per "
        "CPU second. The library alone in a bare loop; Hyperscale with its statistics and reports, "
        "without and with the CPU time of its start.",
        "",
        "| client | library alone | Hyperscale | share | with its start |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        ours = f"{row['hyperscale']:,.0f} | {row['share']:.2f} | {row['share_with_start']:.2f}"
        lines.append(f"| `{name}` | {row['library']:,.0f} | {ours} |")
    save("clients", "\n".join(lines), rows)
    slow = [name for name, row in rows.items() if row["share"] < SHARE_MIN]
    if slow:
        raise SystemExit(f"below {SHARE_MIN} of the library alone: {', '.join(slow)}")


def measure(name: str, folder: Path) -> dict[str, float]:
    contract = CONTRACTS[name]
    server = SERVICES[name](folder / name)
    server.start_first()
    try:
        values = {"url": server.client_url, "vus": VUS, "seconds": DURATION_S}
        test, bare = folder / f"load_{name}.py", folder / f"bare_{name}.py"
        brief = folder / f"brief_{name}.py"
        words = {"response": contract.response, "step": contract.step, **values}
        test.write_text(WORKFLOW.format(more="", **words))
        brief.write_text(WORKFLOW.format(more=f"iterations = {VUS}", **words))
        bare.write_text(BARE.format(code=LIBRARY[name], **values))
        runs: dict[str, Callable[[], float]] = {
            "library": lambda: _bare(bare),
            "start_cpu_s": lambda: _ours(brief, folder)[1],
            "hyperscale": lambda: ours.append(_ours(test, folder)) or ours[-1][0] / ours[-1][1],
        }
        ours: list[tuple[float, float]] = []  # calls and CPU seconds of each round
        found = interleave(ROUNDS, runs)
    finally:
        server.stop()
    row = {kind: median(values) for kind, values in found.items()}
    row["share_with_start"] = row["hyperscale"] / row["library"]
    row["hyperscale"] = median([calls / (cpu_s - row["start_cpu_s"]) for calls, cpu_s in ours])
    row["share"] = row["hyperscale"] / row["library"]
    print(
        f"{name:10} library {row['library']:9,.0f}  hyperscale {row['hyperscale']:9,.0f} "
        f"requests per CPU second: {row['share']:.2f}",
        flush=True,
    )
    return row


def _bare(script: Path) -> float:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    count, cpu_s = done.stdout.split()
    return int(count) / float(cpu_s)


def _ours(test: Path, folder: Path) -> tuple[float, float]:
    """Return how many calls a run has made, and its CPU seconds."""
    command = [
        str(HYPERSCALE),
        "run",
        str(test),
        "--workers",
        "1",
        "--json",
        str(folder / "r.json"),
    ]
    cpu_s = run(command).cpu_s
    workflow = json.loads((folder / "r.json").read_text())["workflows"][0]
    step = workflow["steps"][0]
    assert not step["failed"], step
    return float(step["ok"]), cpu_s
