"""The ledger service of a node: its data directory, joining a tier, running, leaving."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hyperscale._native import (
    LedgerDamagedError,
    LedgerError,
    LedgerLockedError,
    LedgerNewerError,
    LedgerStore,
)
from hyperscale.errors import InputError, RunError
from hyperscale.gates.committed.machine import GlobalJobMachine
from hyperscale.jobs.committed.keys import parse_job_id
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.cluster_version import version_problem
from hyperscale.ledger.core import FOLLOWED, MANAGEMENT, TICK_S, LedgerCore, LedgerLimits
from hyperscale.ledger.core_events import LeadershipTransferRequested
from hyperscale.ledger.group_maintenance import MaintenanceTiming
from hyperscale.ledger.machine import Machine
from hyperscale.ledger.server.backup_requests import BackupRequests
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.ledger_driver import LedgerDriver, wall_ms
from hyperscale.ledger.server.ledger_join import LedgerIdentity, LedgerJoin
from hyperscale.ledger.server.ledger_metrics import LEADERLESS_S, collect
from hyperscale.ledger.server.maintenance_driver import MaintenanceDriver
from hyperscale.ledger.server.operator_requests import OperatorRequests
from hyperscale.ledger.server.peer_requests import OpenLedger, answer_peers
from hyperscale.ledger.server.tier_peers import TierPeers
from hyperscale.ledger.topology import NodeState
from hyperscale.ledger.topology_policy import VOTERS, VOTERS_OF_GATES
from hyperscale.membership.events import Member
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.nodes.messages import AnnouncedLoad, metadata_of
from hyperscale.telemetry.metrics import Family
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.messages import Introduction
from hyperscale.wire.roles import DATACENTER_ROLES, Role
from hyperscale.wire.versions import CURRENT, OLDEST, Version, parse_version

LAYOUT_VERSION: Final = 5
"""Of what a data directory holds: records, snapshots and history rows. Raise it by one whenever
this version could misread what an earlier one wrote: with a new major version only, because a node
can go back by one minor version."""
_CLUSTER_VERSION = "cluster_version"
_LAYOUT = "layout"
_LEAVE_S = 1.0
_READINESS_S = 0.5
_PRUNE_FIRST_S = 5.0
_PRUNE_S = 3600.0
_GONE = "this node is no longer a member; with an empty data directory it joins as a new one"
_OPEN_HINTS: Final[dict[type[LedgerError], str]] = {
    LedgerLockedError: "stop the other process or give another --data-dir",
    LedgerDamagedError: "move the data directory away: the node then joins as a new one",
    LedgerNewerError: "start this node with the newer version of Hyperscale",
    LedgerError: "check that the disk has free space and that the data directory can be written",
}

_log = logging.getLogger("hyperscale.ledger")


class LedgerService(NodeService):
    """Opens the store of a node, joins a ledger and runs it."""

    def __init__(
        self,
        member: MemberNode,
        handlers: Handlers,
        make_machine: Callable[[str, int], JobMachine | GlobalJobMachine] = JobMachine,
    ) -> None:
        """`make_machine` makes the machine of a group, by scope and number."""
        config = member.config
        self._make_machine = make_machine
        directory = Path(config.node.data_dir)
        self.on_ledger: list[Callable[[Ledger], None]] = []
        """Called once the node has a ledger, before the ledger does anything."""
        self.peers = TierPeers(
            member.server, member, member.server.local.role, _is_fit, _announced_version
        )
        server = member.server
        server.hooks = replace(server.hooks, check_version=self._check_version)
        self._member = member
        self._store = open_store(directory / "ledger")
        self._identity = LedgerIdentity(self._store)
        self._cluster_version = _stored_version(self._store)
        if (outdated := _outdated(self._cluster_version)) is not None:
            self._store.close()
            raise outdated
        if self._identity.ledger and self._identity.scope != config.node.datacenter:
            self._store.close()
            raise InputError(
                f"{directory} belongs to the ledger of datacenter '{self._identity.scope}', and "
                f"this node is of '{config.node.datacenter}'",
                hint=f"start it with --datacenter {self._identity.scope}, or give another "
                "--data-dir",
            )
        self._open_ledger: OpenLedger | None = None
        self._maintenance: MaintenanceDriver | None = None
        self._is_gone_logged = False
        self._leader_heard_s: float | None = None
        """When this node last had a leader of group 0; None before the first."""
        self._unready: tuple[str, ...] = ()
        seeds = config.discovery.seeds or config.discovery.dns
        self._join = LedgerJoin(
            self._identity,
            self.peers,
            name=member.node_id,
            key=member.server.local.key,
            domain=config.node.failure_domain or member.node_id,
            scope=config.node.datacenter,
            founders=config.ledger.founders or (0 if seeds else 1),
            approves=config.ledger.admit == "approve",
            ledger=lambda: self.ledger,
        )
        self._join.answer(handlers)
        answer_peers(handlers, lambda: self._open_ledger)
        operators = OperatorRequests(self.require, lambda job: parse_job_id(job).group)
        operators.answer(handlers)
        self.list_events = operators.list_events
        BackupRequests(self.require).answer(handlers)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger; None while this node has not joined one."""
        return None if self._open_ledger is None else self._open_ledger.ledger

    def require(self) -> OpenLedger:
        """Return the open ledger; raise `RunError` while this node has none."""
        if self._open_ledger is None:
            raise RunError(
                "this node has not joined its ledger yet",
                hint="a new tier starts when as many managers are up as it is founded with",
            )
        return self._open_ledger

    # -- NodeService --------------------------------------------------------------------------

    async def start(self) -> None:
        self._member.tasks.spawn_every(_READINESS_S, self._watch_readiness, "ledger-readiness")
        if self._identity.ledger:
            self._open()
        else:
            self._member.tasks.spawn(self._join_ledger(), "ledger-join")

    async def _join_ledger(self) -> None:
        await self._join.found_or_join()
        self._open()
        self._member.announce()

    def _open(self) -> None:
        config, tasks = self._member.config, self._member.tasks
        core = LedgerCore(
            self._identity.number,
            self._store,
            make_machine=lambda group: self._make_machine(self._identity.scope, group),
            seed=secrets.randbits(63),
            limits=LedgerLimits(
                snapshot_entries=config.ledger.snapshot_entries,
                trailing_entries=config.ledger.trailing_entries,
            ),
            images=self._store.load(),
            followed=int(dict(self._store.meta()).get(FOLLOWED, b"0")),
            first_tick_at_s=asyncio.get_running_loop().time(),
        )
        driver = LedgerDriver(self._identity.ledger, core, self._store, self.peers, tasks)
        ledger = Ledger(driver)
        found = OpenLedger(ledger)
        self._open_ledger = found
        ledger.hooks.topology.append(self._member.announce)
        ledger.hooks.topology.append(self._warn_if_gone)
        ledger.hooks.topology.append(self._follow_version)
        self._warn_if_gone()
        for hook in self.on_ledger:
            hook(ledger)
        is_gate = self._member.server.local.role is Role.GATE
        voters = VOTERS_OF_GATES if is_gate else VOTERS
        timing = MaintenanceTiming(upgrade_hold_s=config.ledger.upgrade_hold_s)
        self._maintenance = MaintenanceDriver(found, _live_jobs, voters=voters, timing=timing)
        driver.start()
        driver.feed(self._join.opening_event())
        found.history.start()
        self._maintenance.start()
        tasks.spawn(self._prune_history(), "ledger-prune")

    def _warn_if_gone(self) -> None:
        """Warn, once per process, that this node was removed from its ledger."""
        assert self.ledger is not None
        own = self.ledger.topology.nodes.get(self._identity.number)
        if own is not None and own.state is NodeState.GONE and not self._is_gone_logged:
            self._is_gone_logged = True
            _log.warning("ledger.gone", extra={"number": own.number, "detail": _GONE})

    def _follow_version(self) -> None:
        """Keep the cluster version on disk, and end a node that is too old for it."""
        assert self.ledger is not None
        version = self.ledger.version
        if version <= self._cluster_version:
            return
        _log.info("ledger.version", extra={"version": str(version)})
        self._cluster_version = version
        self._store.put_meta(_CLUSTER_VERSION, str(version).encode())
        if (outdated := _outdated(version)) is not None:
            raise outdated

    def _check_version(self, peer: Introduction) -> None:
        """Refuse a node of this tier whose version does not fit the cluster version."""
        role = self._member.server.local.role
        tier = DATACENTER_ROLES if role in DATACENTER_ROLES else frozenset({role})
        if self._cluster_version == OLDEST or peer.role not in tier:
            return  # unknown as yet, or a peer of another tier
        cluster = self._cluster_version
        if (problem := version_problem(parse_version(peer.version), cluster)) is not None:
            raise PeerProtocolError(
                f"{peer.role} {peer.node_id}: {problem}",
                RefusalReason.VERSION,
                hint=f"start it with version {cluster}, or with the minor version after it",
            )

    async def _prune_history(self) -> None:
        """Delete history rows that are older than they are to be kept."""
        kept_ms = int(self._member.config.ledger.history_days * 24 * 3600 * 1000)
        await asyncio.sleep(_PRUNE_FIRST_S)  # entries applied again after a start bring rows again
        while True:
            self._store.prune_history(wall_ms() - kept_ms)
            await asyncio.sleep(_PRUNE_S)

    async def leave(self) -> None:
        """Transfer the leaderships of this node, so that no group has to wait for an election."""
        ledger = self.ledger
        if ledger is None:
            return
        core = ledger.core
        is_following = asyncio.Event()
        ledger.hooks.following.append(lambda _group: is_following.set())
        for group in tuple(core.leading):
            others = [
                number
                for number in core.raft.seats(group)[0]
                if number != core.number and self.peers.is_fit(ledger.driver.name_of(number))
            ]
            if others:
                ledger.driver.feed(LeadershipTransferRequested(group, others[0]))
        with suppress(TimeoutError):  # the groups elect a leader once this node is gone
            async with asyncio.timeout(_LEAVE_S):
                while core.leading and len(ledger.topology.nodes) > 1:
                    is_following.clear()
                    await is_following.wait()

    async def stop(self) -> None:
        if self._maintenance is not None:
            self._maintenance.stop()
        if self._open_ledger is not None:
            await self._open_ledger.driver.close()
        else:
            self._store.close()

    def ended(self) -> None:
        if self.ledger is not None:
            self.ledger.core.end()

    def why_not_ready(self) -> tuple[str, ...]:
        ledger = self.ledger
        if ledger is None:
            return ("has not joined its ledger",)
        own = ledger.topology.nodes.get(self._identity.number)
        if own is not None and own.state is NodeState.GONE:
            return ("was removed from its ledger",)
        if own is not None and own.state is NodeState.PENDING:
            return (f"waits for approval: hyperscale ledger members approve {own.name}",)
        if not any(ledger.topology.owners):
            return ("its ledger has no groups yet",)
        heard_s = self._hear_leader()
        if heard_s is None or asyncio.get_running_loop().time() - heard_s > LEADERLESS_S:
            return ("the management group has no leader that this node reaches",)
        return ()

    def _hear_leader(self) -> float | None:
        """Return when this node last had a leader of group 0, or led it."""
        assert self.ledger is not None
        core, now_s = self.ledger.core, asyncio.get_running_loop().time()
        if core.is_leader(MANAGEMENT):
            self._leader_heard_s = now_s
        elif core.leader_of(MANAGEMENT):
            # A learner never campaigns, so it does not forget a leader that fell silent.
            self._leader_heard_s = now_s - core.raft.quiet_ticks(MANAGEMENT) * TICK_S
        return self._leader_heard_s

    def _watch_readiness(self) -> None:
        """Announce that this node became ready or is ready no more."""
        reasons = self.why_not_ready()
        if reasons != self._unready:
            self._unready = reasons
            self._member.announce()
            if reasons and self._leader_heard_s is not None:  # not while the node starts
                _log.warning("ledger.not_ready", extra={"reasons": list(reasons)})

    def collect(self) -> list[Family]:
        return [] if self.ledger is None else collect(self.ledger)


def open_store(directory: Path) -> LedgerStore:
    """Open the store of a data directory; refuse one that another version wrote."""
    try:
        store = LedgerStore(directory)
    except LedgerError as error:
        hint = next((hint for kind, hint in _OPEN_HINTS.items() if isinstance(error, kind)), "")
        raise InputError(str(error), hint=hint) from error
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror or error}") from error
    meta = dict(store.meta())
    if not meta and not store.load():
        store.put_meta(_LAYOUT, str(LAYOUT_VERSION).encode())
    elif (layout := meta.get(_LAYOUT, b"1").decode()) != str(LAYOUT_VERSION):
        store.close()
        raise InputError(
            f"{directory} has layout {layout} of another version of Hyperscale; this version "
            f"reads layout {LAYOUT_VERSION}",
            hint="run the version that wrote it, or give an empty --data-dir",
        )
    return store


def _stored_version(store: LedgerStore) -> Version:
    """Return the cluster version that a node knew last."""
    text = dict(store.meta()).get(_CLUSTER_VERSION, b"").decode()
    return parse_version(text) or OLDEST


def _outdated(cluster: Version) -> InputError | None:
    """Return the error of a node that is older than its cluster version; None if it is not."""
    if cluster <= CURRENT:
        return None
    return InputError(
        f"this node runs version {CURRENT} of Hyperscale, and its cluster version has risen to "
        f"{cluster}: older nodes are refused",
        hint=f"start it with version {cluster}",
    )


def _live_jobs(machine: Machine) -> int:
    """Return how many jobs of a group have not ended."""
    assert isinstance(machine, JobMachine | GlobalJobMachine)
    return sum(1 for _ in machine.jobs())


def _announced_version(member: Member) -> str:
    metadata = metadata_of(member.metadata)
    return "" if metadata is None else metadata.version


_MAY_LEAD = frozenset({AnnouncedLoad.HEALTHY, AnnouncedLoad.BUSY})


def _is_fit(member: Member) -> bool:
    """Return True if a node may lead: it is neither overloaded nor leaving."""
    metadata = metadata_of(member.metadata)
    return metadata is None or (metadata.is_ready and metadata.overload in _MAY_LEAD)
