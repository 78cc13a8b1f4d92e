"""What clients may do: roles of people, and the permission that each message of theirs needs.

A client proves who it is with a secret of its own (`clients_file`) or with a certificate that names
it. Clients without a name are as trusted as the credential they share with nodes: the messages that
their connection role may send, about all jobs.
"""

from enum import Enum, StrEnum

from msgspec import Struct


class ClientRole(StrEnum):
    """What a named client may do; each role includes the ones before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"


class Permission(Enum):
    """What a message of clients needs."""

    LOOK = "look"  # read what the cluster does
    SUBMIT = "submit"  # run code on workers
    OWN = "own"  # change a job or read its results: one's own job, or any if one may operate
    OPERATE = "operate"  # change the cluster, read all that is committed


GRANTED: dict[ClientRole, frozenset[Permission]] = {
    ClientRole.VIEWER: frozenset({Permission.LOOK}),
    ClientRole.SUBMITTER: frozenset({Permission.LOOK, Permission.SUBMIT, Permission.OWN}),
    ClientRole.OPERATOR: frozenset(Permission),
}


class Principal(Struct, frozen=True, kw_only=True):
    """A client that has proved its name."""

    name: str
    role: ClientRole
    jobs_max: int = 0
    """The most jobs of this client that may not have ended; 0: no limit."""
    cores_max: int = 0
    """The most cores that this client's jobs may hold; 0: no limit."""

    def may(self, permission: Permission | None) -> bool:
        """Return True if the role grants a permission; None is one that no client has."""
        return permission is not None and permission in GRANTED[self.role]

    def may_change(self, owner: str) -> bool:
        """Return True if the client may change the jobs of `owner` and read their results."""
        return self.name == owner or self.may(Permission.OPERATE)


def least_role(permission: Permission) -> ClientRole:
    """Return the weakest role that has a permission."""
    return next(role for role in ClientRole if permission in GRANTED[role])
