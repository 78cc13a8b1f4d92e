"""`self.client.rabbitmq` beyond the contract: consuming, RPC, returned messages."""

import asyncio

import aio_pika
import pytest

from hyperscale.clients import ClientError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("rabbitmq")


def test_messages_are_consumed_in_order_and_acknowledged(service: GetService) -> None:
    url = service("rabbitmq").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            rabbit = hub.client(0).rabbitmq
            await rabbit.declare(url, "shelf")
            for number in range(6):
                sent = await rabbit.publish(url, "shelf", f"m{number}", headers={"n": number})
                assert sent.bytes_sent == 2
            got = await rabbit.consume(url, "shelf", count=4, wait="5s")
            assert [message.body for message in got.messages] == [b"m0", b"m1", b"m2", b"m3"]
            assert got.messages[3].headers == {"n": 3}
            rest = await rabbit.consume(url, "shelf", count=4, wait=0.2)
            assert [message.body for message in rest.messages] == [b"m4", b"m5"]
            assert rest.bytes_received == 4
            assert (await rabbit.declare(url, "shelf")).value == 0

    play(main)


def test_a_message_that_no_queue_takes_is_an_error(service: GetService) -> None:
    url = service("rabbitmq").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            rabbit = hub.client(0).rabbitmq
            with pytest.raises(ClientError) as failed:
                await rabbit.publish(url, "nowhere", b"x")
            assert (failed.value.error, failed.value.code) == ("server", "312")
            assert (await rabbit.publish(url, "nowhere", b"x", mandatory=False)).bytes_sent == 1
            with pytest.raises(ClientError) as missing:
                await rabbit.consume(url, "no-such-queue")
            assert missing.value.error == "server"

    play(main)


def test_rpc_waits_for_the_reply_to_its_own_request(service: GetService) -> None:
    url = service("rabbitmq").client_url

    async def main() -> None:
        link = await aio_pika.connect(url)
        channel = await link.channel()
        queue = await channel.declare_queue("double", auto_delete=True)

        async def serve(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await channel.default_exchange.publish(
                    aio_pika.Message(message.body * 2, correlation_id=message.correlation_id),
                    message.reply_to or "",
                )

        await queue.consume(serve)
        async with opened() as (hub, _):
            calls = [hub.client(vu).rabbitmq.rpc(url, "double", f"{vu}") for vu in range(5)]
            replies = await asyncio.gather(*calls)
            assert [reply.body for reply in replies] == [b"00", b"11", b"22", b"33", b"44"]
        await link.close()

    play(main)
