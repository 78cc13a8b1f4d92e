"""The handshake as a state machine: agreements, and refusals that name both values."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InvariantError
from hyperscale.wire.certificate_identity import CertificateIdentity
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.errors import PeerProtocolError, PeerRefusedError, RefusalReason
from hyperscale.wire.frames import Frame, encode_head
from hyperscale.wire.handshake import PROTOCOL, Handshake, handshake_decoder
from hyperscale.wire.messages import HandshakeHello, Introduction
from hyperscale.wire.registry import REGISTRY
from hyperscale.wire.roles import MAY_CONNECT, Role
from hyperscale.wire.sealing import FrameOpener, SessionKeys, begin_exchange, session_keys
from hyperscale.wire.security import SecurityMode
from tests.lab.peers import SECRET, introduction

OTHER = "another secret, long enough"
MANAGER = CertificateIdentity(frozenset({Role.MANAGER}), "acme", "test")


def side(
    *,
    is_dialer: bool,
    secret: str | None = SECRET,
    previous: str | None = None,
    mode: SecurityMode | None = None,
    protocol: tuple[int, int] = PROTOCOL,
    certificate: CertificateIdentity | None = None,
    check_peer: Any = lambda _: None,
    **intro: Any,
) -> Handshake:
    secrets = None if secret is None else Secrets(secret, previous)
    chosen = mode or (SecurityMode.NONE if secrets is None else SecurityMode.SECRET)
    local = introduction(**{"node_id": "dialer" if is_dialer else "acceptor", **intro})
    return Handshake(
        local,
        chosen,
        secrets,
        is_dialer=is_dialer,
        certificate=certificate,
        check_peer=check_peer,
        protocol=protocol,
    )


def frames(data: bytes) -> list[Frame]:
    return list(handshake_decoder().feed(data))


def shake(dialer: Handshake, acceptor: Handshake) -> dict[str, PeerProtocolError]:
    """Lets both talk until nobody has anything to say; who refused or was refused, and why."""
    errors: dict[str, PeerProtocolError] = {}
    sides = {"dialer": dialer, "acceptor": acceptor}
    mail = [("acceptor", dialer.begin())]
    while mail:
        whose, data = mail.pop(0)
        other = "dialer" if whose == "acceptor" else "acceptor"
        for frame in frames(data):
            try:
                answer = sides[whose].receive(frame)
            except PeerProtocolError as error:
                errors[whose] = error
                answer = sides[whose].refusal(error)
            if answer:
                mail.append((other, answer))
    return errors


def agreed(dialer: Handshake, acceptor: Handshake) -> None:
    assert shake(dialer, acceptor) == {}
    assert dialer.result is not None
    assert acceptor.result is not None


def test_two_nodes_with_the_same_secret_agree_and_can_talk() -> None:
    dialer, acceptor = side(is_dialer=True), side(is_dialer=False)
    agreed(dialer, acceptor)
    one, two = dialer.result, acceptor.result
    assert one is not None
    assert two is not None
    assert (one.peer.node_id, two.peer.node_id) == ("acceptor", "dialer")
    assert one.sealer
    assert two.opener
    assert two.sealer
    assert one.opener
    head = bytes(16)
    assert two.opener.open(head, one.sealer.seal(head, b"to acceptor")) == b"to acceptor"
    assert one.opener.open(head, two.sealer.seal(head, b"to dialer")) == b"to dialer"


def test_only_the_hello_is_readable_on_the_wire() -> None:
    dialer, acceptor = side(is_dialer=True), side(is_dialer=False)
    hello = dialer.begin()
    answer = acceptor.receive(frames(hello)[0])
    named = dialer.receive(frames(answer)[0])
    assert b"acme" not in hello + answer + named
    assert b"manager" not in hello + answer + named


def test_without_secrets_both_agree_in_the_clear() -> None:
    agreed(side(is_dialer=True, secret=None), side(is_dialer=False, secret=None))


def test_capabilities_are_those_of_both_sides() -> None:
    dialer = side(is_dialer=True, capabilities=["a", "b"])
    acceptor = side(is_dialer=False, capabilities=["b", "c"])
    agreed(dialer, acceptor)
    assert dialer.result is not None
    assert dialer.result.capabilities == {"b"}


@pytest.mark.parametrize("theirs", [(1, 0), (1, 1), (1, 2), (1, 3), (1, 9)])
def test_the_older_minor_version_is_used(theirs: tuple[int, int]) -> None:
    dialer = side(is_dialer=True, protocol=(1, 2))
    acceptor = side(is_dialer=False, protocol=theirs)
    agreed(dialer, acceptor)
    for each in (dialer, acceptor):
        assert each.result is not None
        assert each.result.protocol == min((1, 2), theirs)


def test_unknown_fields_of_a_newer_minor_version_are_ignored() -> None:
    acceptor = side(is_dialer=False, secret=None)
    newer = {
        "major": PROTOCOL[0],
        "minor": 7,
        "security": "none",
        "colour": "red",
    }
    said = msgspec.to_builtins(introduction("dialer")) | {"shoe_size": 44}
    for kind, body in ((1, newer), (2, said)):
        encoded = msgspec.msgpack.encode(body)
        acceptor.receive(frames(encode_head(kind, 0, 0, 0, len(encoded)) + encoded)[0])
    assert acceptor.result is not None
    assert acceptor.result.protocol == PROTOCOL


def refused(
    dialer: Handshake,
    acceptor: Handshake,
    reason: RefusalReason,
    *values: str,
    by: str = "acceptor",
) -> None:
    """One side refuses for `reason`, naming `values`; the other gets the same reason and hint."""
    errors = shake(dialer, acceptor)
    refusing, got = errors[by], errors["dialer" if by == "acceptor" else "acceptor"]
    assert not isinstance(refusing, PeerRefusedError)
    assert isinstance(got, PeerRefusedError)
    assert refusing.reason is got.reason is reason
    assert refusing.hint == got.hint
    for value in values:
        assert value in str(refusing)
        assert value in str(got)
    refuser = acceptor if by == "acceptor" else dialer
    assert refuser.result is None


def test_another_major_version_is_refused_with_both() -> None:
    refused(
        side(is_dialer=True, protocol=(2, 1)),
        side(is_dialer=False, protocol=(1, 4)),
        RefusalReason.VERSION,
        "2.1",
        "1.4",
    )


def test_another_secret_is_refused_and_the_dialer_can_read_why() -> None:
    refused(side(is_dialer=True, secret=OTHER), side(is_dialer=False), RefusalReason.SECRET)


def test_no_secret_where_one_is_needed_is_refused_with_both() -> None:
    refused(
        side(is_dialer=True, secret=None),
        side(is_dialer=False),
        RefusalReason.UNSEALED,
        "'none'",
        "'secret'",
    )


def test_a_secret_where_there_is_none_is_refused_with_both() -> None:
    refused(
        side(is_dialer=True),
        side(is_dialer=False, secret=None),
        RefusalReason.SEALED,
        "'none'",
        "'secret'",
    )


def test_another_cluster_is_refused_with_both() -> None:
    refused(
        side(is_dialer=True, cluster="mine"),
        side(is_dialer=False, cluster="theirs"),
        RefusalReason.CLUSTER,
        "'mine'",
        "'theirs'",
    )


def test_another_environment_is_refused_with_both() -> None:
    refused(
        side(is_dialer=True, environment="staging"),
        side(is_dialer=False, environment="prod"),
        RefusalReason.ENVIRONMENT,
        "'staging'",
        "'prod'",
    )


def test_managers_and_workers_of_another_datacenter_are_refused_with_both() -> None:
    refused(
        side(is_dialer=True, role=Role.WORKER, datacenter="ams"),
        side(is_dialer=False, datacenter="fra"),
        RefusalReason.DATACENTER,
        "'ams'",
        "'fra'",
    )


@pytest.mark.parametrize("role", [Role.CLIENT, Role.OPERATOR, Role.GATE])
def test_roles_that_belong_to_no_datacenter_connect_to_any(role: Role) -> None:
    agreed(
        side(is_dialer=True, role=role, datacenter="ams"),
        side(is_dialer=False, datacenter="fra"),
    )


def test_cluster_and_environment_are_checked_before_other_fields() -> None:
    acceptor = side(is_dialer=False, secret=None, cluster="theirs")
    hello = REGISTRY.encode(HandshakeHello(*PROTOCOL, security="none"))
    acceptor.receive(frames(encode_head(1, 0, 0, 0, len(hello)) + hello)[0])
    body = msgspec.msgpack.encode({"cluster": "mine", "environment": "x", "role": 17})
    with pytest.raises(PeerProtocolError) as caught:
        acceptor.receive(frames(encode_head(2, 0, 0, 0, len(body)) + body)[0])
    assert caught.value.reason is RefusalReason.CLUSTER


@pytest.mark.parametrize("initiator", list(Role))
@pytest.mark.parametrize("target", list(Role))
def test_the_whole_role_matrix(initiator: Role, target: Role) -> None:
    allowed = {
        Role.CLIENT: {Role.GATE, Role.MANAGER},
        Role.GATE: {Role.MANAGER, Role.GATE, Role.CLIENT},
        Role.MANAGER: {Role.WORKER, Role.MANAGER, Role.GATE, Role.CLIENT},
        Role.WORKER: {Role.MANAGER},
        Role.OPERATOR: {Role.GATE, Role.MANAGER, Role.WORKER},
    }
    assert allowed == MAY_CONNECT
    dialer, acceptor = side(is_dialer=True, role=initiator), side(is_dialer=False, role=target)
    if target in allowed[initiator]:
        agreed(dialer, acceptor)
    else:
        text = f"Connection denied: role '{initiator}' cannot connect to '{target}'"
        refused(dialer, acceptor, RefusalReason.ROLE, text)


def test_a_secret_being_rotated_out_is_accepted_by_the_acceptor() -> None:
    agreed(side(is_dialer=True, secret=OTHER), side(is_dialer=False, previous=OTHER))
    refused(side(is_dialer=True, secret=OTHER), side(is_dialer=False), RefusalReason.SECRET)


def test_a_rotation_in_three_rounds_refuses_nobody() -> None:
    rounds = [(OTHER, None), (OTHER, SECRET), (SECRET, OTHER), (SECRET, None)]
    for before, behind in zip(rounds, rounds[1:], strict=False):  # noqa: RUF007  pairs both ways
        for one, two in ((before, behind), (behind, before)):
            agreed(
                side(is_dialer=True, secret=one[0], previous=one[1]),
                side(is_dialer=False, secret=two[0], previous=two[1]),
            )


def test_the_acceptor_may_refuse_for_its_own_reasons() -> None:
    def check_peer(peer: Introduction) -> None:
        raise PeerProtocolError(f"no room for {peer.node_id}", reason=RefusalReason.CROWDED)

    refused(
        side(is_dialer=True),
        side(is_dialer=False, check_peer=check_peer),
        RefusalReason.CROWDED,
        "no room",
    )


def test_the_dialer_may_refuse_too() -> None:
    def check_peer(peer: Introduction) -> None:
        raise PeerProtocolError(f"{peer.node_id} is me", reason=RefusalReason.LOOPED)

    errors = shake(side(is_dialer=True, check_peer=check_peer), side(is_dialer=False))
    assert errors["dialer"].reason is RefusalReason.LOOPED


class TestCertificates:
    def test_a_certificate_must_match_the_introduction(self) -> None:
        def dial(certificate: CertificateIdentity, **intro: Any) -> dict[str, PeerProtocolError]:
            acceptor = side(is_dialer=False, mode=SecurityMode.TLS, certificate=certificate)
            return shake(
                side(is_dialer=True, mode=SecurityMode.TLS, certificate=MANAGER, **intro), acceptor
            )

        assert dial(MANAGER) == {}
        worker = CertificateIdentity(frozenset({Role.WORKER}), "acme", "test")
        lies = {
            "role": dial(worker),
            "cluster": dial(CertificateIdentity(frozenset({Role.MANAGER}), "other", "test")),
            "environment": dial(CertificateIdentity(frozenset({Role.MANAGER}), "acme", "prod")),
            "datacenter": dial(
                CertificateIdentity(frozenset({Role.MANAGER}), "acme", "test", datacenter="eu"),
                datacenter="us",
            ),
            "node": dial(
                CertificateIdentity(frozenset({Role.MANAGER}), "acme", "test", node_id="somebody")
            ),
        }
        assert {what: errors["acceptor"].reason for what, errors in lies.items()} == dict.fromkeys(
            lies, RefusalReason.IDENTITY
        )
        assert "says it is a manager, its certificate says worker" in str(lies["role"]["dialer"])

    def test_tls_without_a_certificate_is_an_invariant_error(self) -> None:
        with pytest.raises(InvariantError):
            side(is_dialer=True, mode=SecurityMode.TLS)


class TestAttacks:
    def test_a_recorded_handshake_cannot_be_replayed(self) -> None:
        dialer, first, second = side(is_dialer=True), side(is_dialer=False), side(is_dialer=False)
        hello = dialer.begin()
        named = dialer.receive(frames(first.receive(frames(hello)[0]))[0])
        first.receive(frames(named)[0])
        assert first.result is not None

        second.receive(frames(hello)[0])
        with pytest.raises(PeerProtocolError) as caught:
            second.receive(frames(named)[0])
        assert caught.value.reason is RefusalReason.TAMPERED

    def test_a_hello_reflected_to_its_sender_is_refused(self) -> None:
        dialer = side(is_dialer=True)
        hello = dialer.begin()
        with pytest.raises(PeerProtocolError) as caught:
            dialer.receive(frames(hello)[0])
        assert caught.value.reason is RefusalReason.SECRET

    def test_altering_the_clear_hello_breaks_the_keys(self) -> None:
        dialer, acceptor = side(is_dialer=True, protocol=(PROTOCOL[0], 5)), side(is_dialer=False)
        hello = frames(dialer.begin())[0]
        honest = msgspec.msgpack.decode(hello.body, type=HandshakeHello)
        downgraded = REGISTRY.encode(msgspec.structs.replace(honest, minor=0))
        answer = acceptor.receive(Frame(1, 0, 0, 0, hello.head, downgraded))
        named = dialer.receive(frames(answer)[0])
        with pytest.raises(PeerProtocolError) as caught:
            acceptor.receive(frames(named)[0])
        assert caught.value.reason is RefusalReason.TAMPERED

    def test_frames_out_of_turn_are_refused(self) -> None:
        for kind in (2, 4, 10, 200):
            with pytest.raises(PeerProtocolError) as caught:
                side(is_dialer=False).receive(Frame(kind, 0, 0, 0, bytes(16), b""))
            assert caught.value.reason is RefusalReason.UNEXPECTED

    @pytest.mark.parametrize("exchange", [b"", b"short", bytes(48), bytes(1000)])
    def test_a_hello_without_a_readable_key_exchange_is_refused(self, exchange: bytes) -> None:
        hello = REGISTRY.encode(HandshakeHello(*PROTOCOL, security="secret", exchange=exchange))
        with pytest.raises(PeerProtocolError) as caught:
            side(is_dialer=False).receive(Frame(1, 0, 0, 0, bytes(16), hello))
        assert caught.value.reason is RefusalReason.SECRET

    def test_a_hello_of_the_acceptor_that_was_replaced_on_the_way_is_refused(self) -> None:
        dialer, acceptor = side(is_dialer=True), side(is_dialer=False)
        acceptor.receive(frames(dialer.begin())[0])
        forged = REGISTRY.encode(HandshakeHello(*PROTOCOL, security="secret", exchange=bytes(48)))
        with pytest.raises(PeerProtocolError) as caught:
            dialer.receive(Frame(1, 0, 0, 0, bytes(16), forged))
        assert caught.value.reason is RefusalReason.SECRET

    @pytest.mark.parametrize(
        "change",
        [
            {"node_id": "new\nline"},
            {"node_id": ""},
            {"node_id": "x" * 65},
            {"incarnation": -1},
            {"capabilities": ["c"] * 65},
            {"capabilities": ["c" * 65]},
            {"version": "v" * 65},
            {"datacenter": "no spaces"},
        ],
    )
    def test_an_introduction_out_of_bounds_is_refused(self, change: dict[str, Any]) -> None:
        errors = shake(side(is_dialer=True, **change), side(is_dialer=False))
        assert errors["acceptor"].reason is RefusalReason.MALFORMED

    @given(st.integers(0, 300), st.binary(max_size=200), st.booleans(), st.integers(0, 1))
    def test_any_frame_is_answered_by_a_reason_or_accepted(
        self, kind: int, body: bytes, is_dialer: bool, after: int
    ) -> None:
        machine, other = side(is_dialer=is_dialer), side(is_dialer=not is_dialer)
        if after:
            hello = other.begin() or other.receive(frames(machine.begin())[0])
            machine.receive(frames(hello)[0])
        try:
            machine.receive(Frame(kind, 0, 0, 0, bytes(16), body))
        except PeerProtocolError as error:
            machine.refusal(error)
        assert machine.result is None

    def test_text_of_an_unauthenticated_peer_is_escaped_for_the_log(self) -> None:
        errors = shake(side(is_dialer=True, cluster="a\x1b[31m\n"), side(is_dialer=False))
        assert "\x1b" not in str(errors["acceptor"])
        assert "\n" not in str(errors["acceptor"])


class TestForwardSecrecy:
    """A session that was recorded stays closed, even to those who learn the secret later."""

    def test_the_secret_and_a_recording_open_no_frame(self) -> None:
        dialer, acceptor = side(is_dialer=True), side(is_dialer=False)
        first = frames(dialer.begin())[0]
        second = frames(acceptor.receive(first))[0]
        third = frames(dialer.receive(second))[0]
        fourth = frames(acceptor.receive(third))[0]
        assert dialer.receive(fourth) == b""
        assert dialer.result is not None
        assert dialer.result.sealer is not None
        head = bytes(16)
        said = Frame(20, 1, 0, 0, head, dialer.result.sealer.seal(head, b"the plan of a job"))

        for keys in self._keys_of_an_eavesdropper(first.body, second.body):
            for key in keys:
                for frame in (third, fourth, said):
                    with pytest.raises(PeerProtocolError):
                        FrameOpener(key).open(frame.head, frame.body)

    def _keys_of_an_eavesdropper(self, first: bytes, second: bytes) -> list[SessionKeys]:
        """Every session key that both recorded hellos and the secret lead to."""
        said = first + second
        dialed, accepted = (
            msgspec.msgpack.decode(each, type=HandshakeHello).exchange for each in (first, second)
        )
        as_acceptor = begin_exchange(SECRET.encode(), is_dialer=False)
        as_acceptor.read(dialed)  # the secret authenticates the recorded message ...
        as_acceptor.write()  # ... but the ephemeral key of the other side is gone
        as_dialer = begin_exchange(SECRET.encode(), is_dialer=True)
        as_dialer.write()
        with pytest.raises(ValueError, match="does not read"):
            as_dialer.read(accepted)
        return [session_keys(as_acceptor, transcript=said)]
