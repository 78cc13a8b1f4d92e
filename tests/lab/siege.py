"""Strangers at the doors of a cluster: silent connections and a stream of new ones.

Run as a program it besieges addresses for some seconds, from a loopback address of its own:

    python -m tests.lab.siege SECONDS SILENT NEW_PER_S HOST:PORT ...
"""

import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

SOURCE = "127.0.0.2"


async def _knock(host: str, port: int) -> asyncio.StreamWriter | None:
    try:
        _, writer = await asyncio.open_connection(host, port, local_addr=(SOURCE, 0))
    except OSError:
        return None
    return writer


async def _besiege(address: str, seconds: float, silent: int, new_per_s: int) -> int:
    """Keep `silent` connections open to an address and open further ones; return how many."""
    host, port = address.rsplit(":", 1)
    held: list[asyncio.StreamWriter] = []
    knocked, ends_s = 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        # The first silent ones at full speed, then at the rate asked for.
        batch = 50 if knocked < silent else max(1, new_per_s // 10)
        found = await asyncio.gather(*(_knock(host, int(port)) for _ in range(batch)))
        held += [writer for writer in found if writer is not None]
        knocked += batch
        while len(held) > silent:
            held.pop(0).close()
        await asyncio.sleep(0.1)
    for writer in held:
        writer.close()
    return knocked


async def _main(seconds: float, silent: int, new_per_s: int, addresses: Sequence[str]) -> None:
    parts = (_besiege(each, seconds, silent, new_per_s) for each in addresses)
    print(sum(await asyncio.gather(*parts)), flush=True)  # noqa: T201  its output


@contextlib.contextmanager
def besieged(
    addresses: Sequence[str], *, seconds: float, silent: int, new_per_s: int
) -> Iterator["subprocess.Popen[str]"]:
    """Besiege addresses while the context lasts, at most for `seconds`."""
    command = [sys.executable, "-m", "tests.lab.siege", str(seconds), str(silent), str(new_per_s)]
    with subprocess.Popen([*command, *addresses], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    asyncio.run(_main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
