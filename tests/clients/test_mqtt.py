"""`self.client.mqtt` beyond the contract: subscriptions and qualities of service."""

import pytest

from hyperscale.errors import InputError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("mqtt")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_listener_gets_every_message_between_its_calls(qos: int, service: GetService) -> None:
    url = service("mqtt").client_url

    async def main() -> None:
        async with opened() as (hub, _):
            hears, says = hub.client(0).mqtt, hub.client(1).mqtt
            silent = await hears.listen(url, f"room{qos}/+", qos=qos, wait=0.05)  # type: ignore[arg-type]
            assert silent.messages == []
            for number in range(5):
                sent = await says.publish(url, f"room{qos}/a", f"m{number}", qos=qos)  # type: ignore[arg-type]
                assert sent.bytes_sent == 2
            got = await hears.listen(url, f"room{qos}/+", qos=qos, count=5, wait="10s")  # type: ignore[arg-type]
            assert [message.payload for message in got.messages] == [
                f"m{number}".encode() for number in range(5)
            ]
            assert {(message.topic, message.qos) for message in got.messages} == {
                (f"room{qos}/a", qos)
            }
            assert got.bytes_received == 10

    play(main)


def test_wrong_arguments_are_refused() -> None:
    async def main() -> None:
        async with opened() as (hub, _):
            mqtt = hub.client(0).mqtt
            with pytest.raises(InputError, match="qos=3 is unknown"):
                await mqtt.publish("mqtt://127.0.0.1", "t", b"", qos=3)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="a count of 1 to 10,000"):
                await mqtt.listen("mqtt://127.0.0.1", "t", count=0)

    play(main)
