"""How long a job leader waits for what: in one place, because the values depend on each other."""

from typing import Annotated

from msgspec import Meta, Struct

from hyperscale.errors import InputError

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class LeaderTimeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lease_s: Seconds = 8.0
    renew_s: Seconds = 1.0
    # Added to the end of a worker's lease: clocks that differ in speed, a late timer.
    silence_margin_s: Seconds = 2.0
    # The death of a process is known within 3 s. An attempt accepted since then may belong to
    # the process that replaced it.
    evidence_s: Seconds = 5.0
    # What membership knew when the last leader sent something, every manager knows by then.
    settle_s: Seconds = 2.0
    repeat_s: Seconds = 1.0  # unanswered commands and requests
    proposal_s: Seconds = 10.0  # an unanswered proposal; committing it twice changes nothing
    checkpoint_s: Seconds = 5.0
    commit_time_s: Seconds = 1.0  # since the last entry, while there are jobs
    start_in_s: Seconds = 0.05  # from the last part being ready to all parts starting
    prepare_s: Seconds = 120.0  # imports and setup hooks
    overrun_s: Seconds = 30.0  # past its duration: requests in flight, teardown, results
    stuck_s: Seconds = 120.0  # without one finished action
    no_workers_s: Seconds = 10.0  # before a job fails because no worker could ever run it
    thresholds_s: Seconds = 1.0
    stop_grace_s: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.renew_s * 3 > self.lease_s:
            raise InputError(
                f"renew_s={self.renew_s} is too long for lease_s={self.lease_s}",
                hint="a lease should survive two lost renewals",
            )
