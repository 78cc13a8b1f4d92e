"""Profiles of the simulation of gates: how often what goes wrong."""

from dataclasses import dataclass

ENDED_WITHIN_S = 150.0


@dataclass(frozen=True)
class Profile:
    """How often what goes wrong, on average per schedule."""

    name: str
    gates: tuple[int, ...] = (3,)
    faults_s: float = 60.0
    loss_max: float = 0.05
    gate_crashes: float = 0.0
    gate_pauses: float = 0.0
    gate_cuts: float = 0.0
    datacenter_crashes: float = 0.0
    datacenter_cuts: float = 0.0
    cuts_s: tuple[float, ...] = (2.0, 10.0, 30.0, 60.0)
    transfers: float = 0.0
    refusals: float = 0.0
    retries: float = 0.05
    slow: float = 0.05  # share of commands that take longer than the gate waits
    failures: float = 0.05
    lost_acks: float = 0.2  # share of acknowledgements of results that do not arrive
    cancels: float = 0.2
    removals: float = 0.0  # datacenters that an operator removes
    queues: float = 0.05  # share of parts that wait for cores
    unready: float = 0.05  # share of parts that take long to prepare
    changes: float = 0.3  # share of jobs whose load is changed
    is_lossless: bool = True  # no datacenter is away for so long that it is lost
    ended_within_s: float = ENDED_WITHIN_S


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("calm", gates=(1, 3), refusals=0.1),
        Profile(
            "vacancies",
            gates=(1, 3),
            refusals=0.2,
            removals=1.0,
            queues=0.4,
            unready=0.3,
            changes=0.6,
            gate_crashes=0.5,
            transfers=1.0,
        ),
        Profile("refusals", refusals=0.4, slow=0.2, retries=0.2, datacenter_cuts=1.0),
        Profile(
            "owners",
            gates=(3, 5),
            gate_crashes=2.0,
            gate_pauses=1.0,
            transfers=3.0,
            slow=0.2,
            retries=0.3,
        ),
        Profile(
            "links",
            gates=(1, 3),
            gate_cuts=1.0,
            datacenter_cuts=3.0,
            datacenter_crashes=1.0,
            cancels=0.5,
        ),
        Profile(
            "everything",
            gates=(1, 3, 5),
            gate_crashes=1.5,
            gate_pauses=1.0,
            gate_cuts=1.0,
            datacenter_crashes=1.0,
            datacenter_cuts=2.0,
            transfers=1.0,
            refusals=0.2,
            cancels=0.4,
            removals=0.3,
            queues=0.1,
            changes=0.5,
        ),
        Profile(
            "lost",
            datacenter_cuts=1.5,
            cuts_s=(120.0, 400.0),
            faults_s=420.0,
            gate_crashes=0.5,
            is_lossless=False,
            ended_within_s=420.0,
        ),
    )
}
