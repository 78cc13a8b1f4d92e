"""What goes wrong, as data: a list of steps that can be drawn at random, printed, written to a
file and played again.

    {"at_s": 12.5, "do": "pause", "host": "n3", "for_s": 4.0}

    crash, power   the process ends; its machine says so to peers, or falls silent with it
    start          a process on a machine that has none ("wipe" first loses the disk)
    pause, block   the process stands still; or only its sends and receives do   (for_s)
    cut            nothing passes from "from" to "to", and back if "both"        (for_s)
    slow           everything to and from a host takes "delay_s" longer          (for_s)
    skew           the host's wall clock is off by "ms"
    link           sets fields of the link all datagrams use
    tell           calls a method of the host's program
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.kernel import World

Step = dict[str, Any]


def play(world: "World", steps: Iterable[Step]) -> None:
    """Schedules every step, and its end where it has one."""
    for step in steps:
        world.at(step["at_s"], _bind(world, step))


def _bind(world: "World", step: Step) -> Any:
    return lambda: apply(world, step)


def apply(world: "World", step: Step) -> None:
    """Does a step now."""
    do = step["do"]
    if world.trace is not None:
        shown = {k: v for k, v in step.items() if k not in ("at_s", "do")}
        world.trace.add(world.now_s, "FAULT", do, shown)
    _ACTIONS[do](world, step)


def _crash(world: "World", step: Step) -> None:
    world.hosts[step["host"]].stop(step["do"], wipe=step.get("wipe", False))


def _start(world: "World", step: Step) -> None:
    host = world.hosts[step["host"]]
    if host.program is None:
        host.start()


def _pause(world: "World", step: Step) -> None:
    host = world.hosts[step["host"]]
    life = host.life
    host.pause()
    world.after(step["for_s"], lambda: host.resume() if host.life == life else None)


def _block(world: "World", step: Step) -> None:
    host = world.hosts[step["host"]]
    life = host.life
    host.block()
    world.after(step["for_s"], lambda: host.unblock() if host.life == life else None)


def _cut(world: "World", step: Step) -> None:
    network = world.network
    ways = [(step["from"], step["to"])]
    if step.get("both", True):
        ways.append((step["to"], step["from"]))
    healed = network.healed
    for sources, targets in ways:
        network.cut(sources, targets)

    def mend() -> None:
        if network.healed == healed:
            for sources, targets in ways:
                network.mend(sources, targets)

    if "for_s" in step:
        world.after(step["for_s"], mend)


def _slow(world: "World", step: Step) -> None:
    slow, host = world.network.slow, step["host"]
    slow[host] = step["delay_s"]
    if "for_s" in step:
        world.after(step["for_s"], lambda: slow.pop(host, None))


def _skew(world: "World", step: Step) -> None:
    host = world.hosts[step["host"]]
    host.clock_skew_ms, host.clock_was_off = step["ms"], True


def _link(world: "World", step: Step) -> None:
    for name, value in step.items():
        if name not in ("at_s", "do"):
            setattr(world.network.link, name, value)


def _tell(world: "World", step: Step) -> None:
    host = world.hosts[step["host"]]
    if host.is_running:
        getattr(host.program, step["method"])(*step.get("args", ()))


_ACTIONS = {
    "crash": _crash,
    "power": _crash,
    "start": _start,
    "pause": _pause,
    "block": _block,
    "cut": _cut,
    "slow": _slow,
    "skew": _skew,
    "link": _link,
    "tell": _tell,
}


def heal(world: "World") -> None:
    """Mend all links, resume and start all hosts."""
    world.network.heal()
    world.network.link.loss = min(0.01, world.network.link.loss)
    for host in world.hosts.values():
        if host.paused:
            host.resume()
        if not host.is_up:
            host.start()
