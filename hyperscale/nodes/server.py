"""Starting and stopping a node: in a task of its own for programs, or as a whole process.

The same life in both: open, run until told to stop (or until something that must not happen),
say farewell within `node.stop_s`, close.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hyperscale.config.loading import NodeSettings, node_config
from hyperscale.config.schema import NodeConfig, NodeRole
from hyperscale.errors import InputError, InvariantError
from hyperscale.membership.events import Member
from hyperscale.nodes.identity import data_directory, node_id_of
from hyperscale.nodes.logs import Logging
from hyperscale.nodes.member import Duties, MemberNode, open_member

_GC_THRESHOLDS = (20_000, 20, 20)

_log = logging.getLogger("hyperscale.nodes")


def as_config(role: NodeRole, given: NodeSettings) -> NodeConfig:
    """A complete configuration; the node has its name and its directory from here on."""
    if given is not None and not isinstance(given, NodeConfig | Mapping):
        raise InputError(
            f"settings: {given!r} is no configuration", hint='as {"listen": {"port": 9000}}'
        )
    config = given if isinstance(given, NodeConfig) else node_config(role, given)
    name = node_id_of(config)
    directory = data_directory(config, name)
    named = msgspec.structs.replace(config.node, id=name, data_dir=str(directory))
    return msgspec.structs.replace(config, node=named)


async def live(
    config: NodeConfig,
    duties: Duties,
    stop: asyncio.Event,
    on_open: Callable[[MemberNode], None],
) -> None:
    """One node from its first socket to its last."""
    async with open_member(config, duties) as member:
        _log.info(
            "node.started",
            extra={"address": member.address, "http": member.http_address},
        )
        on_open(member)
        await _until(stop, member)
        _log.info("node.leaving")
        try:
            async with asyncio.timeout(config.node.stop_s):
                await member.leave()
        except TimeoutError:
            _log.warning("farewell.cut_short", extra={"stop_s": config.node.stop_s})
    _log.info("node.stopped")


async def _until(stop: asyncio.Event, member: MemberNode) -> None:
    """Waits for the stop; raises what made the node fail."""
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    either: list[asyncio.Future[Any]] = [stopping, member.tasks.failed]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if member.tasks.failed.done():
        member.tasks.failed.result()


class NodeServer:
    """A node inside another program's event loop. `ManagerServer` and `WorkerServer` are these,
    each with its own duties and nothing else of its own."""

    def __init__(self, config: NodeConfig, duties: Duties) -> None:
        self.config = config
        self._duties = duties
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._member: MemberNode | None = None

    @property
    def node_id(self) -> str:
        return self.config.node.id

    @property
    def member(self) -> MemberNode:
        """The running node."""
        if self._member is None:
            raise InvariantError("the node is not started", hint="await start() first")
        return self._member

    @property
    def address(self) -> str:
        """`host:port` at which others reach this node."""
        return self.member.address

    @property
    def http_address(self) -> str:
        """`host:port` of `/metrics`, `/healthz` and `/readyz`."""
        return self.member.http_address

    def members(self) -> list[Member]:
        """Every member this node knows, itself first."""
        return self.member.members()

    async def start(self, timeout_s: float | None = None) -> None:
        """Returns when the node listens; with a timeout, when it is ready, or raises."""
        if self._task is not None:
            raise InvariantError("a node is started once", hint="make another for another life")
        opened: asyncio.Future[MemberNode] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(
            live(self.config, self._duties, self._stop, opened.set_result),
            name=f"node:{self.config.node.id}",
        )
        either: list[asyncio.Future[Any]] = [self._task, opened]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await self._task  # raises why it did not open
            return
        self._member = opened.result()
        if timeout_s is not None:
            try:
                await self.wait_ready(timeout_s)
            except BaseException:
                await self.graceful_shutdown()
                raise

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Returns when the node should get work; raises `RunError` if it is not so in time."""
        await self.member.wait_ready(timeout_s)

    async def graceful_shutdown(self) -> None:
        """Says farewell and leaves nothing behind; raises what made the node fail, if it did."""
        self._stop.set()
        if self._task is not None:
            await self._task


def run_process(config: NodeConfig, duties: Duties, announce: Callable[[MemberNode], None]) -> None:
    """A node as this process's only purpose, until SIGTERM or SIGINT; a second one hurries it."""
    import uvloop  # noqa: PLC0415  only whoever runs a node needs it

    # A manager of a thousand workers makes much and keeps much, hardly any of it in cycles: to
    # look at all of it as often as Python does by default takes a tenth of its time.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    bound = {"node": config.node.id, "role": config.role, "cluster": config.node.cluster}
    with (
        Logging(sys.stderr, config.log.level, bound),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_run_until_signal(config, duties, announce))


async def _run_until_signal(
    config: NodeConfig, duties: Duties, announce: Callable[[MemberNode], None]
) -> None:
    stop = asyncio.Event()
    node = asyncio.create_task(live(config, duties, stop, announce), name="node")

    def on_signal(name: str) -> None:
        if stop.is_set():
            node.cancel()
        _log.info("signal.received", extra={"signal": name})
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        await node
    except asyncio.CancelledError:
        _log.warning("node.hurried")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
