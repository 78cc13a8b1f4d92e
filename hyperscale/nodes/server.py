"""Start and stop a node: in a task of a program, or as a process of its own.

Both run it the same way: open it, wait for a stop or a failure, leave the cluster within
`node.stop_s`, close it.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hyperscale.config.loading import NodeSettings, node_config
from hyperscale.config.schema import NodeConfig, NodeRole
from hyperscale.errors import InputError, InvariantError
from hyperscale.membership.events import Member
from hyperscale.nodes.data_directory import data_directory, node_id_of
from hyperscale.nodes.member import MemberNode, RoleSpec, open_member
from hyperscale.nodes.process_secrets import protect_secrets
from hyperscale.telemetry.logs import log_to, printed_as_events

_GC_THRESHOLDS = (20_000, 20, 20)

_log = logging.getLogger("hyperscale.nodes")


def complete_config(role: NodeRole, given: NodeSettings) -> NodeConfig:
    """Return the configuration with the node's name and data directory filled in."""
    if given is not None and not isinstance(given, NodeConfig | Mapping):
        raise InputError(
            f"settings: {given!r} is no configuration", hint='as {"listen": {"port": 9000}}'
        )
    config = given if isinstance(given, NodeConfig) else node_config(role, given)
    name = node_id_of(config)
    directory = data_directory(config, name)
    named = msgspec.structs.replace(config.node, id=name, data_dir=str(directory))
    return msgspec.structs.replace(config, node=named)


async def run_node(
    config: NodeConfig,
    spec: RoleSpec,
    stop: asyncio.Event,
    on_open: Callable[[MemberNode], None],
) -> None:
    """Run one node until `stop` is set; raise the error that made it fail, if one did."""
    async with open_member(config, spec) as member:
        _log.info("node.started", extra={"address": member.address, "http": member.http_address})
        on_open(member)
        either: list[asyncio.Future[Any]] = [
            member.tasks.spawn(stop.wait(), "wait-for-stop"),
            member.tasks.failed,
        ]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if member.tasks.failed.done():
            member.tasks.failed.result()  # raises the error
        _log.info("node.leaving")
        try:
            async with asyncio.timeout(config.node.stop_s):
                await member.leave()
        except TimeoutError:
            _log.warning("farewell.cut_short", extra={"stop_s": config.node.stop_s})
    _log.info("node.stopped")


class NodeServer:
    """A node inside a program's event loop. `ManagerServer` and `WorkerServer` give it a role."""

    def __init__(self, config: NodeConfig, spec: RoleSpec) -> None:
        self.config = config
        self.spec = spec
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._member: MemberNode | None = None

    @property
    def node_id(self) -> str:
        """The name of this node in its cluster."""
        return self.config.node.id

    @property
    def member(self) -> MemberNode:
        """Return the running node; raise `InvariantError` before `start`."""
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

    @property
    def has_ended(self) -> bool:
        """Return True if the node was started and runs no more."""
        return self._task is not None and self._task.done()

    def members(self) -> list[Member]:
        """Return every member this node knows, itself first."""
        return self.member.members()

    async def start(self, timeout_s: float | None = None) -> None:
        """Wait until the node listens or, with a timeout, until it is ready; raise if it fails."""
        if self._task is not None:
            raise InvariantError("a node can be started only once", hint="make another one")
        opened: asyncio.Future[MemberNode] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(
            run_node(self.config, self.spec, self._stop, opened.set_result),
            name=f"node:{self.config.node.id}",
        )
        either: list[asyncio.Future[Any]] = [self._task, opened]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await self._task  # raises the reason why the node could not be opened
            return
        self._member = opened.result()
        if timeout_s is not None:
            try:
                await self.wait_ready(timeout_s)
            except BaseException:
                await self.graceful_shutdown()
                raise

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the node is ready; raise `RunError` after `timeout_s`."""
        await self.member.wait_ready(timeout_s)

    async def graceful_shutdown(self) -> None:
        """Leave the cluster and close everything; raise the error that made the node fail."""
        self._stop.set()
        if self._task is not None:
            await self._task


def run_process(config: NodeConfig, spec: RoleSpec, announce: Callable[[MemberNode], None]) -> None:
    """Run a node in this process until SIGTERM or SIGINT; a second signal skips the farewell."""
    import uvloop  # noqa: PLC0415  only needed to run a node

    protect_secrets()
    os.umask(0o077)  # databases, bundles and results are for this user alone

    # A manager of a thousand workers keeps many objects and makes hardly any cycles. Collections
    # at Python's default thresholds would take a tenth of its time.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    bound = {"node": config.node.id, "role": config.role, "cluster": config.node.cluster}
    with (
        log_to(sys.stderr, config.log.level, bound),
        printed_as_events(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_run_until_signal(config, spec, announce))


async def _run_until_signal(
    config: NodeConfig, spec: RoleSpec, announce: Callable[[MemberNode], None]
) -> None:
    stop = asyncio.Event()
    opened: list[MemberNode] = []

    def on_open(member: MemberNode) -> None:
        opened.append(member)
        announce(member)

    node = asyncio.create_task(run_node(config, spec, stop, on_open), name="node")

    def on_signal(name: str) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\n")  # the terminal shows ^C: no event on that line
        if stop.is_set():
            node.cancel()
        _log.info("signal.received", extra={"signal": name})
        stop.set()

    def on_hangup() -> None:
        """Read secrets and certificates again; the configuration stays as it was at the start."""
        _log.info("signal.received", extra={"signal": "SIGHUP"})
        for member in opened:
            member.reload()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await node
    except asyncio.CancelledError:
        _log.warning("node.hurried")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
