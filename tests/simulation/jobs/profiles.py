"""Which faults a schedule of the job simulation may have, by profile."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """Faults that may happen. Rates are expected events per schedule."""

    name: str
    managers: tuple[int, ...] = (1, 3, 3, 5)
    faults_s: float = 30.0
    loss_max: float = 0.1
    worker_crashes: float = 0.0
    worker_power: float = 0.0
    worker_pauses: float = 0.0
    worker_cuts: float = 0.0
    drains: float = 0.0
    leader_crashes: float = 0.0
    leader_pauses: float = 0.0
    manager_cuts: float = 0.0
    deposals: float = 0.0
    """A leader is cut off together with a worker, and paused before it notices."""
    transfers: float = 0.0
    skews: float = 0.0
    """The wall clock of a manager jumps, by ten minutes at most."""
    blackouts: float = 0.0
    """All managers crash at once and restart one by one."""
    goes_on: float = 0.0
    cancels: float = 0.3
    exclusive: float = 0.15
    crowds: float = 0.3
    """Jobs with more workflows than cores."""
    longest_s: float = 17.0
    restarts: float = 0.7
    is_steady: bool = False
    """Workers have no faults and leaders restart soon: no part may be restarted."""
    restored_within_s: float | None = None
    flaky: float = 0.01
    is_exclusive_checked: bool = False
    shaped: float = 0.0
    """Probability that a workflow has a shape, and so keeps up with the time since its start."""
    changes: float = 0.0
    """Probability that the load of a job is scaled, paused and resumed."""
    rows: float = 0.0
    """Probability that a workflow has feeds that deal each row once."""
    has_sick_worker: bool = False
    """Nothing can be prepared on one of the workers; all have the same number of cores."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "workers",
            worker_crashes=2.0,
            worker_power=0.7,
            worker_pauses=1.5,
            worker_cuts=1.0,
            drains=0.3,
            transfers=0.3,
        ),
        Profile(
            "leaders",
            managers=(3, 3, 5),
            leader_crashes=1.5,
            transfers=3.0,
            loss_max=0.02,
            cancels=0.1,
            is_steady=True,
            flaky=0.0,
        ),
        Profile(
            "isolation",
            managers=(3, 5),
            worker_cuts=2.0,
            worker_pauses=2.0,
            manager_cuts=1.0,
            leader_pauses=1.0,
        ),
        Profile(
            "everything",
            worker_crashes=1.5,
            worker_power=0.5,
            worker_pauses=1.5,
            worker_cuts=1.0,
            drains=0.2,
            leader_crashes=1.0,
            leader_pauses=1.0,
            manager_cuts=0.7,
            transfers=1.0,
        ),
        Profile(
            "allocators",
            managers=(3, 3, 5),
            transfers=6.0,
            leader_crashes=1.0,
            exclusive=0.6,
            loss_max=0.02,
            is_exclusive_checked=True,
            flaky=0.0,
        ),
        Profile(
            "stubborn",
            managers=(3, 5),
            goes_on=0.6,
            worker_cuts=2.0,
            worker_pauses=2.0,
            worker_crashes=1.0,
            manager_cuts=0.5,
            leader_crashes=0.5,
        ),
        Profile(
            "deposed",
            managers=(3, 5),
            deposals=2.0,
            longest_s=60.0,
            transfers=0.5,
            exclusive=0.0,
            cancels=0.0,
        ),
        Profile(
            "blackout",
            managers=(1, 3),
            blackouts=1.0,
            goes_on=0.5,
            worker_crashes=0.5,
            worker_cuts=0.5,
            worker_pauses=0.5,
        ),
        Profile(
            "clocks",
            managers=(3, 5),
            skews=6.0,
            transfers=3.0,
            leader_crashes=1.0,
            worker_crashes=1.5,
            worker_cuts=0.5,
        ),
        Profile(
            "sick",
            managers=(3, 3, 5),
            leader_crashes=0.7,
            transfers=3.0,
            skews=3.0,
            loss_max=0.02,
            exclusive=0.0,
            crowds=0.0,
            cancels=0.1,
            flaky=0.0,
            has_sick_worker=True,
        ),
        Profile(
            "changes",
            managers=(3, 3, 5),
            worker_crashes=1.5,
            worker_pauses=0.5,
            worker_cuts=0.5,
            leader_crashes=1.0,
            transfers=2.0,
            exclusive=0.0,
            shaped=0.5,
            changes=0.8,
            longest_s=30.0,
        ),
        Profile(
            "rows",
            managers=(3, 3, 5),
            worker_crashes=2.0,
            worker_power=0.5,
            worker_pauses=1.5,
            worker_cuts=1.0,
            drains=0.3,
            leader_crashes=1.0,
            transfers=2.0,
            exclusive=0.0,
            crowds=0.1,
            rows=0.9,
            shaped=0.3,
            changes=0.3,
            longest_s=25.0,
        ),
        Profile(
            "crashes",
            managers=(3,),
            worker_crashes=2.0,
            # A lost message is repeated after a second here; TCP repeats it after a fifth of that.
            loss_max=0.0,
            exclusive=0.0,
            cancels=0.0,
            restored_within_s=5.0,
            flaky=0.0,
        ),
    )
}
