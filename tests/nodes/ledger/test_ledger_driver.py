"""A ledger of one node on a real disk: its driver, and its data directory."""

import asyncio
from pathlib import Path

import pytest

from hyperscale._native import LedgerStore
from hyperscale.errors import InputError
from hyperscale.jobs.committed.events import CancelRequested, Code, Reply, encode
from hyperscale.jobs.committed.machine import JobMachine
from hyperscale.ledger.core import LedgerCore
from hyperscale.ledger.core_events import LedgerOpened
from hyperscale.ledger.replica import AppliedEntry
from hyperscale.ledger.server.ledger import Ledger
from hyperscale.ledger.server.ledger_driver import LedgerDriver
from hyperscale.ledger.topology import Founded, GroupCreated, NodeJoined, Topology
from hyperscale.nodes.ledger_service import LAYOUT_VERSION, open_store
from hyperscale.sansio.tasks import TaskSupervisor
from hyperscale.wire.connection import Connection
from hyperscale.wire.link import PeerLink

CANCEL = encode(CancelRequested(job="dc.1-none", reason="r"))


class NoPeers:
    """The tier of a node that is alone."""

    def link(self, node: str) -> PeerLink | None:
        del node

    def connection(self, node: str) -> Connection | None:
        del node

    def send(self, node: str, message: object) -> None: ...

    def living(self) -> list[str]:
        return ["m0"]

    def dead_for_s(self, node: str) -> float | None:
        del node

    def is_fit(self, node: str) -> bool:
        return node == "m0"


def topology() -> Topology:
    made = Topology()
    made.decide(Founded(1))
    made.decide(NodeJoined("m0", "m0"))
    made.decide(GroupCreated(1, (1,), tuple(range(1_024))))
    return made


def founded(directory: Path, tasks: TaskSupervisor) -> Ledger:
    store = open_store(directory)
    core = LedgerCore(
        1,
        store,
        make_machine=lambda group: JobMachine("dc", group),
        seed=7,
        first_tick_at_s=asyncio.get_running_loop().time(),
    )
    driver = LedgerDriver("ledger", core, store, NoPeers(), tasks)
    driver.start()
    driver.feed(LedgerOpened(topology()))
    return Ledger(driver)


async def led(ledger: Ledger, group: int) -> None:
    async with asyncio.timeout(20):
        while group not in ledger.core.leading:
            await asyncio.sleep(0.02)


def test_an_applied_entry_reaches_hooks_with_its_decoded_event_and_reply(tmp_path: Path) -> None:
    async def scenario() -> None:
        tasks = TaskSupervisor()
        ledger = founded(tmp_path / "ledger", tasks)
        seen: list[AppliedEntry] = []
        ledger.hooks.applied.append(seen.append)
        await led(ledger, 1)
        result = await ledger.propose(1, CANCEL)
        assert isinstance(result.reply, Reply)
        assert result.reply.code is Code.UNKNOWN_JOB
        assert [(entry.event, entry.reply) for entry in seen if entry.group == 1] == [
            (CancelRequested(job="dc.1-none", reason="r"), result.reply)
        ]
        await tasks.close()
        await ledger.driver.close()
        ledger.core.end()

    asyncio.run(scenario())


def test_a_hook_that_raises_ends_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        tasks = TaskSupervisor()
        ledger = founded(tmp_path / "ledger", tasks)
        await led(ledger, 1)

        def fail(_entry: AppliedEntry) -> None:
            raise ZeroDivisionError("a bug in a hook")

        ledger.hooks.applied.append(fail)
        proposal = asyncio.ensure_future(ledger.propose(1, CANCEL))
        with pytest.raises(ZeroDivisionError, match="a bug in a hook"):
            await asyncio.wait_for(tasks.failed, 10)
        proposal.cancel()
        await tasks.close()
        await ledger.driver.close()
        ledger.core.end()

    asyncio.run(scenario())


def written(directory: Path, **meta: str) -> None:
    store = LedgerStore(directory)
    for key, value in meta.items():
        store.put_meta(key, value.encode())
    store.close()


def test_a_new_data_directory_gets_the_layout_of_this_version(tmp_path: Path) -> None:
    open_store(tmp_path / "ledger").close()
    store = open_store(tmp_path / "ledger")
    assert dict(store.meta())["layout"] == str(LAYOUT_VERSION).encode()
    store.close()


@pytest.mark.parametrize(
    ("meta", "layout"),
    [
        ({"ledger": "abc", "number": "1"}, "1"),
        ({"ledger": "abc", "number": "1", "layout": "99"}, "99"),
    ],
)
def test_a_data_directory_of_another_version_is_refused(
    tmp_path: Path, meta: dict[str, str], layout: str
) -> None:
    written(tmp_path / "ledger", **meta)
    with pytest.raises(InputError, match=f"has layout {layout} of another version") as refused:
        open_store(tmp_path / "ledger")
    assert "--data-dir" in (refused.value.hint or "")


def test_a_data_directory_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store = open_store(tmp_path / "ledger")
    with pytest.raises(InputError, match="another process uses the data directory") as refused:
        open_store(tmp_path / "ledger")
    assert refused.value.hint == "stop the other process or give another --data-dir"
    store.close()


def test_a_damaged_data_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    open_store(tmp_path / "ledger").close()
    for file in (tmp_path / "ledger").glob("*.db*"):
        file.write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match="is damaged") as refused:
        open_store(tmp_path / "ledger")
    assert "move the data directory away" in (refused.value.hint or "")
