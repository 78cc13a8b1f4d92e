"""Nodes find each other by DNS names; a name server of the test answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.rcode
import dns.rrset
import pytest

from tests.lab.nodes import NodeCluster, wait_for_view
from tests.lab.ports import free_port
from tests.lab.waiting import until


class NameServer:
    """Answers DNS queries with its records, over UDP, and keeps a list of the queries."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            data, source = self._socket.recvfrom(4096)
            if not data:
                return
            query = dns.message.from_wire(data)
            name = query.question[0].name.to_text(omit_final_dot=True)
            kind = query.question[0].rdtype.name
            self.asked.append((name, kind))
            answer = dns.message.make_response(query)
            found = self.records.get((name, kind))
            if found:
                answer.answer.append(dns.rrset.from_text(name + ".", 5, "IN", kind, *found))
            elif not any(known == name for known, _ in self.records):
                answer.set_rcode(dns.rcode.NXDOMAIN)
            self._socket.sendto(answer.to_wire(), source)

    def close(self) -> None:
        self._socket.close()

    def stop(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())


@contextmanager
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
        server.close()


@pytest.mark.parametrize("kind", ["A", "SRV"])
def test_nodes_find_each_other_by_a_dns_name(tmp_path: Path, kind: str) -> None:
    port = free_port()
    with name_server() as names, NodeCluster(tmp_path) as cluster:
        name = "managers.test" if kind == "A" else "_hyperscale._tcp.test"
        flags = ("--dns", name, "--discovery-name-servers", names.address)
        if kind == "A":
            flags = (*flags, "--discovery-default-port", str(port))
        early = cluster.start("worker", "w0", *flags).wait_listening()
        until(
            lambda: early.seen("discovery.warned"),
            what="the worker warns that the name has no address",
        )
        assert name in early.seen("discovery.warned")[0]["detail"]
        assert early.metric("hyperscale_discovery_dns_lookups_total", result="error") == 1
        early.kill()  # its next lookup would be in half a minute
        names.records["managers.test", "A"] = ["127.0.0.1"]
        names.records["_hyperscale._tcp.test", "SRV"] = [f"0 0 {port} managers.test."]
        manager = cluster.start("manager", "m0", *flags, "--port", str(port)).wait_listening()
        late = cluster.start("worker", "w1", *flags).wait_listening()
        wait_for_view([manager, late])
        assert not manager.warnings()
        assert late.metric("hyperscale_discovery_dns_lookups_total", result="success") >= 1
