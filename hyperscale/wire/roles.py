"""Which role may connect to which.

A certificate proves the role of a peer. With the cluster secret alone the role is what the peer
claims; enforcing it catches mistakes, but not an attacker who has the secret.
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
"""The roles of cluster members; clients and operators are external."""
DATACENTER_ROLES = frozenset({Role.MANAGER, Role.WORKER})
"""The roles of nodes that belong to one datacenter."""
EVERYONE = frozenset(Role)

# Clients do not listen today: gates and managers reach them over connections that the clients
# opened. The table allows both directions, so that a client may listen one day.
MAY_CONNECT: dict[Role, frozenset[Role]] = {
    Role.CLIENT: frozenset({Role.GATE, Role.MANAGER}),
    Role.GATE: frozenset({Role.MANAGER, Role.GATE, Role.CLIENT}),
    Role.MANAGER: frozenset({Role.WORKER, Role.MANAGER, Role.GATE, Role.CLIENT}),
    Role.WORKER: frozenset({Role.MANAGER}),
    Role.OPERATOR: NODES,
}


def check_may_connect(initiator: Role, target: Role) -> None:
    """Raise unless `initiator` may open a connection to `target`."""
    if target not in MAY_CONNECT[initiator]:
        allowed = ", ".join(sorted(MAY_CONNECT[initiator]))
        raise PeerProtocolError(
            f"Connection denied: role '{initiator}' cannot connect to '{target}'",
            RefusalReason.ROLE,
            hint=f"a {initiator} may connect to: {allowed}",
        )
