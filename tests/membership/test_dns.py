"""DNS against a name server of our own on loopback."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from hyperscale.membership.discovery import NameResolved, NameUnresolved
from hyperscale.membership.dns_resolver import DnsResolver

RECORDS = {
    ("managers.example.", "A"): ["10.0.0.1", "10.0.0.2"],
    ("managers.example.", "AAAA"): ["fd00::1"],
    ("four.example.", "A"): ["10.0.0.4"],
    ("_hyperscale._tcp.example.", "SRV"): [
        "20 0 9002 four.example.",
        "10 5 9001 managers.example.",
    ],
    ("_dangling._tcp.example.", "SRV"): ["10 0 9001 nowhere.example."],
}


class NameServer:
    """Answers from `RECORDS`; says nothing for names that begin with "silent"."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, source = self._socket.recvfrom(4096)
            if not data:
                return
            answer = self._answer(dns.message.from_wire(data))
            if answer is not None:
                self._socket.sendto(answer.to_wire(), source)

    def _answer(self, query: dns.message.Message) -> dns.message.Message | None:
        question = query.question[0]
        name, kind = question.name.to_text(), dns.rdatatype.to_text(question.rdtype)
        if name.startswith("silent"):
            return None
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        found = RECORDS.get((name, kind))
        if found:
            answer.answer.append(dns.rrset.from_text(question.name, 17, "IN", kind, *found))
        elif not any(known == name for known, _ in RECORDS):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer


@pytest.fixture(scope="module")
def resolver() -> Iterator[DnsResolver]:
    server = NameServer()
    yield DnsResolver(default_port=9000, name_servers=["127.0.0.1"], port=server.port)
    server.close()


def resolve(
    resolver: DnsResolver, name: str, timeout_s: float = 5.0
) -> NameResolved | NameUnresolved:
    return asyncio.run(resolver.resolve(name, timeout_s))


def test_a_name_resolves_to_its_ipv4_and_ipv6_addresses(resolver: DnsResolver) -> None:
    assert resolve(resolver, "managers.example") == NameResolved(
        "managers.example", ("10.0.0.1:9000", "10.0.0.2:9000", "[fd00::1]:9000"), 17.0
    )


def test_addresses_of_one_family_are_enough(resolver: DnsResolver) -> None:
    assert resolve(resolver, "four.example") == NameResolved(
        "four.example", ("10.0.0.4:9000",), 17.0
    )


def test_srv_records_give_ports_and_are_ordered_by_priority(resolver: DnsResolver) -> None:
    assert resolve(resolver, "_hyperscale._tcp.example") == NameResolved(
        "_hyperscale._tcp.example",
        ("10.0.0.1:9001", "10.0.0.2:9001", "[fd00::1]:9001", "10.0.0.4:9002"),
        17.0,
    )


def test_a_name_that_does_not_resolve_says_why(resolver: DnsResolver) -> None:
    missing = resolve(resolver, "nobody.example")
    assert isinstance(missing, NameUnresolved)
    assert "NXDOMAIN" in missing.why
    dangling = resolve(resolver, "_dangling._tcp.example")
    assert dangling == NameUnresolved("_dangling._tcp.example", "none of its targets resolves")
    assert isinstance(resolve(resolver, "_nothing._tcp.example"), NameUnresolved)


def test_a_silent_name_server_delays_no_longer_than_the_timeout(resolver: DnsResolver) -> None:
    silent = resolve(resolver, "silent.example", timeout_s=0.2)
    assert isinstance(silent, NameUnresolved)
