"""Mutual TLS between real nodes: roles from certificates, and certificates that are refused."""

import asyncio
import contextlib
import datetime
import logging
import re
import ssl
from pathlib import Path

import pytest

from hyperscale.wire.certificate_identity import CertificateIdentity
from hyperscale.wire.certificates import CertificateAndKey, make_authority, make_certificate
from hyperscale.wire.errors import PeerProtocolError, PeerRefusedError, RefusalReason
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, TlsFiles
from tests.lab.loops import run
from tests.lab.peers import SECRET, Answer, Bulk, Question, echoing, server
from tests.lab.waiting import soon, until_async

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """Makes the certificates of one test."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.made = make_authority("acme", days=30)
        (self.folder / "ca.pem").write_bytes(self.made.certificate)

    def issue(
        self,
        *roles: Role,
        cluster: str = "acme",
        environment: str = "test",
        node_id: str = "",
        hosts: tuple[str, ...] = ("127.0.0.1",),
        now: datetime.datetime = NOW,
        trust: "Authority | None" = None,
        verify_hostname: bool = True,
    ) -> Security:
        vouched = CertificateIdentity(frozenset(roles), cluster, environment, node_id=node_id)
        made = make_certificate(self.made, vouched, name="x", hosts=hosts, days=20, now=now)
        return self.secure(made, trust=trust, verify_hostname=verify_hostname)

    def secure(
        self,
        made: CertificateAndKey,
        *,
        trust: "Authority | None" = None,
        verify_hostname: bool = True,
    ) -> Security:
        number = len(list(self.folder.iterdir()))
        certificate, key = self.folder / f"{number}.pem", self.folder / f"{number}-key.pem"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        trusted = (trust or self).folder / "ca.pem"
        return Security(tls=TlsFiles(certificate, key, trusted, verify_hostname))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_nodes_with_certificates_talk(authority: Authority) -> None:
    async def main() -> None:
        handlers = echoing()
        handlers.add(Bulk, lambda _, bulk: Answer(str(len(bulk.data))))
        async with (
            server("w", Role.WORKER, security=authority.issue(Role.WORKER)) as worker,
            server("m", security=authority.issue(Role.MANAGER), handlers=handlers) as manager,
        ):
            link = worker.link(*await manager.listen("127.0.0.1", 0))
            answers = await asyncio.gather(
                *(link.call(Question(str(n)), Answer, deadline_s=soon()) for n in range(50))
            )
            assert [answer.text for answer in answers] == [str(n) for n in range(50)]
            answer = await link.call(Bulk(bytes(3_000_000)), Answer, deadline_s=soon())
            assert answer.text == "3000000"
            (connection,) = manager.connections
            assert connection.peer.role is Role.WORKER
            assert connection.session.agreement.opener is None  # TLS seals; nothing is sealed twice

    run(main)


def refused(
    authority: Authority,
    stranger: Security,
    reason: RefusalReason,
    caplog: pytest.LogCaptureFixture,
    *,
    role: Role = Role.MANAGER,
    target: Role = Role.MANAGER,
) -> PeerProtocolError:
    """`stranger` dials a good node; who says no, and why. A friend is served all the while."""

    async def main() -> PeerProtocolError:
        good = authority.issue(target)
        async with (
            server("target", target, security=good, handlers=echoing()) as node,
            server("friend", security=authority.issue(Role.MANAGER)) as friend,
            server("stranger", role, security=stranger) as other,
        ):
            address = await node.listen("127.0.0.1", 0)
            link = friend.link(*address)
            await link.call(Question("x"), Answer, deadline_s=soon())
            with caplog.at_level(logging.WARNING, "hyperscale.wire"):
                for _ in range(2):
                    with pytest.raises(PeerRefusedError) as caught:
                        await other.dial(*address)
                    assert caught.value.reason is reason
                await until_async(lambda: node.refusals.counts[reason] == 2)
            lines = [r for r in caplog.records if r.message.startswith("peer.refused")]
            assert [line.__dict__["reason"] for line in lines] == [str(reason)]
            await link.call(Question("x"), Answer, deadline_s=soon())
            return caught.value

    return run(main)


def test_an_expired_certificate_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    old = authority.issue(Role.MANAGER, now=NOW - datetime.timedelta(days=25))
    error = refused(authority, old, RefusalReason.CERTIFICATE, caplog)
    assert re.search(r"the certificate of this side was refused: \S+ expired on \d{4}-", str(error))
    assert "hyperscale certs" in error.hint
    (logged,) = [r for r in caplog.records if r.message.startswith("peer.refused")]
    assert "the certificate of the peer was refused: certificate has expired" in logged.detail


def test_a_node_whose_certificate_expired_is_refused_by_those_who_dial_it(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> PeerProtocolError:
        old = authority.issue(Role.MANAGER, now=NOW - datetime.timedelta(days=25))
        async with (
            server("old", security=old) as node,
            server("other", security=authority.issue(Role.MANAGER)) as other,
        ):
            address = await node.listen("127.0.0.1", 0)
            with caplog.at_level(logging.WARNING, "hyperscale.wire"):
                with pytest.raises(PeerProtocolError) as caught:
                    await other.dial(*address)
                await until_async(lambda: node.refusals.counts[RefusalReason.CERTIFICATE] == 1)
            return caught.value

    error = run(main)
    assert "the certificate of the peer was refused: certificate has expired" in str(error)
    logged = [r for r in caplog.records if r.message.startswith("peer.refused")][-1]
    assert re.search(
        r"the certificate of this side was refused: \S+ expired on \d{4}-", logged.detail
    )


def test_a_certificate_that_is_not_valid_yet_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    early = authority.issue(Role.MANAGER, now=NOW + datetime.timedelta(days=5))
    refused(authority, early, RefusalReason.CERTIFICATE, caplog)


def test_a_certificate_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")
    refused(
        authority, other.issue(Role.MANAGER, trust=authority), RefusalReason.CERTIFICATE, caplog
    )


def test_a_certificate_for_another_role_than_the_node_says_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused(authority, authority.issue(Role.CLIENT), RefusalReason.IDENTITY, caplog)
    assert isinstance(error, PeerRefusedError)
    assert "says it is a manager, its certificate says client" in str(error)


def test_a_role_that_may_not_connect_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    worker = authority.issue(Role.WORKER)
    error = refused(
        authority, worker, RefusalReason.ROLE, caplog, role=Role.WORKER, target=Role.GATE
    )
    assert "role 'worker' cannot connect to 'gate'" in str(error)


def test_a_certificate_of_another_cluster_environment_or_node_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in (
        authority.issue(Role.MANAGER, cluster="other"),
        authority.issue(Role.MANAGER, environment="other"),
        authority.issue(Role.MANAGER, node_id="somebody-else"),
    ):
        caplog.clear()
        assert "its certificate says" in str(
            refused(authority, wrong, RefusalReason.IDENTITY, caplog)
        )


def test_a_certificate_without_our_names_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    plain = authority.issue()
    refused(authority, plain, RefusalReason.IDENTITY, caplog)


def test_a_dialer_does_not_trust_a_name_the_certificate_does_not_have(
    authority: Authority,
) -> None:
    async def main() -> None:
        elsewhere = authority.issue(Role.MANAGER, hosts=("10.9.9.9",))
        async with (
            server("m", security=elsewhere) as manager,
            server("a", security=authority.issue(Role.MANAGER)) as strict,
            server("b", security=authority.issue(Role.MANAGER, verify_hostname=False)) as lenient,
        ):
            address = await manager.listen("127.0.0.1", 0)
            with pytest.raises(PeerProtocolError, match=r"127\.0\.0\.1") as caught:
                await strict.dial(*address)
            assert caught.value.reason is RefusalReason.CERTIFICATE
            assert (await lenient.dial(*address)).is_usable

    run(main)


def test_an_impostor_with_a_workers_certificate_is_no_manager_to_a_dialer(
    authority: Authority,
) -> None:
    async def main() -> None:
        async with (
            server("m", security=authority.issue(Role.WORKER)) as impostor,
            server("w", Role.WORKER, security=authority.issue(Role.WORKER)) as worker,
        ):
            address = await impostor.listen("127.0.0.1", 0)
            with pytest.raises(PeerProtocolError) as caught:
                await worker.dial(*address)
            assert caught.value.reason is RefusalReason.IDENTITY
            assert worker.refusals.counts == {RefusalReason.IDENTITY: 1}

    run(main)


def test_no_tls_where_tls_is_needed_is_refused_and_the_reverse(authority: Authority) -> None:
    async def main() -> None:
        async with (
            server("t", security=authority.issue(Role.MANAGER)) as tls,
            server("s", secret=SECRET) as sealed,
        ):
            to_tls = await tls.listen("127.0.0.1", 0)
            to_sealed = await sealed.listen("127.0.0.1", 0)
            for dialer, address in ((sealed, to_tls), (tls, to_sealed)):
                with pytest.raises(PeerProtocolError):
                    await dialer.dial(*address)
            await until_async(lambda: tls.refusals.counts[RefusalReason.CERTIFICATE] >= 1)
            await until_async(lambda: sealed.refusals.counts.total() >= 1)

    run(main)


def test_no_certificate_at_all_is_refused(authority: Authority) -> None:
    async def main() -> None:
        async with server("t", security=authority.issue(Role.MANAGER)) as node:
            host, port = await node.listen("127.0.0.1", 0)
            context = ssl.create_default_context(cafile=str(authority.folder / "ca.pem"))
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert await reader.read() == b""
            writer.close()
            await until_async(lambda: node.refusals.counts[RefusalReason.CERTIFICATE] == 1)

    run(main)


def test_a_stop_with_tls_leaves_nothing_behind(authority: Authority) -> None:
    async def main() -> None:
        async with server("b", security=authority.issue(Role.MANAGER), handlers=echoing()) as b:
            address = await b.listen("127.0.0.1", 0)
            for turn in range(5):
                async with server(f"a{turn}", security=authority.issue(Role.MANAGER)) as a:
                    await a.link(*address).call(Question("x"), Answer, deadline_s=soon())
            await until_async(lambda: not b.connections)

    run(main)
