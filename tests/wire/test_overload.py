"""More than a node will take: refusals that say when to come back, memory that stays bounded."""

import asyncio

import pytest

from hyperscale.wire.admission import Admission, AdmissionWatermarks
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import OverloadedError, QueueFullError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role
from tests.lab.loops import run
from tests.lab.peers import Answer, Bulk, Final, Question, Silent, ask, echoing, server
from tests.lab.waiting import soon, until_async
from tests.wire.raw_peer import Raw


def test_a_refused_call_is_repeated_after_the_time_the_peer_asked_for() -> None:
    async def main() -> None:
        refusals = 2

        async def answer(_call: InboundCall, question: Question) -> Answer:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise OverloadedError("not now", retry_after_s=0.05)
            return Answer(question.text)

        handlers = Handlers()
        handlers.add(Question, answer)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            began_s = asyncio.get_running_loop().time()
            assert await link.call(ask(), Answer, deadline_s=soon()) == Answer("hello")
            waited_s = asyncio.get_running_loop().time() - began_s
            assert waited_s >= 0.05 + 0.05 * 1.5  # obeyed, and the second time more so
            assert refusals == 0

    run(main)


def test_a_call_whose_deadline_is_before_the_retry_fails_at_once() -> None:
    async def main() -> None:
        asked = 0

        async def answer(_call: InboundCall, _question: Question) -> Answer:
            nonlocal asked
            asked += 1
            raise OverloadedError("not now", retry_after_s=30)

        handlers = Handlers()
        handlers.add(Question, answer)
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            for _ in range(3):
                with pytest.raises(OverloadedError) as caught:
                    await link.call(ask(), Answer, deadline_s=soon(5))
                assert caught.value.retry_after_s > 25
            assert asked == 1  # the other two never left

    run(main)


def test_over_the_watermark_low_is_refused_and_critical_is_not() -> None:
    async def main() -> None:
        silent = Silent()
        silent.handlers.add(Final, lambda _, final: Answer(final.text))
        admission = Admission(AdmissionWatermarks(total=2, normal=2, low=1), server().rng)
        async with (
            server("a") as a,
            server("b", handlers=silent.handlers, admission=admission) as b,
        ):
            link = a.link(*await b.listen("127.0.0.1", 0))
            held = [
                asyncio.ensure_future(link.call(ask(str(n)), Answer, deadline_s=soon()))
                for n in range(2)
            ]
            await until_async(lambda: len(silent.begun) == 2)
            with pytest.raises(OverloadedError) as caught:
                await link.call(ask("third"), Answer, deadline_s=soon(), retries=0)
            assert 0.25 <= caught.value.retry_after_s <= 1.0
            assert await link.call(Final("done"), Answer, deadline_s=soon()) == Answer("done")
            silent.release.set()
            assert [answer.text for answer in await asyncio.gather(*held)] == ["0", "1"]
            assert admission.in_flight == [0, 0, 0, 0]
            assert admission.shed == [0, 0, 1, 0]

    run(main)


def test_a_client_over_its_rate_is_refused_and_another_is_not() -> None:
    async def main() -> None:
        async with (
            server("b", handlers=echoing()) as b,
            server("greedy", Role.CLIENT) as greedy,
            server("modest", Role.CLIENT) as modest,
        ):
            address = await b.listen("127.0.0.1", 0)
            link, other = greedy.link(*address), modest.link(*address)
            for _ in range(100):
                await link.call(ask(), Answer, deadline_s=soon())
            with pytest.raises(OverloadedError):
                await link.call(ask(), Answer, deadline_s=soon(1), retries=0)
            assert await other.call(ask(), Answer, deadline_s=soon())

    run(main)


def test_a_peer_that_does_not_read_costs_bounded_memory() -> None:
    async def main() -> None:
        async with server("a") as a:
            raw = await (await Raw.dial(await a.listen("127.0.0.1", 0))).shake()
            await until_async(lambda: a.connections)
            connection = a.connections[0]
            calls = [
                asyncio.ensure_future(
                    connection.call(Bulk(bytes(4_000_000)), Answer, deadline_s=soon())
                )
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            full = [call for call in calls if call.done()]
            assert full
            assert all(isinstance(call.exception(), QueueFullError) for call in full)
            assert connection.session.outbox.held_bytes <= 32 * 1024 * 1024
            connection.send(Final("still taken"))
            connection.abort("enough")
            await asyncio.wait(calls)
            await raw.close()
            for call in calls:
                assert call.exception() is not None

    run(main)
