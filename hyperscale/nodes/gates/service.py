"""The service that makes a member a gate: owners of global jobs, datacenters, answers to clients.

It starts once the gate has joined the ledger of its tier; until then requests are refused.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from hyperscale.client import messages as client_messages
from hyperscale.gates import messages
from hyperscale.gates.committed.events import GlobalJobSubmitted
from hyperscale.jobs.messages import FetchBlob, FetchSecrets
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.server.ledger import Ledger, OutcomeUnknownError, UnavailableError
from hyperscale.ledger.topology import NodeState
from hyperscale.nodes.gates.client_requests import GateRequests
from hyperscale.nodes.gates.datacenter_links import DatacenterLinks
from hyperscale.nodes.gates.datacenter_registry import DatacenterRegistry
from hyperscale.nodes.gates.datacenter_requests import DatacenterRequests
from hyperscale.nodes.gates.gate_metrics import GateState, gate_metrics
from hyperscale.nodes.gates.led_jobs import GateJobs
from hyperscale.nodes.gates.owners import REPORTS, GlobalOwners
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.job_ownership import check_owner, without_output_of_others
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.nodes.jobs.job_secrets import JobSecrets
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.nodes.reports.reporters import NodeReporters
from hyperscale.nodes.reports.results import ResultReports
from hyperscale.nodes.reports.streams import JobStreams
from hyperscale.telemetry.metrics import Family
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role

_log = logging.getLogger("hyperscale.gates")


class _Parts(NamedTuple):
    """What exists once the gate has a ledger."""

    owners: GlobalOwners
    requests: GateRequests
    registry: DatacenterRegistry
    relay: DatacenterRequests


class GatesService(NodeService):
    """The global jobs of one gate; requests are refused until it has a ledger."""

    def __init__(self, member: MemberNode, handlers: Handlers, ledger: LedgerService) -> None:
        self._member = member
        self._ledger_service = ledger
        self._peers = ledger.peers
        self._parts: _Parts | None = None
        self._streams: JobStreams | None = None
        self._reporters = NodeReporters(member.config.reporting.config, Role.GATE)
        self._warnings: tuple[str, ...] = ()
        self.datacenters = DatacenterLinks(
            member, on_seen=self._datacenters_seen, on_registered=self._registered
        )
        self._secrets = JobSecrets(Path(member.config.node.data_dir) / "secrets", ledger.peers)
        self._bundles = Bundles(
            Path(member.config.node.data_dir) / "blobs",
            ledger.peers,
            self._bundles_in_use,
            kept=member.config.bundles.keep,
        )
        ledger.on_ledger.append(self._begin)
        handlers.add(messages.RegisterDatacenter, self.datacenters.register)
        handlers.add(messages.ListDatacenters, self._listed)
        handlers.add(client_messages.PutBlob, self._bundles.put)
        handlers.add(client_messages.KeepBlob, self._bundles.keep)
        handlers.add(FetchBlob, self._bundles.fetch)
        handlers.add(client_messages.KeepSecrets, self._secrets.keep)
        handlers.add(FetchSecrets, self._secrets.fetch)
        for report in REPORTS:
            handlers.add(report, self._request(lambda parts, *call: parts.owners.reported(*call)))
        for message, handle in _OF_CLIENTS.items():
            handlers.add(message, self._request(handle))
        handlers.add(client_messages.WatchJob, self._watch)
        handlers.add(client_messages.GetJobRecord, self._record)

    def _begin(self, ledger: Ledger) -> None:
        member, peers = self._member, self._peers
        registry = DatacenterRegistry(ledger, self.datacenters)
        owners = GlobalOwners(
            ledger,
            peers,
            self.datacenters,
            self._bundles,
            member.tasks,
            node=member.node_id,
            secrets=self._secrets,
            removed=registry.removed,
        )
        events = self._ledger_service.list_events
        routing = JobRouting(member.node_id, ledger, peers, Role.GATE, events)
        requests = GateRequests(
            routing,
            owners,
            datacenters=self.datacenters,
            bundles=self._bundles,
            secrets=self._secrets,
            reporters=self._reporters,
            tasks=member.tasks,
        )
        led = GateJobs(owners, routing)
        ResultReports(self._reporters, led, member.tasks)
        self._streams = JobStreams(
            member.config.reporting, led, member.tasks, datacenter="", loss="datacenter_lost"
        )
        self._parts = _Parts(
            owners, requests, registry, DatacenterRequests(self.datacenters, ledger)
        )
        ledger.hooks.topology.append(self._follow_registry)
        ledger.hooks.applied.append(self._applied)
        self._follow_registry()
        member.tasks.spawn(self._secrets.follow_always(owners.secrets), "gates:secrets")

    def _follow_registry(self) -> None:
        """Follow the committed datacenters; commit those that registered before there was a
        ledger."""
        assert self._parts is not None
        registry = self._parts.registry
        self._warn_about_regions()
        self.datacenters.committed(registry.entries())
        self._parts.owners.datacenters_removed()
        for name, managers in self.datacenters.registered().items():
            self._registered(name, managers)

    def _listed(
        self, call: InboundCall, request: messages.ListDatacenters
    ) -> messages.ListDatacentersReply:
        source = self.datacenters if self._parts is None else self._parts.registry
        return source.listed(call, request)

    def _warn_about_regions(self) -> None:
        assert self._parts is not None
        warnings = tuple(self._parts.registry.warnings())
        if warnings != self._warnings:
            self._warnings = warnings
            for warning in warnings:
                _log.warning("gates.in_one_region: %s", warning)

    def _registered(self, name: str, managers: tuple[str, ...]) -> None:
        if self._parts is not None:
            registering = self._parts.registry.register(name, managers)
            self._member.tasks.spawn_request(registering, f"datacenter:{name}")

    def _applied(self, entry: AppliedEntry) -> None:
        event = entry.event
        if isinstance(event, GlobalJobSubmitted) and event.options.job.secrets:
            self._secrets.note_submission(event.options.job.secrets)

    def _datacenters_seen(self) -> None:
        if self._parts is not None:
            self._parts.owners.datacenters_seen()

    def _bundles_in_use(self) -> set[str]:
        if self._parts is None:
            return set()
        machines = self._parts.owners.machines()
        return {job.bundle for machine in machines for job in machine.jobs()}

    async def stop(self) -> None:
        if self._streams is not None:
            self._streams.stop()
        if self._parts is not None:
            self._parts.owners.stop()
        self.datacenters.stop()
        await self._bundles.close()

    def collect(self) -> list[Family]:
        owned = [] if self._parts is None else self._parts.owners.owned()
        return gate_metrics(self._state(), self.datacenters.views(), owned)

    def _state(self) -> GateState:
        ledger = self._ledger_service.ledger
        if ledger is None or self._ledger_service.why_not_ready():
            return GateState.SYNCING
        own = ledger.topology.nodes.get(ledger.core.number)
        is_draining = own is not None and own.state is NodeState.DRAINING
        return GateState.DRAINING if is_draining else GateState.ACTIVE

    # -- handlers -------------------------------------------------------------------------

    def _request(self, handle: Callable[..., Any]) -> Callable[[InboundCall, Any], Any]:
        async def handler(call: InboundCall, message: Any) -> Any:
            parts = self._ready()
            try:
                await check_owner(call, message, parts.requests.get_job)
                return await handle(parts, call, message)
            except (UnavailableError, OutcomeUnknownError) as error:
                raise RemoteError(
                    error.message, code=RemoteErrorCode.UNAVAILABLE, hint=error.hint
                ) from error

        return handler

    async def _watch(
        self, call: InboundCall, request: client_messages.WatchJob
    ) -> AsyncGenerator[Struct, None]:
        requests = self._ready().requests
        updates = requests.watch(call, request)
        async for item in without_output_of_others(call, request, requests.get_job, updates):
            yield item

    async def _record(
        self, call: InboundCall, request: client_messages.GetJobRecord
    ) -> AsyncGenerator[Struct, None]:
        requests = self._ready().requests
        await check_owner(call, request, requests.get_job)
        async for item in requests.record(call, request):
            yield item

    def _ready(self) -> _Parts:
        if self._parts is None:
            raise RemoteError(
                "this gate has not joined its ledger yet", code=RemoteErrorCode.UNAVAILABLE
            )
        return self._parts


_OF_CLIENTS: dict[type[Struct], Callable[..., Any]] = {
    client_messages.SubmitJob: lambda parts, *call: parts.requests.submit(*call),
    client_messages.CancelJob: lambda parts, *call: parts.requests.cancel(*call),
    client_messages.ChangeLoad: lambda parts, *call: parts.requests.change(*call),
    client_messages.GetJob: lambda parts, *call: parts.requests.get_job(*call),
    client_messages.ListJobs: lambda parts, *call: parts.requests.list_jobs(*call),
    messages.RouteJob: lambda parts, *call: parts.requests.route(*call),
    messages.AskDatacenter: lambda parts, *call: parts.relay.ask(*call),
    client_messages.ListWorkers: lambda parts, *call: parts.relay.list_workers(*call),
    messages.ChangeDatacenter: lambda parts, *call: parts.registry.change(*call),
}
