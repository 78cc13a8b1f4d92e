"""Keys of submissions, and which job each makes.

A key is an opaque text that the submitter chooses; a submission with the same key is the same
submission. A job's id follows from its key, so a retry cannot make a second job, whichever manager
receives it. Hashes here are the same in every process and version.
"""

import hashlib
from base64 import b32encode
from typing import NamedTuple

from hyperscale.errors import InputError

KEY_BYTES_MAX = 128
KEY_HINT = f"use 1 to {KEY_BYTES_MAX} bytes of printable text, for example a hash"
_ID_CHARS = 20  # 100 bits


class JobName(NamedTuple):
    """The parts of a job id."""

    scope: str
    group: int
    id: str


def job_id(scope: str, group: int, key: str) -> str:
    """`{scope}.{group}-{id}`. The id part depends on the key alone."""
    # Only as many bytes as end up in the id: base32 is slow in Python.
    hashed = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:15]
    return f"{scope}.{group}-{b32encode(hashed).decode('ascii')[:_ID_CHARS].lower()}"


def parse_job_id(job: str) -> JobName:
    """Parse a job id; raise `InputError` if the text is not one."""
    scope, dot, rest = job.rpartition(".")
    group, dash, name = rest.partition("-")
    if not (dot and dash and scope and name and group.isascii() and group.isdecimal()):
        raise InputError(
            f"{job!r} is not a job id",
            hint="a job id looks like dc1.3-k5mz…; 'hyperscale jobs' lists them",
        )
    return JobName(scope, int(group), name)


def key_problem(key: str) -> str | None:
    """Return what is wrong with a key; None if nothing is. `KEY_HINT` says what to use."""
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        return "Invalid idempotency key format: it is not valid text"
    if not size:
        return "Invalid idempotency key format: it is empty"
    if size > KEY_BYTES_MAX:
        return f"Invalid idempotency key format: {size} bytes, more than {KEY_BYTES_MAX}"
    if not key.isprintable():
        return "Invalid idempotency key format: it has characters that cannot be printed"
    return None
