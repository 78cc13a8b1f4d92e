"""Named clients: what proves their names, and which messages their roles may send."""

import asyncio
from pathlib import Path

import pytest

import hyperscale.nodes.gate
import hyperscale.nodes.manager  # noqa: F401  registers the messages of all roles
from hyperscale.config.loading import node_config
from hyperscale.errors import InputError, InvariantError
from hyperscale.ledger.messages import RaftMessages
from hyperscale.wire.certificate_identity import CertificateIdentity, identity_from_uris, uris_of
from hyperscale.wire.client_access import GRANTED, ClientRole, Permission, Principal
from hyperscale.wire.clients_file import Clients, read_clients
from hyperscale.wire.cluster_secret import Secrets
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import PeerRefusedError, RefusalReason, RemoteError, RemoteErrorCode
from hyperscale.wire.outbox import QueuedFrame
from hyperscale.wire.registry import (
    REGISTRY,
    MessagePriority,
    MessageRegistry,
    MessageSpec,
    SizeClass,
)
from hyperscale.wire.roles import EVERYONE, Role
from hyperscale.wire.security import Security, security_of_node
from tests.lab.loops import run
from tests.lab.peers import SECRET, Answer, Question, ask, echoing, server
from tests.lab.waiting import soon

OF_CLIENTS = [spec for spec in REGISTRY.by_kind.values() if spec.permission is not None]
SECRETS = {role: f"the secret of the {role}" for role in ClientRole}


def clients() -> Clients:
    principals = {str(role): Principal(name=role, role=role) for role in ClientRole}
    return Clients(principals, {SECRETS[role].encode(): principals[role] for role in ClientRole})


def guarded() -> Security:
    return Security(secrets=Secrets(SECRET), clients=clients())


async def _is_refused(connection: Connection, spec: MessageSpec) -> bool:
    """Return True if the node refuses a message of this kind because of who sends it."""
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    session = connection.session
    number = session.request(ask(), Answer, future, deadline_s=soon())
    frame = session.pending.by_id[number].frame
    session.outbox.discard(frame)
    session.outbox.push(QueuedFrame(spec.kind, number, spec.priority, soon(), b"\x80"))
    connection.flush_soon()
    try:
        await future
    except RemoteError as error:
        return error.code is RemoteErrorCode.ROLE
    return False


@pytest.mark.parametrize("claimed", [Role.CLIENT, Role.OPERATOR])
@pytest.mark.parametrize("role", ClientRole)
def test_a_client_may_send_the_messages_that_its_role_permits(
    role: ClientRole, claimed: Role
) -> None:
    async def main() -> None:
        node = server("m", security=guarded(), handlers=echoing())
        client = server("c", claimed, secret=SECRETS[role])
        async with node, client:
            _, port = await node.listen("127.0.0.1", 0)
            connection = await client.dial("127.0.0.1", port)
            refused = {spec.name for spec in OF_CLIENTS if await _is_refused(connection, spec)}
            assert await _is_refused(connection, REGISTRY.by_type[RaftMessages])
        assert refused == {spec.name for spec in OF_CLIENTS if spec.permission not in GRANTED[role]}

    run(main)


@pytest.mark.parametrize("role", [Role.MANAGER, Role.WORKER, Role.GATE])
def test_the_secret_of_a_client_makes_no_node(role: Role) -> None:
    async def main() -> None:
        node = server("m", security=guarded())
        async with node, server("x", role, secret=SECRETS[ClientRole.OPERATOR]) as intruder:
            _, port = await node.listen("127.0.0.1", 0)
            with pytest.raises(PeerRefusedError) as caught:
                await intruder.dial("127.0.0.1", port)
        assert caught.value.reason is RefusalReason.ROLE
        assert "operator is a client" in caught.value.message

    run(main)


def test_a_stranger_is_refused() -> None:
    async def main() -> None:
        node = server("m", security=guarded())
        async with node, server("c", Role.CLIENT, secret="a secret nobody knows") as stranger:
            _, port = await node.listen("127.0.0.1", 0)
            with pytest.raises(PeerRefusedError) as caught:
                await stranger.dial("127.0.0.1", port)
        assert caught.value.reason is RefusalReason.SECRET

    run(main)


def test_a_client_with_the_cluster_secret_has_no_name_and_all_rights_of_clients() -> None:
    async def main() -> None:
        node = server("m", security=guarded(), handlers=echoing())
        async with node, server("c", Role.CLIENT) as client:
            _, port = await node.listen("127.0.0.1", 0)
            connection = await client.dial("127.0.0.1", port)
            assert (await connection.call(Question("hi"), Answer, deadline_s=soon())).text == "HI"
            refused = {spec.name for spec in OF_CLIENTS if await _is_refused(connection, spec)}
        assert refused == {spec.name for spec in OF_CLIENTS if Role.CLIENT not in spec.senders}

    run(main)


def test_a_message_of_clients_needs_a_permission() -> None:
    def spec(senders: frozenset[Role], permission: Permission | None) -> MessageSpec:
        return MessageSpec(
            type=Question,
            kind=60_100,
            priority=MessagePriority.LOW,
            size=SizeClass.SMALL,
            senders=senders,
            rate_per_10s=1,
            decode=bytes,
            permission=permission,
        )

    registry = MessageRegistry()
    with pytest.raises(InvariantError, match="needs a permission"):
        registry.add(spec(EVERYONE, None))
    with pytest.raises(InvariantError, match="needs a permission"):
        registry.add(spec(frozenset({Role.WORKER}), Permission.LOOK))
    registry.add(spec(EVERYONE, Permission.LOOK))


# -- certificates ---------------------------------------------------------------------------


def certified(role: ClientRole | None, *, operator: bool = False) -> CertificateIdentity:
    roles = frozenset({Role.OPERATOR if operator else Role.CLIENT})
    made = CertificateIdentity(roles, "acme", "test", client="alice", client_role=role)
    assert identity_from_uris(uris_of(made)) == made
    return made


@pytest.mark.parametrize(
    ("identity", "known", "role"),
    [
        (certified(ClientRole.VIEWER), None, ClientRole.VIEWER),
        (certified(None), None, ClientRole.SUBMITTER),
        (certified(None, operator=True), None, ClientRole.OPERATOR),
        (certified(ClientRole.OPERATOR), ClientRole.VIEWER, ClientRole.VIEWER),
        (certified(ClientRole.VIEWER), ClientRole.OPERATOR, ClientRole.VIEWER),
    ],
)
def test_a_certificate_names_a_client_whose_role_the_file_can_lower(
    identity: CertificateIdentity, known: ClientRole | None, role: ClientRole
) -> None:
    listed = {} if known is None else {"alice": Principal(name="alice", role=known, jobs_max=3)}
    found = Clients(listed, {}).of_certificate(identity)
    assert found == Principal(name="alice", role=role, jobs_max=3 if listed else 0)


# -- the file -------------------------------------------------------------------------------


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_clients_file_names_roles_secrets_and_quotas(tmp_path: Path) -> None:
    text = '[alice]\nrole = "submitter"\nsecret = "sixteen characters"\njobs = 5\ncores = 8\n'
    found = read_clients(written(tmp_path / "clients.toml", text))
    alice = Principal(name="alice", role=ClientRole.SUBMITTER, jobs_max=5, cores_max=8)
    assert list(found.secrets) == [(b"sixteen characters", alice)]
    assert "sixteen" not in repr(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[alice]\n", "role"),
        ('[alice]\nrole = "boss"\n', "boss"),
        ('[alice]\nrole = "viewer"\ncolour = "red"\n', "colour"),
        ('[alice]\nrole = "viewer"\nsecret = "short"\n', "5 characters"),
        ('[alice]\nrole = "viewer"\njobs = 0\n', "jobs"),
        ('["not a name"]\nrole = "viewer"\n', "not a name"),
        ('alice = "viewer"\n', "alice"),
        ("[alice\n", "not TOML"),
        (
            '[alice]\nrole = "viewer"\nsecret = "the same secret!"\n'
            '[bob]\nrole = "viewer"\nsecret = "the same secret!"\n',
            "alice and bob",
        ),
        (f'[alice]\nrole = "viewer"\nsecret = "{SECRET}"\n', "the cluster secret"),
    ],
)
def test_a_wrong_clients_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    secret = written(tmp_path / "secret", SECRET)
    path = written(tmp_path / "clients.toml", text)
    settings = {"secret_file": str(secret), "clients_file": str(path)}
    with pytest.raises(InputError) as caught:
        security_of_node(node_config("manager", {"security": settings}))
    assert problem in caught.value.message
    assert str(path) in caught.value.message


def test_a_clients_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "clients.toml", "")
    path.chmod(0o644)
    with pytest.raises(InputError, match="open to other users"):
        read_clients(path)


def test_a_clients_file_without_a_cluster_secret_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "clients.toml", '[alice]\nrole = "viewer"\n')
    with pytest.raises(InputError, match="no secret and no certificate"):
        security_of_node(node_config("manager", {"security": {"clients_file": str(path)}}))
