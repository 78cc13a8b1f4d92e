"""The times a job leader lives by: in one place, as they depend on each other."""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError

Seconds = Annotated[float, Meta(gt=0, le=86_400)]

RETRIES_MAX = 3


class Timing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease_s: Seconds = 8.0
    renew_s: Seconds = 1.0
    # After a worker's lease must have run out: clocks that differ in speed, a late timer.
    silence_margin_s: Seconds = 2.0
    # That a process has ended is known within 3 s. What was accepted since may be another's.
    evidence_s: Seconds = 5.0
    # What membership knew when the last leader sent something, every manager knows by then.
    settle_s: Seconds = 2.0
    repeat_s: Seconds = 1.0  # unanswered commands and asks
    checkpoint_s: Seconds = 5.0
    start_in_s: Seconds = 0.05  # from the last part being ready to all of them starting
    prepare_s: Seconds = 120.0  # import, setup hooks
    overrun_s: Seconds = 30.0  # beyond its duration, for what is in flight, teardown, results
    stuck_s: Seconds = 120.0  # without one action finished
    no_workers_s: Seconds = 10.0  # before a job fails because nobody could ever run it
    thresholds_s: Seconds = 1.0
    stop_grace_s: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.renew_s * 3 > self.lease_s:
            raise InputError(
                f"renew_s={self.renew_s} is too long for lease_s={self.lease_s}",
                hint="a lease should survive two lost renewals",
            )


EXTENSION_BASE_S = 30.0
EXTENSIONS_MAX = 5


def extension_s(granted: int) -> float:
    """How much more time a part gets that was given some `granted` times; 0 for no more."""
    if granted >= EXTENSIONS_MAX:
        return 0.0
    return float(max(1.0, EXTENSION_BASE_S / 2 ** (granted + 1)))
