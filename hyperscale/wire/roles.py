"""Who may connect to whom.

Roles come from certificates where there are some; with the cluster secret alone they are what
the peer says they are. They are enforced all the same: that catches mistakes, not attackers
who hold the secret.
"""

from enum import StrEnum

from hyperscale.wire.errors import PeerProtocolError, RefusalReason


class Role(StrEnum):
    GATE = "gate"
    MANAGER = "manager"
    WORKER = "worker"
    CLIENT = "client"
    OPERATOR = "operator"


NODES = frozenset({Role.GATE, Role.MANAGER, Role.WORKER})
"""The roles that are members; everyone else is a guest."""
EVERYONE = frozenset(Role)

# Gates and managers push to clients, but on connections the clients opened: a client does not
# listen. The rows allow both all the same, so that a client may be a listener one day.
MAY_CONNECT: dict[Role, frozenset[Role]] = {
    Role.CLIENT: frozenset({Role.GATE, Role.MANAGER}),
    Role.GATE: frozenset({Role.MANAGER, Role.GATE, Role.CLIENT}),
    Role.MANAGER: frozenset({Role.WORKER, Role.MANAGER, Role.GATE, Role.CLIENT}),
    Role.WORKER: frozenset({Role.MANAGER}),
    Role.OPERATOR: NODES,
}


def check_may_connect(initiator: Role, target: Role) -> None:
    """Raises unless `initiator` may open a connection to `target`."""
    if target not in MAY_CONNECT[initiator]:
        allowed = ", ".join(sorted(MAY_CONNECT[initiator]))
        raise PeerProtocolError(
            f"Connection denied: role '{initiator}' cannot connect to '{target}'",
            reason=RefusalReason.ROLE,
            hint=f"a {initiator} may connect to: {allowed}",
        )
