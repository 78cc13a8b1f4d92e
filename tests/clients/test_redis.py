"""`self.client.redis` beyond the contract: pipelines, pub/sub, streams."""

import asyncio

import pytest

from hyperscale.clients import ClientError
from hyperscale.errors import InputError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("redis")


def test_values_come_back_as_bytes_and_expire(service: GetService) -> None:
    url = service("redis").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            redis = hub.client(0).redis
            assert (await redis.set(url, "a", "ä", expire_s=100)).text == "OK"
            assert (await redis.get(url, "a")).value == "ä".encode()
            assert (await redis.get(url, "missing")).value is None
            assert 0 < (await redis.command(url, "TTL", "a")).value <= 100

    play(main)


def test_a_pipeline_is_one_request_with_all_replies(service: GetService) -> None:
    server = service("redis")

    async def main() -> None:
        async with opened() as (hub, _):
            redis = hub.client(0).redis
            await redis.command(server.client_url, "DEL", "n")
            many = await redis.pipeline(server.client_url, [("INCR", "n")] * 50 + [("GET", "n")])
            assert many.value == [*range(1, 51), b"50"]
            atomic = await redis.pipeline(
                server.client_url, [("INCR", "n"), ("GET", "n")], atomic=True
            )
            assert atomic.value == [51, b"51"]
            with pytest.raises(ClientError) as failed:
                await redis.pipeline(server.client_url, [("LPUSH", "n", 1), ("GET", "n")])
            assert (failed.value.error, failed.value.code) == ("server", "WRONGTYPE")
            assert (await redis.get(server.client_url, "n")).value == b"51"  # all replies were read
            assert server.connections() == 1
            for wrong in ([], "GET n", [()], ["GET"]):
                with pytest.raises(InputError):
                    await redis.pipeline(server.client_url, wrong)  # type: ignore[arg-type]

    play(main)


def test_a_listener_gets_every_message_between_its_calls(service: GetService) -> None:
    url = service("redis").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            hears, says = hub.client(0).redis, hub.client(1).redis
            silent = await hears.listen(url, "news", wait=0.01)
            assert silent.messages == []
            for number in range(20):
                heard = await says.publish(url, "news", f"message {number}")
                assert heard.value == 1
            got = await hears.listen(url, "news", count=20, wait="5s")
            assert got.messages == [("news", f"message {n}".encode()) for n in range(20)]
            assert got.bytes_received == sum(len(f"message {n}") for n in range(20))
            waiting = asyncio.create_task(hears.listen(url, "new*", wait="5s"))
            while not (await says.publish(url, "newest", "x")).value:
                await asyncio.sleep(0.01)
            assert ("newest", b"x") in (await waiting).messages

    play(main)


def test_streams_are_read_by_id_and_by_group(service: GetService) -> None:
    url = service("redis").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            redis = hub.client(0).redis
            await redis.command(url, "DEL", "log")
            ids = [(await redis.stream_add(url, "log", {"n": n})).text for n in range(5)]
            read = await redis.stream_read(url, "log", after=ids[2])
            assert read.messages == [(ids[3], {b"n": b"3"}), (ids[4], {b"n": b"4"})]
            await redis.command(url, "XGROUP", "CREATE", "log", "g", "0")
            mine = await redis.stream_read(url, "log", group="g", count=3)
            rest = await redis.stream_read(url, "log", group="g", count=3)
            assert [entry for entry, _ in [*mine.messages, *rest.messages]] == ids
            none = await redis.stream_read(url, "log", group="g", wait=0.02)
            assert none.messages == []

    play(main)


def test_an_error_reply_shows_the_key_and_never_the_value(service: GetService) -> None:
    url = service("redis").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            redis = hub.client(0).redis
            await redis.set(url, "word", "text")
            with pytest.raises(ClientError) as failed:
                await redis.command(url, "HSET", "word", "field", "private")
            assert (failed.value.error, failed.value.code) == ("server", "WRONGTYPE")
            assert "HSET word to redis://:***@127.0.0.1" in str(failed.value)
            assert "private" not in str(failed.value)
            with pytest.raises(InputError, match="needs a command"):
                await redis.command(url)

    play(main)
