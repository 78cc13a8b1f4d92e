"""This node as a member: its identity, address, metadata, and what it says about itself."""

from msgspec import Struct

from hyperscale.membership.events import MemberState
from hyperscale.membership.member_table import MemberRecord
from hyperscale.membership.messages import ClaimedState, MemberUpdate, Sender
from hyperscale.wire.roles import MAY_CONNECT, Role


class LocalIdentity(Struct, frozen=True, kw_only=True):
    """Who this node is. The incarnation is the wall clock in milliseconds at process start."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0


class LocalNode(MemberRecord):
    """The record of this node. `sender` is part of every datagram and follows every change."""

    __slots__ = ("is_leaving", "sender")

    def __init__(self, identity: LocalIdentity) -> None:
        update = MemberUpdate(
            node=identity.node,
            incarnation=identity.incarnation,
            claim=ClaimedState.ALIVE,
            role=identity.role,
            address=identity.address,
            stream_port=identity.stream_port,
        )
        super().__init__(update, 0.0)
        self.state = MemberState.ALIVE
        self.is_leaving = False
        self.sender = self._make_sender()

    def start_incarnation(self, incarnation: int) -> None:
        """Continue as a later incarnation."""
        self.incarnation = incarnation
        self.refute(0)

    def refute(self, refutation: int) -> None:
        """Outrank the claims about this node that carry an earlier refutation."""
        self.refutation = refutation
        self.sender = self._make_sender()

    def relocate(self, address: str, stream_port: int) -> None:
        """Take another address, and outrank the updates that name the old one."""
        self.address, self.stream_port = address, stream_port
        self.refute(self.refutation + 1)

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

    def _make_sender(self) -> Sender:
        return Sender(self.address, self.role, self.refutation, self.stream_port)
