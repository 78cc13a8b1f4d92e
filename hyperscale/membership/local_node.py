"""This node as a member: its identity, address, metadata, and what it says about itself."""

from msgspec import Struct

from hyperscale.membership.events import Member, MemberState
from hyperscale.membership.member_table import MemberRecord, stream_address
from hyperscale.membership.messages import ClaimedState, MemberUpdate, Sender
from hyperscale.wire.roles import MAY_CONNECT, Role


class LocalIdentity(Struct, frozen=True, kw_only=True):
    """Who this node is. The incarnation is the wall clock in milliseconds at process start."""

    node: str
    incarnation: int
    role: Role
    address: str
    stream_port: int = 0


class LocalNode:
    """The state of this node. `sender` is part of every datagram and follows every change."""

    def __init__(self, identity: LocalIdentity) -> None:
        self.node = identity.node
        self.role = identity.role
        self.incarnation = identity.incarnation
        self.refutation = 0
        self.address = identity.address
        self.stream_port = identity.stream_port
        self.metadata = b""
        self.metadata_version = 0
        self.is_leaving = False
        self.sender = self._make_sender()

    def start_incarnation(self, incarnation: int) -> None:
        """Continue as a later incarnation."""
        self.incarnation, self.refutation = incarnation, 0
        self.sender = self._make_sender()

    def refute(self, refutation: int) -> None:
        """Outrank the claims about this node that carry an earlier refutation."""
        self.refutation = refutation
        self.sender = self._make_sender()

    def move(self, address: str, stream_port: int) -> None:
        """Take another address, and outrank the updates that name the old one."""
        self.address, self.stream_port = address, stream_port
        self.refute(self.refutation + 1)

    def describe(self, metadata: bytes) -> None:
        """Publish new metadata, if it differs."""
        if metadata != self.metadata:
            self.metadata = metadata
            self.metadata_version += 1

    def may_dial(self, peer: MemberRecord) -> bool:
        """Return True if this node's role may connect to the role of `peer`."""
        return peer.role in MAY_CONNECT[self.role]

    def update(self) -> MemberUpdate:
        """Return what this node claims about itself."""
        return MemberUpdate(
            node=self.node,
            incarnation=self.incarnation,
            claim=ClaimedState.LEFT if self.is_leaving else ClaimedState.ALIVE,
            refutation=self.refutation,
            role=self.role,
            address=self.address,
            stream_port=self.stream_port,
        )

    def member(self) -> Member:
        """Return this node as a row of the member list."""
        return Member(
            node=self.node,
            incarnation=self.incarnation,
            refutation=self.refutation,
            role=self.role,
            address=self.address,
            stream_address=stream_address(self.address, self.stream_port),
            state=MemberState.LEFT if self.is_leaving else MemberState.ALIVE,
            since_s=0.0,
            metadata=self.metadata,
            metadata_version=self.metadata_version,
        )

    def _make_sender(self) -> Sender:
        return Sender(self.address, self.role, self.refutation, self.stream_port)
