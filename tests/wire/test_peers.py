"""Calls between real nodes on loopback sockets: answers, failures, deadlines."""

import asyncio

import pytest
from msgspec import Struct

from hyperscale.errors import InputError, InvariantError
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import (
    DeadlineError,
    OverloadedError,
    RemoteError,
    RemoteErrorCode,
    UnreachableError,
)
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.registry import REGISTRY, MessagePriority, SizeClass, message
from hyperscale.wire.roles import Role
from tests.lab.loops import run
from tests.lab.peers import Answer, Bulk, Fetch, Note, Question, Silent, ask, echoing, server
from tests.lab.waiting import soon, until_async


def test_a_question_is_answered() -> None:
    async def main() -> None:
        async with server("a") as a, server("b", handlers=echoing()) as b:
            link = a.link(*await b.listen("127.0.0.1", 0))
            assert await link.call(ask(), Answer, deadline_s=soon()) == Answer("HELLO")
            assert link.node_id == "b"

    run(main)


@pytest.mark.parametrize("secret", ["correct horse battery staple", None])
def test_many_calls_share_one_connection_and_get_their_own_replies(
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
            await until_async(lambda: len(heard) == 5)
            for number in range(5):
                link.send(Note(f"sent {number}"))
            await until_async(lambda: len(heard) == 10)
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
            assert connection.session.agreement.protocol == (1, 0)
            assert connection.session.agreement.capabilities == {"cancel", "batches"}
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

    def test_message_and_hint_of_a_hyperscale_error_travel_apart(self) -> None:
        error = self.call_failing_with(InputError("no such job", hint="see 'jobs'"))
        assert isinstance(error, RemoteError)
        assert error.code is RemoteErrorCode.FAILED
        assert (error.detail, error.hint) == ("no such job", "see 'jobs'")

    def test_a_handler_may_fail_with_a_code_of_its_own(self) -> None:
        error = self.call_failing_with(RemoteError("it is m2", code=RemoteErrorCode.MOVED))
        assert isinstance(error, RemoteError)
        assert error.code is RemoteErrorCode.MOVED

    def test_a_code_of_a_newer_version_keeps_its_text(self) -> None:
        newer = RemoteError("later", code=RemoteErrorCode.OTHER, code_text="too_early")
        error = self.call_failing_with(newer)
        assert isinstance(error, RemoteError)
        assert (error.code, error.code_text) == (RemoteErrorCode.OTHER, "too_early")

    def test_the_text_of_an_unexpected_error_is_not_sent(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = self.call_failing_with(ValueError("/secret/path"))
        assert isinstance(error, RemoteError)
        assert error.code is RemoteErrorCode.INTERNAL
        assert "/secret/path" not in str(error)
        assert "Traceback" not in str(error)
        assert "/secret/path" in caplog.text

    def test_a_handler_may_refuse_for_now(self) -> None:
        error = self.call_failing_with(OverloadedError("queue full", retry_after_s=7.5))
        assert isinstance(error, OverloadedError)
        assert error.retry_after_s == 7.5
        assert error.is_definite

    def test_an_unhandled_unknown_or_forbidden_message_fails_its_call_only(
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
                with pytest.raises(RemoteError, match="does not serve") as caught:
                    await link.call(Fetch(1), Answer, deadline_s=soon())
                assert caught.value.code is RemoteErrorCode.UNHANDLED
                with pytest.raises(RemoteError, match="a client may not send Fetch") as caught:
                    await guest.call(Fetch(1), Answer, deadline_s=soon())
                assert caught.value.code is RemoteErrorCode.ROLE
                assert b.refusals.counts["role"] == 1  # type: ignore[index]  # str is Reason
                assert await link.call(ask(), Answer, deadline_s=soon())
                assert await guest.call(ask(), Answer, deadline_s=soon())

        run(main)

    def test_a_kind_only_a_newer_version_knows_is_answered(self) -> None:
        async def main() -> None:
            async with server("a") as a, server("b", handlers=echoing()) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                await link.call(ask(), Answer, deadline_s=soon())

                @message(kind=60900, priority=MessagePriority.LOW, size=SizeClass.SMALL)
                class Newer(Struct):
                    pass

                connection = link.connection
                assert connection is not None
                call = asyncio.ensure_future(connection.call(Newer(), Answer, deadline_s=soon()))
                await asyncio.sleep(0)
                REGISTRY.by_kind.pop(60900)
                with pytest.raises(RemoteError) as caught:
                    await call
                assert caught.value.code is RemoteErrorCode.UNKNOWN_MESSAGE
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
                await until_async(lambda: silent.ended == ["hello"])
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
