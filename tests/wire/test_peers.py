"""Calls between real nodes on loopback sockets."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import Struct

from hyperscale.errors import InputError, InvariantError
from hyperscale.wire.admission import Admission, Watermarks
from hyperscale.wire.breaker import BreakerState
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import (
    CircuitOpenError,
    ConnectionLostError,
    DeadlineError,
    OverloadedError,
    QueueFullError,
    RemoteError,
    UnreachableError,
)
from hyperscale.wire.messages import Chunk, Introduction
from hyperscale.wire.peer import Hooks, PeerServer
from hyperscale.wire.registry import REGISTRY, Priority, SizeClass, message
from hyperscale.wire.roles import Role
from hyperscale.wire.serving import Handlers
from tests.wire.lab import (
    Answer,
    Bulk,
    Fetch,
    Final,
    Note,
    Question,
    echoing,
    run,
    server,
    soon,
    until,
)


def ask(text: str = "hello") -> Question:
    return Question(text)


class Silent:
    """Handlers that take a question and answer when told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.release = asyncio.Event()
        self.handlers = Handlers()
        self.handlers.add(Question, self.answer)

    async def answer(self, _call: InboundCall, question: Question) -> Answer:
        self.begun.append(question.text)
        try:
            await self.release.wait()
            return Answer(question.text)
        finally:
            self.ended.append(question.text)


def test_a_question_is_answered() -> None:
    async def main() -> None:
        async with server("a") as a, server("b", handlers=echoing()) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            assert await link.call(ask(), Answer, deadline_s=soon()) == Answer("HELLO")
            assert link.node_id == "b"

    run(main)


@pytest.mark.parametrize("secret", ["correct horse battery staple", None])
def test_many_questions_share_one_connection_and_answers_find_their_askers(
    secret: str | None,
) -> None:
    async def main() -> None:
        async with (
            server("a", secret=secret) as a,
            server("b", secret=secret, handlers=echoing()) as b,
        ):
            link = a.link(*await b.listen("127.0.0.1", 0))
            answers = await asyncio.gather(
                *(link.call(ask(f"q{n}"), Answer, deadline_s=soon()) for n in range(250))
            )
            assert [answer.text for answer in answers] == [f"Q{n}" for n in range(250)]
            assert len(a.connections) == len(b.connections) == 1

    run(main)


def test_both_sides_ask_on_the_same_connection() -> None:
    async def main() -> None:
        async with server("a", handlers=echoing()) as a, server("b", handlers=echoing()) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            await link.call(ask(), Answer, deadline_s=soon())
            back = b.connection_to("a")
            assert back is not None
            assert (await back.call(ask("x"), Answer, deadline_s=soon())).text == "X"

    run(main)


def test_a_plain_function_answers_within_the_read() -> None:
    async def main() -> None:
        handlers = Handlers()
        handlers.add(Question, lambda call, question: Answer(f"{call.peer.node_id}"))
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            assert (await link.call(ask(), Answer, deadline_s=soon())).text == "a"

    run(main)


def test_one_way_messages_arrive_in_order() -> None:
    async def main() -> None:
        heard: list[str] = []
        handlers = Handlers()
        handlers.add(Note, lambda _, note: heard.append(note.text))
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            for number in range(5):
                link.send(Note(f"parked {number}"))  # before there is a connection
            await until(lambda: len(heard) == 5)
            for number in range(5):
                link.send(Note(f"sent {number}"))
            await until(lambda: len(heard) == 10)
            assert heard == [f"parked {n}" for n in range(5)] + [f"sent {n}" for n in range(5)]

    run(main)


def test_a_large_body_travels_and_one_over_its_class_does_not_leave() -> None:
    async def main() -> None:
        handlers = Handlers()
        handlers.add(Bulk, lambda _, bulk: Answer(str(len(bulk.data))))
        async with server("a") as a, server("b", handlers=handlers) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            size = SizeClass.LARGE - 100
            answer = await link.call(Bulk(bytes(size)), Answer, deadline_s=soon(30))
            assert answer.text == str(size)
            with pytest.raises(InvariantError, match="LARGE"):
                await link.call(Bulk(bytes(SizeClass.LARGE)), Answer, deadline_s=soon())

    run(main)


@pytest.mark.parametrize("newer", [(1, 1), (1, 2)])
def test_nodes_a_minor_version_apart_talk_at_the_older_ones_features(
    newer: tuple[int, int],
) -> None:
    async def main() -> None:
        ours = {"capabilities": ["cancel", "batches"]}
        theirs = {"capabilities": ["cancel", "batches", "telepathy"], "version": "9.9.9"}
        async with (
            server("a", protocol=(1, 0), handlers=echoing(), intro=ours) as old,
            server("b", protocol=newer, handlers=echoing(), intro=theirs) as new,
        ):
            address = await new.listen("127.0.0.1", 0)
            connection = await old.dial(*address)
            assert connection.protocol == (1, 0)
            assert connection.capabilities == {"cancel", "batches"}
            assert connection.peer.version == "9.9.9"
            for side in (connection, new.connections[0]):
                assert await side.call(ask(), Answer, deadline_s=soon()) == Answer("HELLO")

    run(main)


class TestFailures:
    def call_failing_with(self, error: Exception) -> Exception:
        async def main() -> Exception:
            handlers = Handlers()

            async def answer(_call: InboundCall, _question: Question) -> Answer:
                raise error

            handlers.add(Question, answer)
            async with server("a") as a, server("b", handlers=handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                with pytest.raises((RemoteError, OverloadedError)) as caught:
                    await link.call(ask(), Answer, deadline_s=soon(), retries=0)
                assert b.admission.in_flight == [0, 0, 0, 0]
                return caught.value

        return run(main)

    def test_an_error_of_ours_travels_as_text(self) -> None:
        error = self.call_failing_with(InputError("no such job", hint="see 'jobs'"))
        assert isinstance(error, RemoteError)
        assert error.code == "failed"
        assert "no such job" in str(error)

    def test_a_handler_may_fail_with_a_code_of_its_own(self) -> None:
        error = self.call_failing_with(RemoteError("it is m2", code="not_leader"))
        assert isinstance(error, RemoteError)
        assert error.code == "not_leader"

    def test_an_unexpected_error_stays_inside(self, caplog: pytest.LogCaptureFixture) -> None:
        error = self.call_failing_with(ValueError("/secret/path"))
        assert isinstance(error, RemoteError)
        assert error.code == "internal"
        assert "/secret/path" not in str(error)
        assert "Traceback" not in str(error)
        assert "/secret/path" in caplog.text

    def test_a_handler_may_refuse_for_now(self) -> None:
        error = self.call_failing_with(OverloadedError("queue full", retry_after_s=7.5))
        assert isinstance(error, OverloadedError)
        assert error.retry_after_s == 7.5
        assert error.is_definite

    def test_a_message_nobody_serves_or_knows_or_may_send_fails_and_the_connection_stays(
        self,
    ) -> None:
        async def main() -> None:
            async with (
                server("w", Role.WORKER) as a,
                server("b", handlers=echoing()) as b,
                server("c", Role.CLIENT) as client,
            ):
                address = await b.listen("127.0.0.1", 0)
                link, guest = a.link(*address), client.link(*address)
                with pytest.raises(RemoteError, match="not served") as caught:
                    await link.call(Fetch(1), Answer, deadline_s=soon())
                assert caught.value.code == "unhandled"
                with pytest.raises(RemoteError, match="a client may not send Fetch") as caught:
                    await guest.call(Fetch(1), Answer, deadline_s=soon())
                assert caught.value.code == "role"
                assert b.refusals.counts["role"] == 1  # type: ignore[index]  # str is Reason
                assert await link.call(ask(), Answer, deadline_s=soon())
                assert await guest.call(ask(), Answer, deadline_s=soon())

        run(main)

    def test_a_kind_only_a_newer_version_knows_is_answered(self) -> None:
        async def main() -> None:
            async with server("a") as a, server("b", handlers=echoing()) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                await link.call(ask(), Answer, deadline_s=soon())

                @message(kind=60900, priority=Priority.LOW, size=SizeClass.SMALL)
                class Newer(Struct):
                    pass

                connection = link.connection
                assert connection is not None
                call = asyncio.ensure_future(connection.call(Newer(), Answer, deadline_s=soon()))
                await asyncio.sleep(0)
                REGISTRY.by_kind.pop(60900)
                with pytest.raises(RemoteError) as caught:
                    await call
                assert caught.value.code == "unknown"
                assert await link.call(ask(), Answer, deadline_s=soon())

        run(main)


class TestDeadlines:
    def test_a_deadline_travels_and_ends_the_handler(self) -> None:
        async def main() -> None:
            silent = Silent()
            seen: list[float] = []

            async def answer(call: InboundCall, question: Question) -> Answer:
                seen.append(call.deadline_s - asyncio.get_running_loop().time())
                return await silent.answer(call, question)

            handlers = Handlers()
            handlers.add(Question, answer)
            async with server("a") as a, server("b", handlers=handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                with pytest.raises(DeadlineError) as caught:
                    await link.call(ask(), Answer, deadline_s=soon(0.3))
                assert not caught.value.is_definite
                assert 0 < seen[0] <= 0.302
                await until(lambda: silent.ended == ["hello"])
                assert b.admission.in_flight == [0, 0, 0, 0]

        run(main)

    def test_a_peer_that_is_not_there_is_unreachable_at_the_deadline(self) -> None:
        async def main() -> None:
            async with server("a") as a:
                link = a.link("127.0.0.1", 1)
                with pytest.raises(UnreachableError, match="no connection") as caught:
                    await link.call(ask(), Answer, deadline_s=soon(0.2))
                assert caught.value.is_definite

        run(main)


class TestStreams:
    def serving(self, log: list[str]) -> Handlers:
        async def parts(_call: InboundCall, fetch: Fetch) -> AsyncGenerator[Chunk, None]:
            try:
                for number in range(fetch.parts):
                    yield Chunk(bytes([number % 256]) * fetch.part_bytes)
                    log.append("yielded")
            finally:
                log.append("closed")

        handlers = Handlers()
        handlers.add(Fetch, parts)
        return handlers

    def test_sixty_four_megabytes_arrive_in_parts_and_in_order(self) -> None:
        async def main() -> None:
            log: list[str] = []
            async with server("a") as a, server("b", handlers=self.serving(log)) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                total, number = 0, 0
                asked = Fetch(parts=128, part_bytes=512 * 1024)
                async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                    async for part in parts:
                        assert part.data[0] == number % 256
                        total += len(part.data)
                        number += 1
                assert total == 64 * 1024 * 1024
                assert log[-1] == "closed"

        run(main)

    def test_a_slow_reader_holds_the_writer_back(self) -> None:
        async def main() -> None:
            log: list[str] = []
            async with server("a") as a, server("b", handlers=self.serving(log)) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                asked = Fetch(parts=1000, part_bytes=256 * 1024)
                async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                    await anext(parts)
                    before = -1
                    while before != len(log):  # until the writer stands still
                        before = len(log)
                        await asyncio.sleep(0.1)
                    assert len(log) < 40  # the window, 4 MiB, and a little on the way
                    for _ in range(50):
                        await anext(parts)
                await until(lambda: log[-1] == "closed")
                assert len(log) < 120

        run(main)

    def test_other_calls_are_answered_while_a_stream_runs(self) -> None:
        async def main() -> None:
            handlers = self.serving([])
            handlers.add(Question, lambda _, question: Answer(question.text))
            async with server("a") as a, server("b", handlers=handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                asked = Fetch(parts=200, part_bytes=256 * 1024)
                async with await link.stream(asked, Chunk, deadline_s=soon(60)) as parts:
                    async for _ in parts:
                        await link.call(ask(), Answer, deadline_s=soon())

        run(main)

    def test_a_stream_that_fails_says_so_after_what_it_gave(self) -> None:
        async def main() -> None:
            async def parts(_call: InboundCall, _fetch: Fetch) -> AsyncGenerator[Chunk, None]:
                yield Chunk(b"one")
                await asyncio.sleep(0.05)
                raise RemoteError("disk gone", code="lost")

            handlers = Handlers()
            handlers.add(Fetch, parts)
            async with server("a") as a, server("b", handlers=handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                stream = await link.stream(Fetch(2), Chunk, deadline_s=soon())
                async with stream as received:
                    assert (await anext(received)).data == b"one"
                    with pytest.raises(RemoteError, match="disk gone"):
                        await anext(received)
                assert b.admission.in_flight == [0, 0, 0, 0]

        run(main)

    def test_a_lost_connection_ends_the_stream(self) -> None:
        async def main() -> None:
            async def parts(_call: InboundCall, _fetch: Fetch) -> AsyncGenerator[Chunk, None]:
                yield Chunk(b"one")
                await asyncio.Event().wait()

            handlers = Handlers()
            handlers.add(Fetch, parts)
            async with server("a") as a, server("b", handlers=handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                async with await link.stream(Fetch(2), Chunk, deadline_s=soon()) as received:
                    await anext(received)
                    b.connections[0].abort("pulled")
                    with pytest.raises(ConnectionLostError):
                        await anext(received)

        run(main)


class TestOverload:
    def test_a_refused_call_is_repeated_when_the_peer_said_so(self) -> None:
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

    def test_a_call_that_may_not_wait_that_long_fails_at_once_and_so_does_the_next(self) -> None:
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

    def test_over_the_watermark_low_is_refused_and_critical_is_not(self) -> None:
        async def main() -> None:
            silent = Silent()
            silent.handlers.add(Final, lambda _, final: Answer(final.text))
            admission = Admission(Watermarks(total=2, normal=2, low=1), server().rng)
            async with (
                server("a") as a,
                server("b", handlers=silent.handlers, admission=admission) as b,
            ):
                link = a.link(*await b.listen("127.0.0.1", 0))
                held = [
                    asyncio.ensure_future(link.call(ask(str(n)), Answer, deadline_s=soon()))
                    for n in range(2)
                ]
                await until(lambda: len(silent.begun) == 2)
                with pytest.raises(OverloadedError) as caught:
                    await link.call(ask("third"), Answer, deadline_s=soon(), retries=0)
                assert 0.25 <= caught.value.retry_after_s <= 1.0
                assert await link.call(Final("done"), Answer, deadline_s=soon()) == Answer("done")
                silent.release.set()
                assert [answer.text for answer in await asyncio.gather(*held)] == ["0", "1"]
                assert admission.in_flight == [0, 0, 0, 0]
                assert admission.shed == [0, 0, 1, 0]

        run(main)

    def test_a_client_over_its_rate_is_refused_and_another_is_not(self) -> None:
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

    def test_a_peer_that_does_not_read_costs_bounded_memory(self) -> None:
        async def main() -> None:
            async with server("a") as a, server("b", handlers=echoing()) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                await link.call(ask(), Answer, deadline_s=soon())
                transport: Any = b.connections[0]._transport
                transport.pause_reading()
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
                transport.resume_reading()
                await asyncio.wait(calls)
                for call in calls:
                    assert call.exception() is not None

        run(main)


class TestReconnecting:
    def test_a_link_finds_its_peer_again_and_parked_messages_arrive(self) -> None:
        async def main() -> None:
            heard: list[str] = []

            def handlers() -> Handlers:
                made = echoing()
                made.add(Note, lambda _, note: heard.append(note.text))
                return made

            async with server("a") as a:
                async with server("b", handlers=handlers()) as b:
                    address = await b.listen("127.0.0.1", 0)
                    link = a.link(*address)
                    await link.call(ask(), Answer, deadline_s=soon())
                await until(lambda: link.connection is None)
                link.send(Note("while away"))
                async with server("b", handlers=handlers(), incarnation=2) as b:
                    await b.listen(*address)
                    assert await link.call(ask("again"), Answer, deadline_s=soon(20))
                    await until(lambda: heard == ["while away"])

        run(main)

    def test_calls_in_flight_when_the_connection_is_lost_say_that_the_outcome_is_open(
        self,
    ) -> None:
        async def main() -> None:
            silent = Silent()
            async with server("a") as a, server("b", handlers=silent.handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                call = asyncio.ensure_future(link.call(ask(), Answer, deadline_s=soon()))
                await until(lambda: silent.begun)
                b.connections[0].abort("pulled")
                with pytest.raises(ConnectionLostError) as caught:
                    await call
                assert not caught.value.is_definite
                await until(lambda: silent.ended)

        run(main)

    def test_after_three_failures_calls_fail_at_once_until_the_peer_is_back(self) -> None:
        async def main() -> None:
            async with server("a") as a:
                async with server("b") as b:
                    address = await b.listen("127.0.0.1", 0)
                link = a.link(*address)
                for _ in range(3):
                    with pytest.raises(UnreachableError):
                        await link.call(ask(), Answer, deadline_s=soon(0.02))
                assert link.breaker_state is BreakerState.OPEN
                with pytest.raises(CircuitOpenError) as caught:
                    await link.call(ask(), Answer, deadline_s=soon(5))
                assert caught.value.is_definite
                assert 0 < caught.value.retry_after_s <= 10
                with pytest.raises(UnreachableError):  # a final result is always worth a try
                    await link.call(Final("x"), Answer, deadline_s=soon(0.02))
                async with server("b", handlers=echoing(), incarnation=2) as b:
                    await b.listen(*address)
                    await until(lambda: link.connection is not None)
                    assert link.breaker_state is BreakerState.CLOSED
                    assert await link.call(ask(), Answer, deadline_s=soon())

        run(main)

    def test_hooks_hear_of_connections_and_of_refused_dials(self) -> None:
        async def main() -> None:
            heard: list[tuple[str, str]] = []

            def connected(connection: Connection) -> None:
                heard.append(("connected", connection.peer.node_id))

            def disconnected(peer: Introduction, _why: str) -> None:
                heard.append(("disconnected", peer.node_id))

            def dial_failed(_host: str, _port: int, node: str | None, error: Exception) -> None:
                heard.append((type(error).__name__, node or ""))

            hooks = Hooks(connected, disconnected, dial_failed)
            async with server("a", hooks=hooks) as a:
                async with server("b") as b:
                    a.link(*await b.listen("127.0.0.1", 0))
                    await until(lambda: heard)
                await until(lambda: len(heard) >= 3)
            assert heard[:3] == [
                ("connected", "b"),
                ("disconnected", "b"),
                ("ConnectionRefusedError", "b"),
            ]

        run(main)


class TestOneConnectionPerPair:
    @pytest.mark.parametrize("smaller_first", [True, False])
    def test_when_both_dial_the_one_opened_by_the_smaller_id_stays(
        self, smaller_first: bool
    ) -> None:
        async def main() -> None:
            async with server("a", handlers=echoing()) as a, server("b", handlers=echoing()) as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                dials = [lambda: a.dial(*to_b), lambda: b.dial(*to_a)]
                if not smaller_first:
                    dials.reverse()
                for dial in dials:
                    await dial()
                await until(lambda: len(a._all) == len(b._all) == 1)
                (of_a,), (of_b,) = a.connections, b.connections
                assert (of_a.is_dialer, of_b.is_dialer) == (True, False)
                assert (await of_a.call(ask(), Answer, deadline_s=soon())).text == "HELLO"
                assert (await of_b.call(ask(), Answer, deadline_s=soon())).text == "HELLO"

        run(main)

    def test_a_hundred_simultaneous_dials_end_in_one_connection_and_lose_no_call(self) -> None:
        async def main() -> None:
            async with server("a", handlers=echoing()) as a, server("b", handlers=echoing()) as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                links = [a.link(*to_b), b.link(*to_a)]

                async def keep_asking(number: int) -> None:
                    for turn in range(20):
                        link = links[(number + turn) % 2]
                        text = f"{number}-{turn}"
                        answer = await link.call(ask(text), Answer, deadline_s=soon())
                        assert answer.text == text

                async def redial() -> None:
                    for _ in range(25):
                        await asyncio.gather(a.dial(*to_b), b.dial(*to_a))

                await asyncio.gather(redial(), *(keep_asking(n) for n in range(20)))
                await until(lambda: len(a._all) == len(b._all) == 1)

        run(main)

    def test_a_call_in_flight_on_the_connection_that_goes_is_answered_there(self) -> None:
        async def main() -> None:
            silent = Silent()
            async with server("a", handlers=silent.handlers) as a, server("b") as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                going = await b.dial(*to_a)
                call = asyncio.ensure_future(going.call(ask(), Answer, deadline_s=soon()))
                await until(lambda: silent.begun)
                await a.dial(*to_b)
                await until(lambda: not going.is_usable)
                silent.release.set()
                assert await call == Answer("hello")
                await until(lambda: len(a._all) == len(b._all) == 1)

        run(main)

    def test_a_peer_that_dials_again_later_has_lost_the_connection_we_still_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hyperscale.wire.peer.DOUBLE_DIAL_S", -1.0)

        async def main() -> None:
            async with server("a", handlers=echoing()) as a, server("b", handlers=echoing()) as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                await a.dial(*to_b)
                again = await b.dial(*to_a)  # though a's, the smaller's, is there
                await until(lambda: len(a._all) == len(b._all) == 1)
                assert again.is_usable
                assert await again.call(ask(), Answer, deadline_s=soon())

        run(main)

    def test_a_connection_left_is_cut_off_if_the_peer_does_not_let_go(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hyperscale.wire.connection.LEAVE_S", 0.1)

        async def main() -> None:
            silent = Silent()
            async with server("a") as a, server("b", handlers=silent.handlers) as b:
                connection = await a.dial(*await b.listen("127.0.0.1", 0))
                call = asyncio.ensure_future(connection.call(ask(), Answer, deadline_s=soon()))
                await until(lambda: silent.begun)
                connection.leave("enough")
                with pytest.raises(ConnectionLostError):
                    await call
                await until(lambda: silent.ended)

        run(main)

    def test_a_peer_that_hangs_up_at_once_is_not_dialled_in_a_loop(self) -> None:
        async def main() -> None:
            dials = 0

            def hang_up(connection: Connection) -> None:
                nonlocal dials
                dials += 1
                asyncio.get_running_loop().call_soon(connection.abort, "no")

            async with server("a") as a, server("b", hooks=Hooks(connected=hang_up)) as b:
                a.link(*await b.listen("127.0.0.1", 0))
                await until(lambda: dials)
                await asyncio.sleep(0.3)
                assert dials <= 2

        run(main)

    def test_a_node_that_comes_back_in_a_later_life_replaces_its_earlier_one(self) -> None:
        async def main() -> None:
            heard: list[str] = []
            hooks = Hooks(
                lambda connection: heard.append(f"+{connection.peer.incarnation}"),
                lambda peer, _why: heard.append(f"-{peer.incarnation}"),
            )
            async with server("b", hooks=hooks) as b:
                address = await b.listen("127.0.0.1", 0)
                async with server("a", incarnation=1) as first, server("a", incarnation=2) as again:
                    await first.dial(*address)
                    await again.dial(*address)
                    assert [c.peer.incarnation for c in b.connections] == [2]
                    assert heard == ["+1", "-1", "+2"]
                    with pytest.raises(Exception, match="incarnation 1, connected is 2"):
                        await first.dial(*address)

        run(main)


class TestStopping:
    def test_stopping_lets_what_is_in_flight_finish(self) -> None:
        async def main() -> None:
            silent = Silent()
            async with server("a") as a:
                async with server("b", handlers=silent.handlers) as b:
                    link = a.link(*await b.listen("127.0.0.1", 0))
                    call = asyncio.ensure_future(link.call(ask(), Answer, deadline_s=soon()))
                    await until(lambda: silent.begun)
                    asyncio.get_running_loop().call_later(0.1, silent.release.set)
                assert await call == Answer("hello")

        run(main)

    def test_queued_messages_are_delivered_before_the_end(self) -> None:
        async def main() -> None:
            heard: list[str] = []
            handlers = Handlers()
            handlers.add(Final, lambda _, final: heard.append(final.text))
            async with server("b", handlers=handlers) as b:
                async with server("a") as a:
                    link = a.link(*await b.listen("127.0.0.1", 0))
                    await until(lambda: link.connection)
                    for number in range(50):
                        link.send(Final(str(number)))
                await until(lambda: len(heard) == 50)

        run(main)

    def test_stopping_cuts_off_what_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hyperscale.wire.peer.LEAVE_GRACE_S", 0.1)

        async def main() -> None:
            silent = Silent()
            async with server("a") as a:
                async with server("b", handlers=silent.handlers) as b:
                    link = a.link(*await b.listen("127.0.0.1", 0))
                    call = asyncio.ensure_future(link.call(ask(), Answer, deadline_s=soon()))
                    await until(lambda: silent.begun)
                assert silent.ended == ["hello"]
                with pytest.raises(ConnectionLostError):
                    await call

        run(main)

    def test_a_node_without_secret_does_not_listen_beyond_loopback(self) -> None:
        async def main() -> None:
            async with server("a", secret=None) as a:
                with pytest.raises(InputError, match="loopback only"):
                    await a.listen("0.0.0.0", 0)

        run(main)

    def test_an_address_in_use_is_the_users_to_mend(self) -> None:
        async def main() -> None:
            async with server("a") as a, server("b") as b:
                address = await a.listen("127.0.0.1", 0)
                with pytest.raises(InputError, match="cannot listen"):
                    await b.listen(*address)

        run(main)

    def test_an_error_in_the_body_comes_out_as_it_is(self) -> None:
        async def main() -> None:
            async def body(node: PeerServer) -> None:
                async with node:
                    await node.listen("127.0.0.1", 0)
                    raise InputError("mine")

            with pytest.raises(InputError, match="mine"):
                await body(server("a"))

        run(main)
