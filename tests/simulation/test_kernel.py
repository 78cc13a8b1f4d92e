"""The simulator itself: time, loss, cuts, pauses, crashes, and that a run repeats exactly."""

import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.__main__ import suite_of
from tests.simulation.campaign import Failure, Suite, play
from tests.simulation.faults import apply
from tests.simulation.faults import play as play_faults
from tests.simulation.fleet.suite import FleetSuite
from tests.simulation.jobs.suite import JobSuite
from tests.simulation.kernel import INBOX_DATAGRAMS_MAX, Host, Monitor, Violation, World
from tests.simulation.ledger.suite import LedgerSuite
from tests.simulation.network import Answered, Asked, Closed, Failed, Opened
from tests.simulation.trace import Trace


class Recorder:
    """A program that notes what happens to it, and answers what it is asked."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.heard: list[tuple[float, str, Any]] = []
        self.events: list[Any] = []
        self.woken_s: list[float] = []
        self.wake_s: float | None = None

    def start(self, now_s: float) -> None:
        self.host.disk.write("started", now_s)

    def datagram(self, source: str, payload: Any, now_s: float) -> None:
        self.heard.append((now_s, source, payload))

    def stream(self, event: Any, now_s: float) -> None:
        self.events.append(event)
        if isinstance(event, Asked):
            self.host.answer(event.handle, f"re: {event.message}")

    def disk(self, token: Any, now_s: float) -> None:
        self.events.append(("synced", token))

    def wake(self, now_s: float) -> None:
        self.woken_s.append(now_s)
        self.wake_s: float | None = None

    def wake_at_s(self) -> float | None:
        return self.wake_s


def world_of(count: int, seed: int = 1, **kwargs: Any) -> tuple[World, list[Host]]:
    world = World(seed, **kwargs)
    hosts = [world.add(f"h{n}", Recorder) for n in range(count)]
    for host in hosts:
        host.start()
    return world, hosts


def payloads(host: Host) -> list[Any]:
    return [payload for _, _, payload in host.program.heard]


def test_a_datagram_arrives_after_its_delay() -> None:
    world, (a, b) = world_of(2)
    world.network.link.delay_s, world.network.link.jitter_s = 0.25, 0.0
    a.send("h1", "hello")
    world.run(1.0)
    assert b.program.heard == [(0.25, "h0", "hello")]


def test_the_stated_share_of_datagrams_is_lost() -> None:
    world, (a, b) = world_of(2)
    world.network.link.loss = 0.2
    for n in range(5_000):
        a.send("h1", n)
    world.run(1.0)
    assert 3_800 < len(b.program.heard) < 4_200


def test_datagrams_are_duplicated_and_overtake_each_other() -> None:
    world, (a, b) = world_of(2)
    world.network.link.duplicate, world.network.link.jitter_s = 0.5, 0.1
    for n in range(200):
        a.send("h1", n)
    world.run(1.0)
    got = payloads(b)
    assert len(got) > 250
    assert got != sorted(got)
    assert set(got) == set(range(200))


def test_a_cut_works_one_way_until_it_is_healed() -> None:
    world, (a, b) = world_of(2)
    world.network.cut(["h0"], ["h1"])
    a.send("h1", "lost")
    b.send("h0", "passes")
    world.run(1.0)
    world.network.mend(["h0"], ["h1"])
    a.send("h1", "passes too")
    world.run(2.0)
    assert payloads(b) == ["passes too"]
    assert payloads(a) == ["passes"]
    assert world.network.clear_since_s("h1", "h0") == 1.0


def test_cuts_add_up() -> None:
    world, (a, b) = world_of(2)
    world.network.cut(["h0"], ["h1"])
    world.network.cut(["h0"], ["h1"])
    world.network.mend(["h0"], ["h1"])
    a.send("h1", "lost")
    world.run(1.0)
    assert payloads(b) == []
    assert world.network.has_cuts
    world.network.heal()
    assert not world.network.has_cuts


def test_a_cut_that_ends_after_everything_was_healed_mends_nothing_twice() -> None:
    world, (a, b) = world_of(2)
    apply(world, {"do": "cut", "from": ["h0"], "to": ["h1"], "for_s": 5.0})
    world.run(1.0)
    world.network.heal()
    world.network.cut(["h0"], ["h1"])
    world.run(10.0)
    a.send("h1", "lost")
    world.run(11.0)
    assert payloads(b) == []


def test_datagrams_to_a_paused_process_wait_up_to_the_socket_buffer() -> None:
    world, (a, b) = world_of(2)
    b.pause()
    for n in range(INBOX_DATAGRAMS_MAX + 10):
        a.send("h1", n)
    world.run(1.0)
    assert b.program.heard == []
    b.resume()
    assert len(b.program.heard) == INBOX_DATAGRAMS_MAX
    assert b.inbox_dropped == 10


def test_timers_due_during_a_pause_fire_at_its_end() -> None:
    world, (a,) = world_of(1)
    a.program.wake_s = 1.0
    a.settle()
    world.run(0.5)
    a.pause()
    world.run(3.0)
    a.resume()
    world.run(4.0)
    assert a.program.woken_s == [3.0]


def test_a_blocked_process_keeps_its_timers_and_loses_only_its_network() -> None:
    world, (a, b) = world_of(2)
    a.block()
    a.program.wake_s = 1.0
    a.settle()
    a.send("h1", "late")
    b.send("h0", "late too")
    world.run(2.0)
    assert a.program.woken_s == [1.0]
    assert payloads(a) == payloads(b) == []
    a.unblock()
    world.run(3.0)
    assert payloads(a) == ["late too"]
    assert payloads(b) == ["late"]


def test_an_earlier_wake_takes_the_place_of_a_later_one() -> None:
    world, (a,) = world_of(1)
    a.program.wake_s = 5.0
    a.settle()
    a.program.wake_s = 2.0
    a.settle()
    world.run(10.0)
    assert a.program.woken_s == [2.0]


def test_a_request_is_answered_refused_or_fails_by_its_deadline() -> None:
    world, (a, b, c) = world_of(3)
    b.stop("crash")
    c.stop("power")
    a.ask("h1", "anyone?", "refused", within_s=2.0)
    a.ask("h2", "anyone?", "silent", within_s=2.0)
    a.ask("h0", "me?", "answered", within_s=2.0)
    world.run(5.0)
    outcomes = {e.token: e for e in a.program.events if not isinstance(e, Asked)}
    assert outcomes["refused"] == Failed("refused", "h1", refused=True)
    assert outcomes["silent"] == Failed("silent", "h2", refused=False)
    assert outcomes["answered"] == Answered("answered", "h0", "re: me?")


def test_a_paused_process_lets_a_request_run_into_its_deadline() -> None:
    world, (a, b) = world_of(2)
    b.pause()
    a.ask("h1", "hello", "slow", within_s=1.0)
    world.run(2.0)
    b.resume()
    world.run(3.0)
    assert a.program.events == [Failed("slow", "h1", refused=False)]


def test_a_kept_stream_ends_at_once_with_a_crash_and_late_with_a_power_loss() -> None:
    world, (a, b, c) = world_of(3)
    a.open("h1", "b")
    world.run(0.5)
    a.open("h2", "c")
    world.run(1.0)
    b.stop("crash")
    c.stop("power")
    world.run(2.0)
    assert a.program.events == [Opened("b", "h1"), Opened("c", "h2"), Closed("b", "h1")]
    world.run(20.0)
    assert a.program.events[3:] == [Closed("c", "h2")]


def test_a_crash_loses_unsynced_data_and_a_wipe_everything() -> None:
    world, (a,) = world_of(1)
    a.disk.write("kept", 1)
    a.sync("token", within_s=0.01)
    world.run(1.0)
    assert a.program.events == [("synced", "token")]
    a.disk.write("lost", 2)
    a.stop("crash")
    assert a.disk.read("kept") == 1
    assert a.disk.read("lost") is None
    a.start()
    a.stop("crash", wipe=True)
    assert a.disk.read("kept") is None


def test_a_new_process_gets_none_of_the_old_ones_timers_or_answers() -> None:
    world, (a, b) = world_of(2)
    b.pause()
    a.ask("h1", "hello", "old", within_s=5.0)
    a.program.wake_s = 2.0
    a.settle()
    world.run(1.0)
    a.stop("crash")
    a.start()
    b.resume()
    world.run(10.0)
    assert a.life == 2
    assert a.program.woken_s == []
    assert a.program.events == []


def test_faults_are_data_and_play_at_their_time() -> None:
    world, (a, b) = world_of(2)
    play_faults(
        world,
        [
            {"at_s": 1.0, "do": "pause", "host": "h0", "for_s": 2.0},
            {"at_s": 1.0, "do": "crash", "host": "h1"},
            {"at_s": 2.0, "do": "start", "host": "h1"},
            {"at_s": 2.0, "do": "skew", "host": "h1", "ms": -5000},
            {"at_s": 2.0, "do": "link", "loss": 0.5},
            {"at_s": 2.0, "do": "slow", "host": "h1", "delay_s": 0.1, "for_s": 1.0},
        ],
    )
    world.run(1.5)
    assert (a.paused, b.is_up) == (True, False)
    world.run(2.5)
    assert (a.paused, b.is_up, b.life) == (True, True, 2)
    assert world.network.link.loss == 0.5
    assert b.wall_ms() == a.wall_ms() - 5000
    assert world.network.slow == {"h1": 0.1}
    world.run(4.0)
    assert not a.paused
    assert world.network.slow == {}


def test_the_monitor_sees_every_event_and_a_violation_names_the_time() -> None:
    class Strict(Monitor):
        def after(self, host: Host) -> None:
            if host.program.heard:
                world.fail(f"{host.address} heard something")

    world, (a, _) = world_of(2, monitor=Strict())
    a.send("h1", "hello")
    with pytest.raises(Violation, match=r"at 0\.0\d+ s: h1 heard something"):
        world.run(1.0)


def test_run_until_says_how_long_it_took() -> None:
    world, (a, b) = world_of(2)
    world.after(3.0, lambda: a.send("h1", "now"))
    took_s = world.run_until(lambda: bool(b.program.heard), within_s=10.0)
    assert took_s == pytest.approx(3.1)
    assert world.run_until(lambda: False, within_s=1.0) is None


_DIGEST = """
from tests.simulation.fleet.suite import FleetSuite
from tests.simulation.trace import Trace
for seed in (1, 2, 3, 4, 5, 6, 7):
    trace, suite = Trace(), FleetSuite()
    suite.run(suite.draw(seed), trace)
    print(seed, trace.digest)
"""


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    # Hash randomisation is what most often breaks this: sets of strings iterate differently.
    runs = [
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].count("\n") == 7


class _Broken:
    """A suite whose every run violates an invariant."""

    name = "broken"

    def draw(self, seed: int) -> dict[str, int]:
        return {"seed": seed}

    def run(self, plan: dict[str, int], trace: Trace | None) -> None:
        world, (a, _) = world_of(2, seed=plan["seed"], trace=trace)
        a.send("h1", "the last thing that happened")
        world.run(1.0)
        world.fail("it is broken")

    def describe(self, plan: dict[str, int]) -> str:
        return f"plan of {plan}"

    def summarise(self, outcomes: list[Any]) -> list[str]:
        return []


def test_a_failure_brings_seed_plan_trace_and_how_to_replay_it() -> None:
    failure = play(_Broken(), 42)
    assert isinstance(failure, Failure)
    assert "broken seed 42: at 1.0000 s: it is broken" in failure.report
    assert "python -m tests.simulation replay broken-42" in failure.report
    assert "plan of {'seed': 42}" in failure.report
    assert "the last thing that happened" in failure.report


@pytest.mark.parametrize(
    "suite",
    [
        FleetSuite(),
        FleetSuite(["deaths"]),
        LedgerSuite(),
        LedgerSuite(["slots"]),
        JobSuite(),
        JobSuite(["isolation"]),
    ],
    ids=lambda suite: suite.name,
)
def test_the_suite_named_by_a_failure_can_be_replayed(suite: Suite) -> None:
    again, _ = suite_of([suite.name])
    assert again.name == suite.name
    assert again.describe(again.draw(7)) == suite.describe(suite.draw(7))
