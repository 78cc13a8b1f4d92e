"""This node as a member: its identity, address, metadata, and what it says about itself."""

from msgspec import Struct

from hyperscale.membership.events import MemberState
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState, Sender
from hyperscale.wire.roles import MAY_CONNECT, Role


class LocalIdentity(Struct, frozen=True, kw_only=True):
    """Who this node is. The incarnation is the wall clock in milliseconds at process start."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0


class LocalNode(MemberRecord, eq=False):
    """The record of this node."""

    is_leaving: bool = False

    @property
    def sender(self) -> Sender:
        """What this node says about itself in every datagram."""
        return Sender(self.address, self.role, self.refutation, self.stream_port)

    def start_incarnation(self, incarnation: int) -> None:
        """Continue as a later incarnation."""
        self.incarnation, self.refutation = incarnation, 0

    def relocate(self, address: str, stream_port: int) -> None:
        """Take another address, and outrank the updates that name the old one."""
        self.address, self.stream_port = address, stream_port
        self.refutation += 1

    def describe(self, metadata: bytes) -> None:
        """Publish new metadata, if it differs."""
        if metadata != self.metadata:
            self.metadata = metadata
            self.metadata_version += 1

    def leave(self) -> None:
        """Claim from now on that this node has left."""
        self.is_leaving = True
        self.claim, self.state = ClaimedState.LEFT, MemberState.LEFT

    def may_dial(self, peer: MemberRecord) -> bool:
        """Return True if this node's role may connect to the role of `peer`."""
        return peer.role in MAY_CONNECT[self.role]
