"""Events of a newer version: a new kind, and a known kind with a new field."""

from random import Random

import msgspec
from msgspec import Struct


class JobNoted(Struct, tag="noted", frozen=True):
    """A kind of event that the older version does not know."""

    job: str
    note: str


class NewerCancel(Struct, tag="cancel", frozen=True):
    """A cancel, with a field that the older version does not know."""

    job: str
    reason: str
    zone: str = ""


_encode = msgspec.msgpack.Encoder().encode
decode_newer = msgspec.msgpack.Decoder(JobNoted | NewerCancel).decode


def newer_note(job: str) -> bytes:
    return _encode(JobNoted(job, "watch this one"))


def newer_event(job: str, rng: Random) -> bytes:
    """Return an event of the newer version, encoded."""
    if rng.random() < 0.5:
        return newer_note(job)
    return _encode(NewerCancel(job, "moved", zone="east"))
