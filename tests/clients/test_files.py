"""`self.client.ftp`, `sftp` and `scp` beyond the contract: calls, limits, refusals."""

import os
from pathlib import Path
from typing import Any

import pytest

from hyperscale.clients import ClientError, transfers
from hyperscale.errors import InputError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

clients = pytest.mark.parametrize("name", ["ftp", "sftp", "scp"])
directories = pytest.mark.parametrize("name", ["ftp", "sftp"])


def client_of(hub: Any, name: str) -> Any:
    return getattr(hub.client(0), name)


@clients
@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_a_file_comes_back_as_it_was_written(name: str, size: int, service: GetService) -> None:
    url, content = service(name).client_url, os.urandom(size)

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)
            written = await client.upload(url, f"file {size}", content)
            assert written.bytes_sent == size
            read = await client.download(url, f"file {size}")
            assert read.content == content
            assert read.bytes_received == size
            counted = await client.download(url, f"file {size}", keep=False)
            assert (counted.content, counted.bytes_received) == (None, size)

    play(main)


@clients
def test_a_refusal_of_the_server_keeps_the_connection(name: str, service: GetService) -> None:
    url = service(name).client_url

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)
            for _ in range(3):
                with pytest.raises(ClientError) as failed:
                    await client.download(url, "nothing/here")
                assert failed.value.error == "server", failed.value
                with pytest.raises(ClientError) as failed:
                    await client.upload(url, "nothing/here", b"x")
                assert failed.value.error == "server", failed.value
            assert (await client.download(url, "item")).connect_ns is None

    play(main)


@clients
def test_a_download_keeps_no_more_than_the_limit(
    name: str, service: GetService, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = service(name).client_url
    monkeypatch.setattr(transfers, "KEPT_BYTES_MAX", 500_000)

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)
            await client.upload(url, "large", bytes(600_000))
            with pytest.raises(ValueError, match="keep=False"):
                await client.download(url, "large")
            assert (await client.download(url, "large", keep=False)).bytes_received == 600_000

    play(main)


@directories
def test_directories_are_made_listed_and_emptied(name: str, service: GetService) -> None:
    url = service(name).client_url

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)
            await client.make_directory(url, "box")
            await client.upload(url, "box/a", b"12345")
            await client.make_directory(url, "box/inner")
            await client.rename(url, "box/a", "box/b")
            listed = await client.list(url, "box")
            assert sorted((each.name, each.is_directory) for each in listed.entries) == [
                ("b", False),
                ("inner", True),
            ]
            assert next(each.size for each in listed.entries if each.name == "b") == 5
            await client.delete(url, "box/b")
            assert [each.name for each in (await client.list(url, "box")).entries] == ["inner"]

    play(main)


@clients
def test_wrong_arguments_are_refused(name: str, service: GetService) -> None:
    url = service(name).client_url

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)
            with pytest.raises(InputError, match="is not a path"):
                await client.download(url, "a\r\nDELE item")
            with pytest.raises(InputError, match="neither bytes nor a text"):
                await client.upload(url, "a", 7)

    play(main)


@pytest.mark.parametrize("name", ["sftp", "scp"])
def test_keys_decide_who_may_log_in_and_whom_to_trust(
    name: str, service: GetService, tmp_path: Path
) -> None:
    server: Any = service(name)
    url, folder = server.client_url, server.directory
    known, wrong = tmp_path / "known", tmp_path / "wrong"
    host = f"[127.0.0.1]:{server.port} "
    known.write_text(host + (folder / "host.pub").read_text())
    wrong.write_text(host + (folder / "stranger.pub").read_text())

    async def main() -> None:
        async with opened() as (hub, _):
            client = client_of(hub, name)

            async def error_of(url: str) -> str:
                with pytest.raises(ClientError) as failed:
                    await client.download(url, "item")
                return failed.value.error

            assert (await client.download(f"{url}&known_hosts={known}", "item")).content
            assert await error_of(f"{url}&known_hosts={wrong}") == "tls"
            assert await error_of(url.replace(f"{folder}/key", f"{folder}/stranger")) == "auth"
            with pytest.raises(InputError, match="cannot be read"):
                await client.download(url.replace(f"{folder}/key", "/nowhere"), "item")
            with pytest.raises(InputError, match="option 'keys' is unknown"):
                await client.download(f"{url}&keys=x", "item")

    play(main)
