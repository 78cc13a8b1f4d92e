"""The registry of datacenters in the management group of the gates: read, registered, changed."""

import logging

from msgspec.structs import replace

from hyperscale.errors import HyperscaleError
from hyperscale.gates.datacenters.monitor import Reachability
from hyperscale.gates.datacenters.registry import (
    DATACENTER_MOVES,
    DatacenterEntry,
    DatacenterState,
    entries_of,
    moved,
    region_warning,
    registered,
)
from hyperscale.gates.messages import (
    ChangeDatacenter,
    ChangeDatacenterReply,
    ListDatacenters,
    ListDatacentersReply,
)
from hyperscale.ledger.audit import audit_of
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.topology import RegistryChanged
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.wire.calls import InboundCall

_TRIES = 5

_log = logging.getLogger("hyperscale.gates")


class DatacenterRegistry:
    """The committed datacenters of one tier of gates, as one gate reads and changes them."""

    def __init__(self, ledger: Ledger, datacenters: DatacenterLinks) -> None:
        self._ledger = ledger
        self._datacenters = datacenters
        self._proposing: set[str] = set()

    def entries(self) -> dict[str, DatacenterEntry]:
        return entries_of(self._ledger.topology.registry)

    def removed(self) -> list[str]:
        entries = self.entries().items()
        return [name for name, each in entries if each.state is DatacenterState.REMOVED]

    def warnings(self) -> list[str]:
        """Return what is wrong with where the gates are."""
        topology = self._ledger.topology
        regions = [topology.nodes[number].domain for number in topology.active()]
        return [text] if (text := region_warning(regions)) else []

    def listed(self, call: InboundCall, request: ListDatacenters) -> ListDatacentersReply:
        """Return the datacenters as this gate sees them."""
        return replace(self._datacenters.listed(call, request), warnings=self.warnings())

    async def register(self, name: str, managers: tuple[str, ...]) -> None:
        """Commit a datacenter that is new, or whose managers have changed."""
        if name in self._proposing or not self._ledger.topology.groups:
            return
        change = registered(self._ledger.topology.registry, name, managers)
        if change is None:
            return
        self._proposing.add(name)
        try:
            await self._ledger.decide(RegistryChanged(name, change.before, change.after))
        except HyperscaleError as error:  # the manager registers again
            _log.info("datacenter.not_committed: %s", error, extra={"datacenter": name})
        finally:
            self._proposing.discard(name)

    async def change(self, call: InboundCall, request: ChangeDatacenter) -> ChangeDatacenterReply:
        """Drain, resume or remove a datacenter for an operator."""
        name, state = request.datacenter, request.state
        for _ in range(_TRIES):
            entry = self.entries().get(name)
            if entry is None:
                known = ", ".join(self.entries()) or "none yet"
                return ChangeDatacenterReply(
                    refused=f"no datacenter is called {name!r}",
                    hint=f"known datacenters: {known}",
                    is_unknown=True,
                )
            if entry.state is state:
                return ChangeDatacenterReply()
            if (refusal := self._refusal(request, entry)) is not None:
                return refusal
            change = moved(self._ledger.topology.registry, name, state)
            if change is None:
                return ChangeDatacenterReply()
            reply = await self._ledger.decide(
                RegistryChanged(name, change.before, change.after),
                audit=audit_of(call, "datacenter", name, detail=state.value),
            )
            if not reply.refused:
                extra = {"datacenter": name, "state": state.value}
                _log.info("datacenter.state_changed", extra=extra)
                return ChangeDatacenterReply()
        return ChangeDatacenterReply(refused=f"{name} is being changed by others: try again")

    def _refusal(
        self, request: ChangeDatacenter, entry: DatacenterEntry
    ) -> ChangeDatacenterReply | None:
        name, state = request.datacenter, request.state
        if state not in DATACENTER_MOVES[entry.state]:
            return ChangeDatacenterReply(
                refused=f"{name} was removed and cannot be {state}",
                hint=f"'hyperscale datacenters resume {name}' takes it back first",
            )
        view = self._datacenters.views().get(name)
        is_reached = view is not None and view.reachability is Reachability.REACHABLE
        is_active = entry.state is DatacenterState.ACTIVE
        if state is DatacenterState.REMOVED and is_reached and is_active and not request.is_forced:
            return ChangeDatacenterReply(
                refused=f"{name} answers and takes jobs: jobs that run there would be given up",
                hint=f"'hyperscale datacenters drain {name}' first, or give --force",
            )
        return None
