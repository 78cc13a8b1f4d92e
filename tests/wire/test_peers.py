"""Calls between real nodes on loopback sockets."""

from tests.wire.lab import Answer, Question, echoing, run, server, soon


def test_a_question_is_answered() -> None:
    async def main() -> None:
        async with server("a") as a, server("b", handlers=echoing()) as b:
            host, port = await b.listen("127.0.0.1", 0)
            link = a.link(host, port)
            answer = await link.call(Question("hello"), Answer, deadline_s=soon())
            assert answer == Answer("HELLO")
            assert link.node_id == "b"

    run(main)
