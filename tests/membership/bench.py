"""One core on a bench: the test plays the network, the clock and the other members."""

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from hyperscale.membership.core import Membership
from hyperscale.membership.events import (
    DatagramReceived,
    MembershipEffect,
    MembershipEvent,
    SendDatagram,
)
from hyperscale.membership.local_node import LocalIdentity
from hyperscale.membership.messages import (
    Ack,
    ClaimedState,
    Datagram,
    Gossip,
    MemberUpdate,
    Ping,
    Sender,
)
from hyperscale.membership.settings import MembershipConfig
from hyperscale.sansio.core import Tick
from hyperscale.wire.roles import Role

_T = TypeVar("_T")


class Bench:
    """A core named "self", and everything that came out of it."""

    def __init__(self, *, role: Role = Role.MANAGER, seed: int = 1, **settings: Any) -> None:
        self.now_s = 1000.0
        identity = LocalIdentity(node="self", incarnation=500, role=role, address="self:1")
        self.core = Membership(
            identity, MembershipConfig(**settings), rng=Random(seed), now_s=self.now_s
        )
        self.effects: list[MembershipEffect] = []

    def handle(self, event: MembershipEvent) -> list[MembershipEffect]:
        effects = self.core.handle(event, now_s=self.now_s)
        self.effects += effects
        return effects

    def run(self, seconds: float, *, answering: tuple[str, ...] = ()) -> list[MembershipEffect]:
        """Lets time pass, tick by tick; who is `answering` acks every ping at once."""
        began, ends_s = len(self.effects), self.now_s + seconds
        while (wake_at_s := self.core.wake_at_s()) is not None and wake_at_s <= ends_s:
            self.now_s = max(self.now_s, wake_at_s)
            for effect in self.handle(Tick()):
                if isinstance(effect, SendDatagram) and isinstance(effect.datagram, Ping):
                    node = effect.datagram.target
                    if node in answering:
                        self.ack(node, effect.datagram)
        self.now_s = ends_s
        return self.effects[began:]

    def until(self, holds: Callable[[], object], *, answering: tuple[str, ...] = ()) -> None:
        """Lets time pass until something holds, at most half a minute."""
        for _ in range(3_000):
            if holds():
                return
            self.run(0.01, answering=answering)
        raise AssertionError("it never came to that")

    def receive(
        self, node: str, datagram: Datagram, *, incarnation: int = 100
    ) -> list[MembershipEffect]:
        return self.handle(DatagramReceived(f"{node}:1", node, incarnation, datagram))

    def ack(self, node: str, ping: Ping, **kwargs: Any) -> list[MembershipEffect]:
        incarnation = kwargs.pop("incarnation", 100)
        refutation = kwargs.pop("refutation", 0)
        role = kwargs.pop("role", self.role_of(node))
        ack = Ack(Sender(f"{node}:1", role, refutation), ping.sequence, **kwargs)
        return self.receive(node, ack, incarnation=incarnation)

    def role_of(self, node: str) -> Role:
        return Role.WORKER if node.startswith("w") else Role.MANAGER

    def say(self, *updates: MemberUpdate, by: str = "a") -> list[MembershipEffect]:
        """`by` tells the core something."""
        sender = Sender(f"{by}:1", self.role_of(by))
        return self.receive(by, Gossip(sender, updates))

    def meet(self, *nodes: str) -> None:
        """Confirms members, as a two-way exchange does."""
        for node in nodes:
            self.say(alive(node, role=self.role_of(node)), by=node)
            ping = next(p for p in reversed(self.pings()) if p.target == node)
            self.ack(node, ping)
        self.run(8.0, answering=nodes)
        self.effects.clear()

    def pings(self, node: str | None = None) -> list[Ping]:
        sent = [e.datagram for e in self.effects if isinstance(e, SendDatagram)]
        pings = [d for d in sent if isinstance(d, Ping)]
        return [p for p in pings if node is None or p.target == node]

    def all(self, kind: type[_T]) -> list[_T]:
        """Everything of one kind that came out, datagrams included."""
        found: list[Any] = [e for e in self.effects if isinstance(e, kind)]
        sent = [e.datagram for e in self.effects if isinstance(e, SendDatagram)]
        return found + [d for d in sent if isinstance(d, kind)]

    def told(self, node: str) -> list[MemberUpdate]:
        """What the core has told others about a node, in its own words."""
        sent = [e.datagram for e in self.effects if isinstance(e, SendDatagram)]
        return [n for d in sent for n in d.updates if n.node == node]


def alive(
    node: str, incarnation: int = 100, refutation: int = 0, role: Role = Role.MANAGER
) -> MemberUpdate:
    return MemberUpdate(
        node, incarnation, ClaimedState.ALIVE, refutation, role=role, address=f"{node}:1"
    )


def claim(
    what: ClaimedState, node: str, refutation: int = 0, *, by: str = "a", incarnation: int = 100
) -> MemberUpdate:
    return MemberUpdate(node, incarnation, what, refutation, by)
