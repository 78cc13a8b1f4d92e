"""The ledger as a part of a node: its directory, its way to a tier, its end."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hyperscale._native import LedgerError, LedgerStore
from hyperscale.errors import InputError, RunError
from hyperscale.ledger.core import FOLLOWED, LedgerCore, Limits
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.topology import NodeState
from hyperscale.membership.events import Member
from hyperscale.nodes.identity import remember_name
from hyperscale.nodes.ledger.group_maintenance import Managing
from hyperscale.nodes.ledger.join import Belonging, Joining
from hyperscale.nodes.ledger.ledger_metrics import collect
from hyperscale.nodes.ledger.local_ledger import now_ms
from hyperscale.nodes.ledger.operator import Operator
from hyperscale.nodes.ledger.peers import MemberPeers
from hyperscale.nodes.ledger.routing import Ledger, answer_ledger
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.nodes.messages import AnnouncedLoad, metadata_of
from hyperscale.nodes.metrics import Family
from hyperscale.wire.handlers import Handlers

_HAND_OVER_S = 1.0
_FORGET_FIRST_S = 5.0
_FORGET_S = 3600.0
_GONE = "it takes no part any more; with an empty data directory it joins as a new manager"

_log = logging.getLogger("hyperscale.ledger")


class LedgerService(NodeService):
    """Holds the node's `Ledger`, once there is one."""

    def __init__(
        self,
        directory: Path,
        *,
        founders: int,
        make_machine: Callable[[int], Machine],
        slot_of: Callable[[str], int],
        live_jobs: Callable[[Machine], int],
        limits: Limits | None = None,
        history_days: float = 30.0,
    ) -> None:
        self.ledger: Ledger | None = None
        self.on_ledger: list[Callable[[Ledger], None]] = []
        """Told once there is one, before it does anything."""
        self._directory = directory
        self._founders = founders
        self._make_machine = make_machine
        self._slot_of = slot_of
        self._count_live = live_jobs
        self._limits = limits
        self._history_ms = int(history_days * 24 * 3600 * 1000)
        self._store: LedgerStore | None = None
        self._is_gone = False

    def require(self) -> Ledger:
        """The ledger; `RunError` while this node has none."""
        if self.ledger is None:
            raise RunError(
                "this node has not joined its ledger yet",
                hint="a new tier waits for all the managers it is to begin with",
            )
        return self.ledger

    # -- NodeService ----------------------------------------------------------------------

    def attach(self, member: MemberNode, handlers: Handlers) -> None:
        remember_name(self._directory.parent, member.node_id)
        try:
            self._store = LedgerStore(self._directory)
        except LedgerError as error:
            raise InputError(
                str(error),
                hint="a full disk needs room. One directory serves one node: stop the other "
                "process, or give another --data-dir. A damaged one can be moved away: the node "
                "then joins as a new one",
            ) from error
        except OSError as error:
            raise InputError(f"{self._directory}: {error.strerror or error}") from error
        self._member = member
        self.peers = MemberPeers(member.server, member, member.server.local.role, _is_fit)
        self._belonging = Belonging(self._store)
        self._joining = Joining(
            self._belonging,
            self.peers,
            name=member.node_id,
            domain=member.config.node.failure_domain or member.node_id,
            founders=self._founders,
            ledger=lambda: self.ledger,
        )
        self._joining.answer(handlers)
        answer_ledger(handlers, lambda: self.ledger)
        Operator(self.require).answer(handlers)

    async def start(self) -> None:
        if self._belonging.ledger:
            self._open()
        else:
            self._member.tasks.spawn(self._join(), "ledger-join")

    async def _join(self) -> None:
        topology = await self._joining.found_or_join()
        ledger = self._open()
        if topology is not None:
            ledger.core.found(topology)
        elif not ledger.core.replicas:
            ledger.core.join(0)
        ledger.wake()
        self._member.announce()

    def _open(self) -> Ledger:
        assert self._store is not None
        core = LedgerCore(
            self._belonging.number,
            self._store,
            make_machine=self._make_machine,
            slot_of=self._slot_of,
            seed=secrets.randbits(63),
            limits=self._limits,
            images=self._store.load(),
            followed=int(dict(self._store.meta()).get(FOLLOWED, b"0")),
        )
        ledger = Ledger(self._belonging.ledger, core, self._store, self.peers)
        self.ledger = ledger
        ledger.hooks.topology.append(self._member.announce)
        ledger.hooks.topology.append(self._tell_if_gone)
        self._tell_if_gone()
        for told in self.on_ledger:
            told(ledger)
        managing = Managing(ledger, self._count_live)
        self._member.tasks.spawn(ledger.run(), "ledger")
        self._member.tasks.spawn(managing.run(), "ledger-managing")
        self._member.tasks.spawn(self._forget(ledger), "ledger-forget")
        return ledger

    def _tell_if_gone(self) -> None:
        """Once in each life, also to whoever starts it again and wonders."""
        assert self.ledger is not None
        own = self.ledger.topology.nodes.get(self._belonging.number)
        if own is not None and own.state is NodeState.GONE and not self._is_gone:
            self._is_gone = True
            _log.warning("ledger.gone", extra={"number": own.number, "detail": _GONE})

    async def _forget(self, ledger: Ledger) -> None:
        """Lets history go that is older than it is to be kept."""
        await asyncio.sleep(_FORGET_FIRST_S)  # entries that are applied again bring rows again
        while True:
            ledger.store.prune_history(now_ms() - self._history_ms)
            await asyncio.sleep(_FORGET_S)

    async def leave(self) -> None:
        """Others lead on at once, instead of after an election."""
        ledger = self.ledger
        if ledger is None:
            return
        handed_over = asyncio.Event()
        ledger.hooks.following.append(lambda _group: handed_over.set())
        for group in tuple(ledger.leading()):
            with suppress(LedgerError):  # it is gone since
                voters = ledger.core.raft.seats(group)[0]
                fit = [n for n in voters if self.peers.is_fit(ledger.name_of(n))]
                others = [number for number in fit if number != ledger.core.number]
                if others:
                    ledger.core.raft.transfer_leadership(group, others[0])
        ledger.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER_S):
                while ledger.leading() and len(ledger.topology.nodes) > 1:
                    handed_over.clear()
                    await handed_over.wait()

    async def stop(self) -> None:
        if self.ledger is not None:
            await self.ledger.close()
        elif self._store is not None:
            self._store.close()

    def ended(self) -> None:
        if self.ledger is not None:
            self.ledger.core.end()

    def why_not_ready(self) -> tuple[str, ...]:
        if self.ledger is None:
            return ("has not joined its ledger",)
        topology = self.ledger.topology
        if not any(topology.owners):
            return ("its ledger has no groups yet",)
        return ()

    def collect(self) -> list[Family]:
        return [] if self.ledger is None else collect(self.ledger)


_MAY_LEAD = frozenset({AnnouncedLoad.HEALTHY, AnnouncedLoad.BUSY})


def _is_fit(member: Member) -> bool:
    """A node that is overloaded or leaving should not lead."""
    metadata = metadata_of(member.metadata)
    return metadata is None or (
        metadata.is_ready and metadata.overload in {AnnouncedLoad.HEALTHY, AnnouncedLoad.BUSY}
    )
