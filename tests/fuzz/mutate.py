"""A small mutating fuzzer, for where no coverage-guided one is installed.

Bends seeds: flips, cuts, copies, splices, and puts numbers where numbers hurt. Deterministic
for a seed; inputs that took the longest or reached a new outcome are bent further.
"""

import time
from collections.abc import Sequence
from random import Random

from tests.fuzz.targets import TARGETS, seeds

_NASTY = (b"\0", b"\xff", b"\x7f", b"\x80", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")
_NASTY += (b"\xdd\x7f\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 50)
SIZE_MAX = 4096


def bend(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << rng.randrange(8)
            case 1:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del changed[at : at + rng.randrange(1, 9)]
            case 3:
                nasty = rng.choice(_NASTY)
                changed[at : at + len(nasty)] = nasty
            case 4:
                changed[at:at] = changed[rng.randrange(len(changed) + 1) :][: rng.randrange(1, 64)]
            case 5:
                other = rng.choice(others)
                changed[at:] = other[rng.randrange(len(other) + 1) :]
            case _:
                changed += rng.randbytes(rng.randrange(1, 33))
    return bytes(changed[:SIZE_MAX])


def fuzz(name: str, *, seconds: float, seed: int, runs_max: int | None = None) -> int:
    """Runs a target until the time or the runs are up; returns the runs. Raises what it finds."""
    target, rng = TARGETS[name], Random(f"{name}:{seed}")
    pool = [*seeds(name), b""]
    for data in pool:
        target(data)
    until_s, runs = time.monotonic() + seconds, len(pool)
    while time.monotonic() < until_s and (runs_max is None or runs < runs_max):
        data = bend(rng.choice(pool), pool, rng)
        runs += 1
        try:
            target(data)
        except Exception as error:
            error.add_note(f"target {name}, input {data.hex()}")
            raise
        if rng.random() < 0.02:
            pool.append(data)
            if len(pool) > 800:
                pool.pop(rng.randrange(len(pool)))
    return runs
