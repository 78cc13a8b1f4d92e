"""Connections between real nodes: found again, one per pair, let go at the end."""

import asyncio

import pytest

from hyperscale.errors import InputError
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import CircuitOpenError, ConnectionLostError, UnreachableError
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.server import ConnectionHooks, PeerServer
from tests.lab.loops import run
from tests.lab.peers import Answer, Final, Note, Silent, ask, echoing, server
from tests.lab.waiting import soon, until_async


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
                await until_async(lambda: link.connection is None)
                link.send(Note("while away"))
                async with server("b", handlers=handlers(), incarnation=2) as b:
                    await b.listen(*address)
                    assert await link.call(ask("again"), Answer, deadline_s=soon(20))
                    await until_async(lambda: heard == ["while away"])

        run(main)

    def test_calls_in_flight_when_the_connection_is_lost_say_that_the_outcome_is_open(
        self,
    ) -> None:
        async def main() -> None:
            silent = Silent()
            async with server("a") as a, server("b", handlers=silent.handlers) as b:
                link = a.link(*await b.listen("127.0.0.1", 0))
                call = asyncio.ensure_future(link.call(ask(), Answer, deadline_s=soon()))
                await until_async(lambda: silent.begun)
                b.connections[0].abort("pulled")
                with pytest.raises(ConnectionLostError) as caught:
                    await call
                assert not caught.value.is_definite
                await until_async(lambda: silent.ended)

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
                with pytest.raises(CircuitOpenError) as caught:
                    await link.call(ask(), Answer, deadline_s=soon(5))
                assert caught.value.is_definite
                assert 0 < caught.value.retry_after_s <= 10
                with pytest.raises(UnreachableError):  # a final result is always worth a try
                    await link.call(Final("x"), Answer, deadline_s=soon(0.02))
                async with server("b", handlers=echoing(), incarnation=2) as b:
                    await b.listen(*address)
                    await until_async(lambda: link.connection is not None)
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

            hooks = ConnectionHooks(connected, disconnected, dial_failed)
            async with server("a", hooks=hooks) as a:
                async with server("b") as b:
                    a.link(*await b.listen("127.0.0.1", 0))
                    await until_async(lambda: heard)
                await until_async(lambda: len(heard) >= 3)
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
                await until_async(lambda: a.connection_count == b.connection_count == 1)
                (of_a,), (of_b,) = a.connections, b.connections
                assert (of_a.endpoint.is_dialer, of_b.endpoint.is_dialer) == (True, False)
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
                await until_async(lambda: a.connection_count == b.connection_count == 1)

        run(main)

    def test_a_call_in_flight_on_the_connection_that_goes_is_answered_there(self) -> None:
        async def main() -> None:
            silent = Silent()
            async with server("a", handlers=silent.handlers) as a, server("b") as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                going = await b.dial(*to_a)
                call = asyncio.ensure_future(going.call(ask(), Answer, deadline_s=soon()))
                await until_async(lambda: silent.begun)
                await a.dial(*to_b)
                await until_async(lambda: not going.is_usable)
                silent.release.set()
                assert await call == Answer("hello")
                await until_async(lambda: a.connection_count == b.connection_count == 1)

        run(main)

    def test_a_peer_that_dials_again_later_has_lost_the_connection_we_still_have(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hyperscale.wire.server.DOUBLE_DIAL_S", -1.0)

        async def main() -> None:
            async with server("a", handlers=echoing()) as a, server("b", handlers=echoing()) as b:
                to_a = await a.listen("127.0.0.1", 0)
                to_b = await b.listen("127.0.0.1", 0)
                await a.dial(*to_b)
                again = await b.dial(*to_a)  # though a's, the smaller's, is there
                await until_async(lambda: a.connection_count == b.connection_count == 1)
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
                await until_async(lambda: silent.begun)
                connection.leave("enough")
                with pytest.raises(ConnectionLostError):
                    await call
                await until_async(lambda: silent.ended)

        run(main)

    def test_a_peer_that_hangs_up_at_once_is_not_dialled_in_a_loop(self) -> None:
        async def main() -> None:
            dials = 0

            def hang_up(connection: Connection) -> None:
                nonlocal dials
                dials += 1
                asyncio.get_running_loop().call_soon(connection.abort, "no")

            async with server("a") as a, server("b", hooks=ConnectionHooks(connected=hang_up)) as b:
                a.link(*await b.listen("127.0.0.1", 0))
                await until_async(lambda: dials)
                await asyncio.sleep(0.3)
                assert dials <= 2

        run(main)

    def test_a_node_that_comes_back_in_a_later_life_replaces_its_earlier_one(self) -> None:
        async def main() -> None:
            heard: list[str] = []
            hooks = ConnectionHooks(
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
                    with pytest.raises(Exception, match="but incarnation 2 is connected"):
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
                    await until_async(lambda: silent.begun)
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
                    await until_async(lambda: link.connection)
                    for number in range(50):
                        link.send(Final(str(number)))
                await until_async(lambda: len(heard) == 50)

        run(main)

    def test_stopping_cuts_off_what_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hyperscale.wire.server.LEAVE_GRACE_S", 0.1)

        async def main() -> None:
            silent = Silent()
            async with server("a") as a:
                async with server("b", handlers=silent.handlers) as b:
                    link = a.link(*await b.listen("127.0.0.1", 0))
                    call = asyncio.ensure_future(link.call(ask(), Answer, deadline_s=soon()))
                    await until_async(lambda: silent.begun)
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

    def test_an_address_in_use_is_an_input_error(self) -> None:
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
