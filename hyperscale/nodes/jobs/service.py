"""The service that makes a member a manager: job leaders, the allocator, answers to clients.

It starts once the node has joined its ledger; until then requests are refused as unavailable.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from hyperscale.client import messages as client_messages
from hyperscale.health.signals import RoutingDecision
from hyperscale.jobs import messages
from hyperscale.jobs.allocator.core import Allocator
from hyperscale.jobs.allocator.events import CoresRequested
from hyperscale.jobs.committed.events import JobSubmitted
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.server.ledger import Ledger, OutcomeUnknownError, UnavailableError
from hyperscale.membership.events import MemberChanged, MemberDied
from hyperscale.nodes.jobs.allocator_driver import AllocatorDriver
from hyperscale.nodes.jobs.bundles import Bundles
from hyperscale.nodes.jobs.client_commands import ClientCommands
from hyperscale.nodes.jobs.client_queries import ClientQueries
from hyperscale.nodes.jobs.job_leaders import JobLeaders
from hyperscale.nodes.jobs.job_metrics import JobCounts, allocator_metrics
from hyperscale.nodes.jobs.job_ownership import check_owner, without_output_of_others
from hyperscale.nodes.jobs.job_routing import JobRouting
from hyperscale.nodes.jobs.job_secrets import JobSecrets
from hyperscale.nodes.jobs.led_jobs import ManagerJobs
from hyperscale.nodes.ledger_service import LedgerService
from hyperscale.nodes.member import MemberNode, NodeService
from hyperscale.nodes.messages import routing_of
from hyperscale.nodes.reports.reporters import NodeReporters
from hyperscale.nodes.reports.results import ResultReports
from hyperscale.nodes.reports.streams import JobStreams
from hyperscale.telemetry.metrics import Family, by, gauge
from hyperscale.wire.calls import InboundCall
from hyperscale.wire.errors import RemoteError, RemoteErrorCode
from hyperscale.wire.handlers import Handlers
from hyperscale.wire.roles import Role


class _Parts(NamedTuple):
    """What exists once the node has a ledger."""

    leaders: JobLeaders
    allocator: AllocatorDriver
    queries: ClientQueries
    commands: ClientCommands


_Handle = Callable[[_Parts, InboundCall, Any], Any]


class JobsService(NodeService):
    """The jobs of one manager; requests are refused until the node has a ledger."""

    def __init__(self, member: MemberNode, handlers: Handlers, ledger: LedgerService) -> None:
        queue = member.config.queue
        self._member = member
        self._peers = ledger.peers
        self._list_events = ledger.list_events
        self._allocator = Allocator(queue_max=queue.max, age_s=queue.age_s)
        self._counts = JobCounts()
        self._parts: _Parts | None = None
        self._streams: JobStreams | None = None
        directory = Path(member.config.node.data_dir)
        self._bundles = Bundles(
            directory / "blobs",
            ledger.peers,
            self._bundles_in_use,
            kept=member.config.bundles.keep,
        )
        self._secrets = JobSecrets(directory / "secrets", ledger.peers)
        self._reporters = NodeReporters(member.config.reporting.config, Role.MANAGER)
        ledger.on_ledger.append(self._begin)
        handlers.add(client_messages.PutBlob, self._bundles.put)
        handlers.add(client_messages.KeepBlob, self._bundles.keep)
        handlers.add(messages.FetchBlob, self._bundles.fetch)
        handlers.add(client_messages.KeepSecrets, self._secrets.keep)
        handlers.add(messages.FetchSecrets, self._secrets.fetch)
        for message, handle in _OF_NODES.items():
            handlers.add(message, self._at_once(handle))
        for message, handle in _OF_CLIENTS.items():
            handlers.add(message, self._request(handle))
        handlers.add(client_messages.WatchJob, self._watch)
        handlers.add(client_messages.GetJobRecord, self._record)

    def _begin(self, ledger: Ledger) -> None:
        member, peers = self._member, self._peers
        leaders = JobLeaders(member, ledger, peers, self._allocator)
        routing = JobRouting(member.node_id, ledger, peers, Role.MANAGER, self._list_events)
        allocator = leaders.allocator
        queries = ClientQueries(member, routing, leaders)
        commands = ClientCommands(
            member,
            routing,
            queries,
            allocator,
            bundles=self._bundles,
            secrets=self._secrets,
            reporters=self._reporters,
        )
        led = ManagerJobs(leaders, routing)
        ResultReports(self._reporters, led, member.tasks)
        self._streams = JobStreams(
            member.config.reporting,
            led,
            member.tasks,
            datacenter=member.config.node.datacenter,
            loss="worker_lost",
        )
        self._parts = _Parts(leaders, allocator, queries, commands)
        ledger.hooks.applied.append(self._applied)
        member.tasks.spawn(self._secrets.follow_always(leaders.secrets), "jobs:secrets")

    @property
    def commands(self) -> ClientCommands:
        """Commands of clients; raise `RemoteError` until the node has a ledger."""
        return self._ready().commands

    @property
    def queue_depth(self) -> int:
        """How many workflows wait for cores, if this node is the allocator."""
        return self._allocator.waiting

    @property
    def leaders(self) -> JobLeaders | None:
        """The job leaders of this node, once it has a ledger."""
        return None if self._parts is None else self._parts.leaders

    def _bundles_in_use(self) -> set[str]:
        return set() if self._parts is None else self._parts.leaders.bundles()

    def _applied(self, entry: AppliedEntry) -> None:
        parts = self._parts
        if parts is not None and (led := parts.leaders.led_machine(entry.group)) is not None:
            self._counts.note(entry, led)
        if isinstance(entry.event, JobSubmitted) and entry.event.options.secrets:
            self._secrets.note_submission(entry.event.options.secrets)

    async def stop(self) -> None:
        if self._parts is not None:
            self._parts.leaders.stop()
        if self._streams is not None:
            self._streams.stop()
        await self._bundles.close()

    def changed(self, change: MemberChanged | MemberDied) -> None:
        if self._parts is not None:
            self._parts.leaders.member_changed(change)

    def collect(self) -> list[Family]:
        routed = Counter(routing_of(member) for member in self._member.members())
        families = [
            gauge(
                "hyperscale_workers",
                "Workers by routing decision",
                *by("decision", routed, RoutingDecision),
            )
        ]
        if self._parts is not None:
            queue_max = self._member.config.queue.max
            families += self._counts.collect(self._parts.leaders.led_jobs())
            families += allocator_metrics(self._allocator, queue_max=queue_max)
        return families

    # -- handlers -------------------------------------------------------------------------

    def _at_once(self, handle: _Handle) -> Callable[[InboundCall, Any], Any]:
        """Return a handler for messages of nodes. Senders repeat one-way messages, so these may be
        dropped until there is a ledger."""

        def handler(call: InboundCall, message: Any) -> Any:
            if self._parts is None and not call.wants_answer:
                return None
            return handle(self._ready(), call, message)

        return handler

    def _request(self, handle: _Handle) -> Callable[[InboundCall, Any], Any]:
        """Return a handler for requests of clients and operators."""

        async def handler(call: InboundCall, message: Any) -> Any:
            parts = self._ready()
            try:
                await check_owner(call, message, parts.queries.get_job)
                return await handle(parts, call, message)
            except (UnavailableError, OutcomeUnknownError) as error:
                raise RemoteError(
                    error.message, code=RemoteErrorCode.UNAVAILABLE, hint=error.hint
                ) from error

        return handler

    async def _watch(
        self, call: InboundCall, request: client_messages.WatchJob
    ) -> AsyncGenerator[Struct, None]:
        queries = self._ready().queries
        updates = queries.watch(call, request)
        async for item in without_output_of_others(call, request, queries.get_job, updates):
            yield item

    async def _record(
        self, call: InboundCall, request: client_messages.GetJobRecord
    ) -> AsyncGenerator[Struct, None]:
        queries = self._ready().queries
        await check_owner(call, request, queries.get_job)
        async for item in queries.record(call, request):
            yield item

    def _ready(self) -> _Parts:
        if self._parts is None:
            raise RemoteError(
                "this manager has not joined its ledger yet", code=RemoteErrorCode.UNAVAILABLE
            )
        return self._parts


_OF_NODES: dict[type[Struct], _Handle] = {
    messages.AnnounceSetUp: lambda parts, *message: parts.leaders.announced(*message),
    messages.AnnounceReady: lambda parts, *message: parts.leaders.announced(*message),
    messages.AnnounceRows: lambda parts, *message: parts.leaders.announced(*message),
    messages.AnnouncePrepareFailed: lambda parts, *message: parts.leaders.announced(*message),
    messages.DeliverResult: lambda parts, *message: parts.leaders.announced(*message),
    messages.ForwardOutput: lambda parts, _, line: parts.leaders.output.add(line),
    messages.ReportProgress: lambda parts, *message: parts.leaders.progress(*message),
    messages.AnnounceCores: lambda parts, *message: parts.allocator.cores_announced(*message),
    messages.RequestCores: lambda parts, call, request: parts.allocator.feed(
        CoresRequested(request, call.reply)
    ),
    messages.ReleaseCores: lambda parts, _, release: parts.allocator.feed(release),
    messages.RequestCoresReply: lambda parts, *message: parts.allocator.grant_received(*message),
    client_messages.GetQueueRoom: lambda parts, _call, asked: parts.allocator.room_here(asked),
}
_OF_CLIENTS: dict[type[Struct], _Handle] = {
    client_messages.SubmitJob: lambda parts, *message: parts.commands.submit(*message),
    client_messages.CancelJob: lambda parts, *message: parts.commands.cancel(*message),
    client_messages.ChangeLoad: lambda parts, *message: parts.commands.change(*message),
    client_messages.GetJobOfKey: lambda parts, *message: parts.commands.job_of_key(*message),
    client_messages.GetJob: lambda parts, *message: parts.queries.get_job(*message),
    client_messages.ListJobs: lambda parts, *message: parts.queries.list_jobs(*message),
    client_messages.ListWorkers: lambda parts, *message: parts.queries.list_workers(*message),
    client_messages.DrainNode: lambda parts, *message: parts.commands.drain(*message),
}
