"""What every client with a library promises, on a real server."""

import asyncio
import collections
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hyperscale._native import Recorder
from hyperscale.clients import Client, ClientError, ClientHub
from hyperscale.clients.libraries import client_class
from hyperscale.errors import InputError
from hyperscale.plan import Connections, WorkflowPlan
from hyperscale.testing.protocols import PROTOCOLS
from tests.clients.contracts import CONTRACTS, Contract
from tests.lab.command import results, run
from tests.lab.ports import free_port
from tests.services.base import Service
from tests.services.fixtures import GetService

Main = Callable[[], Coroutine[Any, Any, None]]

# PyMongo leaves sockets that did not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
clients = pytest.mark.parametrize("name", sorted(CONTRACTS))


def play(main: Main) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@asynccontextmanager
async def opened(
    connections: Connections = Connections.PER_VU, *, timeout_s: float = 10.0
) -> AsyncIterator[tuple[ClientHub, Recorder]]:
    plan = WorkflowPlan(
        name="Load", vus=1, duration_s=60.0, timeout_s=timeout_s, connections=connections
    )
    recorder = Recorder(1)
    hub = ClientHub(plan, recorder)
    try:
        yield hub, recorder
    finally:
        await hub.drain()
        hub.close()


async def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.02)


async def reply(contract: Contract, client: Client, url: str, number: int) -> Any:
    """Make a call with a number; returns the number if the reply is the one that belongs to it."""
    seen = contract.reads(await contract.call(client, url, number))
    return number if seen == contract.replies(number) else seen


def at(url: str, *, port: int | None = None, host: str | None = None) -> str:
    """Return the URL with another host or port."""

    def change(match: re.Match[str]) -> str:
        return f"{match[1]}{host or match[2]}:{port or match[3]}"

    return re.sub(r"(://(?:[^@/]*@)?)([^:/]+):(\d+)", change, url, count=1)


@clients
def test_counts_equal_those_of_the_server(name: str, service: GetService, tmp_path: Path) -> None:
    contract, server = CONTRACTS[name], service(name)
    (tmp_path / "load.py").write_text(
        f"from hyperscale import Workflow, step\n"
        f"from hyperscale.testing import URL, {contract.response}\n\n\n"
        f"class Load(Workflow):\n"
        f"    vus = 4\n"
        f'    grace = "20s"\n'  # so that no call is cut on its way
        f"    @step()\n"
        f"    async def call(self, url: URL = {server.client_url!r}) -> {contract.response}:\n"
        f"        return await {contract.step}\n"
    )
    before = contract.count(server)
    length = f"{2 * contract.patience}s"
    done = run("run", "load.py", "--duration", length, "--json", "r.json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    step = results(tmp_path / "r.json")["workflows"][0]["steps"][0]
    assert step["ok"] > 10 / contract.patience
    assert step["failed"] == 0, step
    assert step["sent"] == contract.count(server) - before
    assert step["ok"] + step["cut"] == step["sent"]
    assert "sesame" not in done.stdout + (tmp_path / "r.json").read_text()


@clients
@pytest.mark.parametrize("policy", list(Connections))
def test_replies_reach_the_call_that_asked(
    name: str, policy: Connections, service: GetService
) -> None:
    contract, server = CONTRACTS[name], service(name)

    async def main() -> None:
        async with opened(policy, timeout_s=10.0 * contract.patience) as (hub, _):
            users = [hub.client(vu) for vu in range(contract.users)]

            async def ask(vu: int) -> None:
                for n in range(5):
                    number = vu * 100 + n
                    assert await reply(contract, users[vu], server.client_url, number) == number

            await asyncio.gather(*(ask(vu) for vu in range(contract.users)))
            open_now = server.connections()
            most = {Connections.PER_VU: 8, Connections.SHARED: 8}.get(policy, 0)
            if name in _ONE_SOCKET:
                await until(lambda: server.connections() <= most)
                assert policy is Connections.PER_REQUEST or open_now > 0
        await until(lambda: server.connections() == 0)

    play(main)


_ONE_SOCKET = {"postgres", "redis", "mysql", "mqtt", "smtp", "rabbitmq", "ftp", "sftp", "scp"}


@clients
def test_a_call_that_times_out_or_is_cut_leaves_no_broken_connection(
    name: str, service: GetService
) -> None:
    contract, server = CONTRACTS[name], service(name)

    async def main() -> None:
        async with opened(Connections.SHARED, timeout_s=10.0 * contract.patience) as (hub, _):
            client = hub.client(0)
            assert await reply(contract, client, server.client_url, 1) == 1
            server.pause()
            try:
                cut = asyncio.create_task(reply(contract, client, server.client_url, 2))
                await asyncio.sleep(0.1)  # so that the request is on its way, mostly
                cut.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cut
                hub._room.timeout_s = 0.3
                with pytest.raises(ClientError) as failed:
                    await reply(contract, client, server.client_url, 3)
                assert failed.value.error == "timeout"
            finally:
                server.resume()
            hub._room.timeout_s = 10.0 * contract.patience
            for number in range(4, 9):
                assert await reply(contract, client, server.client_url, number) == number
        await until(lambda: server.connections() == 0)

    play(main)


@clients
def test_a_killed_server_gives_classified_errors_and_calls_recover(
    name: str, service: GetService
) -> None:
    contract, server = CONTRACTS[name], service(name)

    async def main() -> None:
        async with opened(timeout_s=2.0 * contract.patience) as (hub, _):
            ended = asyncio.Event()
            errors: collections.Counter[str] = collections.Counter()
            messages: set[str] = set()
            replies = 0

            async def use(vu: int) -> None:
                nonlocal replies
                client = hub.client(vu)
                while not ended.is_set():
                    try:
                        assert await reply(contract, client, server.client_url, vu) == vu
                        replies += 1
                    except ClientError as error:
                        errors[error.error] += 1
                        messages.add(str(error))
                        await asyncio.sleep(0.01)  # a refused connection costs no time

            async with asyncio.TaskGroup() as tasks:
                users = [tasks.create_task(use(vu)) for vu in range(contract.users // 2)]
                await until(lambda: replies >= 8, within_s=20.0 * contract.patience)
                await asyncio.to_thread(server.kill)
                await until(lambda: sum(errors.values()) >= 4)
                await asyncio.to_thread(server.start)
                back = replies
                await until(lambda: replies >= back + 8, within_s=40.0 * contract.patience)
                ended.set()
                await asyncio.gather(*users)
            assert set(errors) <= contract.errors, "\n".join(sorted(messages))
            assert "sesame" not in "".join(messages)
        await until(lambda: server.connections() == 0)

    play(main)


@clients
def test_errors_before_the_request_are_told_apart(name: str, service: GetService) -> None:
    contract, server = CONTRACTS[name], service(name)

    async def main() -> None:
        async with opened(timeout_s=10.0 * contract.patience) as (hub, _):
            client = hub.client(0)

            async def error_of(url: str) -> str:
                with pytest.raises(ClientError) as failed:
                    await contract.call(client, url, 1)
                assert "sesame" not in str(failed.value)
                return failed.value.error

            assert await error_of(at(server.client_url, port=free_port())) == "connect"
            assert await error_of(at(server.client_url, host="nowhere.invalid")) == "dns"
            if contract.has_login:
                assert await error_of(server.client_url.replace("sesame", "pumpkin")) == "auth"

    play(main)


@clients
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PROTOCOLS[name]
    for module in [m for m in sys.modules if m.split(".")[0] == row.library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, f"hyperscale.clients.{name}", raising=False)
    monkeypatch.setitem(sys.modules, row.library, None)
    with pytest.raises(InputError) as refused:
        client_class(name)
    assert refused.value.hint == f"pip install 'hyperscale[{row.extra}]'"
    assert f"self.client.{name} needs the package {row.library!r}" in refused.value.message


@clients
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gopher://127.0.0.1/", "scheme 'gopher'"),
        ("127.0.0.1", "no scheme"),
        ("{scheme}://", "no host"),
        ("{scheme}://127.0.0.1:99999/", "Port out of range"),
        ("{scheme}://127.0.0.1:0/", "port 0"),
        ("{scheme}://a b/", "blank"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(name: str, url: str, said: str) -> None:
    contract = CONTRACTS[name]
    scheme = next(iter(PROTOCOLS[name].ports))

    async def main() -> None:
        async with opened() as (hub, _):
            with pytest.raises(InputError) as refused:
                await contract.call(hub.client(0), url.format(scheme=scheme), 1)
            assert said in refused.value.message
            assert PROTOCOLS[name].example in refused.value.hint

    play(main)


@clients
def test_ping_shows_the_server_and_its_times(
    name: str, service: GetService, tmp_path: Path
) -> None:
    server: Service = service(name)
    done = run("ping", name, server.client_url, cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    assert "connect" in done.stdout
    assert " ms" in done.stdout
    assert "sesame" not in done.stdout
    refused = run("ping", name, at(server.client_url, port=free_port()), cwd=tmp_path)
    assert refused.code == 3, refused.stdout + refused.stderr
    assert "connect" in refused.stdout
