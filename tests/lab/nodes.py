"""Manager and worker processes on loopback, started one by one, and their logs and metrics.

The view that a node has of the members is read from its log.
"""

import asyncio
import calendar
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

from hyperscale.client.cluster_connection import ask_node
from hyperscale.config.addresses import split_address
from hyperscale.config.loading import node_config
from hyperscale.nodes.messages import ListMembers, ListMembersReply
from tests.lab.command import HYPERSCALE
from tests.lab.processes import die_with_parent
from tests.lab.waiting import WAIT_S, until

_LISTENING = re.compile(r"(\S+) listening on (\S+), (http://\S+)")
_STATE_OF_EVENT = {
    "member.heard_of": "unconfirmed",
    "member.restarted": "unconfirmed",
    "member.confirmed": "alive",
    "member.returned": "alive",
    "suspicion.cleared": "alive",
    "member.suspected": "suspect",
    "member.died": "dead",
    "member.left": "left",
}


class NodeProcess:
    """One node process and its log."""

    def __init__(
        self,
        directory: Path,
        role: str,
        name: str,
        arguments: Sequence[str] = (),
        *,
        environment: dict[str, str] | None = None,
        wrap: Sequence[str] = (),
    ) -> None:
        self.role = role
        self.name = name
        self._wrap = wrap
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HYPERSCALE_")},
            **(environment or {}),
        }
        self._log_path = directory / f"{name}-{time.monotonic_ns()}.log"
        self._log = self._log_path.open("w+")
        self._out_path = self._log_path.with_suffix(".out")
        self._out = self._out_path.open("w+")
        self._read = self._log_path.open()
        self._partial = ""
        self.events: list[dict[str, Any]] = []
        ports = [] if "--port" in arguments else ["--port", "0"]
        self.process = subprocess.Popen(
            [
                *(*wrap, *HYPERSCALE, role, "--node-id", name),
                *(*ports, "--http-port", "0", *arguments),
            ],
            env=self._environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  one system call, no lock
        )

    # -- addresses --------------------------------------------------------------------------

    def wait_listening(self) -> Self:
        until(self._is_listening, what=f"{self.name} listens; its output was {self.output()}")
        return self

    def _is_listening(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.poll()}: {self.output()}")
        return _LISTENING.match(self._out_path.read_text()) is not None

    @property
    def address(self) -> str:
        return self._announced(2)

    @property
    def http(self) -> str:
        return self._announced(3)

    def _announced(self, group: int) -> str:
        found = _LISTENING.match(self._out_path.read_text())
        assert found, f"{self.name} is not listening: {self.output()}"
        return found[group]

    @property
    def port(self) -> int:
        return split_address(self.address)[1]

    def output(self) -> str:
        return self._out_path.read_text() + self._log_path.read_text()

    # -- logs and metrics -------------------------------------------------------------------

    def read(self) -> list[dict[str, Any]]:
        """Return all events that the node has logged."""
        *lines, self._partial = (self._partial + self._read.read()).split("\n")
        self.events += [json.loads(line) for line in lines]
        return self.events

    def seen(self, event: str, **fields: object) -> list[dict[str, Any]]:
        return [
            each
            for each in self.read()
            if each["event"] == event and all(each.get(k) == v for k, v in fields.items())
        ]

    def states(self) -> dict[str, str]:
        """Return the state of every other member, as this node sees it now."""
        states: dict[str, str] = {}
        for event in self.read():
            state = _STATE_OF_EVENT.get(event["event"])
            if state is not None:
                states[event["member"]] = state
        return states

    def living(self) -> set[str]:
        return {name for name, state in self.states().items() if state == "alive"}

    def warnings(self) -> list[dict[str, Any]]:
        """Return warnings, except those of a busy machine: overload and slow handshakes."""
        return [
            each
            for each in self.read()
            if each["level"] in ("warning", "error")
            and each["event"] != "overload.changed"
            and each.get("reason") not in ("truncated", "slow")
        ]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(self.http + path, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def members_text(self) -> str:
        """Return the output of `hyperscale members`, run in the node's namespace."""
        return subprocess.run(
            [*self._wrap, *HYPERSCALE, "members", "--connect", self.address],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        ).stdout

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of all samples of a metric with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        total, found = 0.0, False
        for line in self.get("/metrics")[1].splitlines():
            if re.match(rf"{re.escape(name)}[ {{]", line) and all(each in line for each in wanted):
                total, found = total + float(line.rpartition(" ")[2]), True
        assert found, f"no metric {name} with {labels}"
        return total

    # -- signals ----------------------------------------------------------------------------

    def signal(self, number: int) -> float:
        """Send a signal; return the wall-clock time at which it was sent."""
        at_s = time.time()
        os.killpg(self.process.pid, number)
        return at_s

    def kill(self) -> float:
        at_s = self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)
        return at_s

    def stop(self) -> int:
        """Send SIGTERM and wait until the node has ended; return its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(WAIT_S)
        for file in (self._log, self._out, self._read):
            file.close()


class NodeCluster:
    """Nodes that are killed at the end of the context; their logs are printed after an error."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: list[NodeProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.close()
        if error is not None:
            for node in self.nodes:
                sys.stderr.write(f"--- {node.name}\n{node.output()[-6000:]}\n")

    def start(self, role: str, name: str, *arguments: str, **options: Any) -> NodeProcess:
        node = NodeProcess(self.directory, role, name, arguments, **options)
        self.nodes.append(node)
        return node

    def form(
        self, managers: int, workers: int, *arguments: str, **options: Any
    ) -> list[NodeProcess]:
        """Start managers and workers and wait until all of them know each other."""
        first = self.start("manager", "m0", *arguments, **options).wait_listening()
        seed = ("--seed", first.address)
        nodes = [first]
        nodes += [
            self.start("manager", f"m{n}", *seed, *arguments, **options) for n in range(1, managers)
        ]
        nodes += [
            # One core each: executors take time to start.
            self.start("worker", f"w{n}", *seed, "--cores", "1", *arguments, **options)
            for n in range(workers)
        ]
        for node in nodes:
            node.wait_listening()
        wait_for_view(nodes)
        return nodes


def wait_for_view(nodes: Iterable[NodeProcess], *, within_s: float = WAIT_S) -> None:
    """Wait until each node sees exactly the other nodes alive."""
    everyone = list(nodes)
    names = {node.name for node in everyone}
    until(
        lambda: all(node.living() == names - {node.name} for node in everyone),
        what="all nodes have the same view; "
        + "; ".join(f"{node.name} sees {sorted(node.living())}" for node in everyone),
        within_s=within_s,
    )


def wait_for_death(
    name: str, observers: Iterable[NodeProcess], *, within_s: float = WAIT_S
) -> None:
    """Wait until all observers have declared a node dead."""
    watching = list(observers)
    until(
        lambda: all(node.states().get(name) == "dead" for node in watching),
        what=f"{name} is dead to {[node.name for node in watching]}",
        within_s=within_s,
    )


def detection_s(name: str, killed_at_s: float, observers: Iterable[NodeProcess]) -> list[float]:
    """Return how long after the kill each observer logged the death."""
    return [
        wall_s(node.seen("member.died", member=name)[-1]["time"]) - killed_at_s
        for node in observers
    ]


def wall_s(stamp: str) -> float:
    """Return the Unix time of a log line's timestamp."""
    whole, _, milliseconds = stamp.removesuffix("Z").partition(".")
    parsed = time.strptime(whole + " UTC", "%Y-%m-%dT%H:%M:%S %Z")

    return calendar.timegm(parsed) + int(milliseconds) / 1000


def deaths(nodes: Iterable[NodeProcess]) -> list[str]:
    """Return every death that a node logged."""
    return [
        f"{node.name}: {event['member']} ({event['evidence']}) at {event['time']}"
        for node in nodes
        for event in node.seen("member.died")
    ]


def members_of(node: NodeProcess) -> ListMembersReply:
    """Return the node's answer to `ListMembers`."""
    host, port = split_address(node.address)
    config = node_config("manager")
    asking = ask_node(config, host, port, ListMembers(), ListMembersReply, timeout_s=WAIT_S)
    return asyncio.run(asking)
