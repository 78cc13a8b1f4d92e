"""`self.client.kafka` beyond the contract: batches, groups, lag and age."""

import uuid

import pytest

from hyperscale.errors import InputError
from tests.clients.test_contract import opened, play
from tests.services.fixtures import GetService

pytestmark = pytest.mark.service("kafka")


def test_what_is_produced_is_consumed_once_in_a_group_with_its_lag_and_age(
    service: GetService,
) -> None:
    url = service("kafka").client_url
    group = uuid.uuid4().hex

    async def main() -> None:
        async with opened(timeout_s=30.0) as (hub, _):
            kafka = hub.client(0).kafka
            sent = await kafka.produce_many(
                url, "log", [f"m{n}" for n in range(10)], key="k", headers={"a": b"1"}
            )
            start = sent.offsets[0]
            assert sent.offsets == list(range(start, start + 10))
            assert sent.bytes_sent == 20
            first = await kafka.consume(url, "log", group=group, count=4, wait="20s")
            assert [message.value for message in first.messages] == [b"m0", b"m1", b"m2", b"m3"]
            assert first.lag == 6
            message = first.messages[0]
            assert (message.key, message.headers, message.topic) == (b"k", {"a": b"1"}, "log")
            assert message.age_s is not None
            assert 0 <= message.age_s < 60
            rest = await kafka.consume(url, "log", group=group, count=6, wait="20s")
            assert [message.value for message in rest.messages][-1] == b"m9"
            assert (rest.lag, rest.bytes_received) == (0, 12)
            none = await kafka.consume(url, "log", group=group, wait=0.05)
            assert none.messages == []
            unheard = await kafka.produce(url, "log", b"x", acks=0)
            assert unheard.offsets == [-1]

    play(main)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda kafka, url: kafka.produce(url, "t", b"x", acks=7), "acks=7 is unknown"),
        (lambda kafka, url: kafka.produce_many(url, "t", []), "needs a message"),
        (lambda kafka, url: kafka.consume(url, "t", count=0), "a count of 1 to 10,000"),
        (lambda kafka, url: kafka.consume(url, "t", start="middle"), "start='middle' is unknown"),
    ],
)
def test_wrong_arguments_are_refused(call: object, said: str) -> None:
    async def main() -> None:
        async with opened() as (hub, _):
            with pytest.raises(InputError, match=said):
                await call(hub.client(0).kafka, "kafka://127.0.0.1:1")  # type: ignore[operator]

    play(main)
