"""The cores of all workers: what each worker announced, and what is reserved on it.

Workers are the source of truth about their cores. A new allocator knows no worker until the
worker has announced its cores. Reservations cover the time between a grant and the
announcement in which the worker holds the granted cores.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from hyperscale.jobs.messages import AnnounceCores, HeldCores
from hyperscale.plan.placement import ANYWHERE, Placement, why_unmet


class Reservation(NamedTuple):
    """A share of a grant whose cores their worker does not yet announce as held."""

    request_id: str
    job: str
    workflow: str
    part: int
    worker: str
    cores: int
    shared: bool  # beside other attempts: takes no core of its own
    within_job: bool = False  # beside attempts of the same job


class Reservations:
    """All reservations, by worker and by request."""

    def __init__(self) -> None:
        # Dictionaries without values, because they keep the order of insertion.
        self._by_worker: dict[str, dict[Reservation, None]] = {}
        self._by_request: dict[str, dict[Reservation, None]] = {}

    def add(self, reservation: Reservation) -> None:
        self._by_worker.setdefault(reservation.worker, {})[reservation] = None
        self._by_request.setdefault(reservation.request_id, {})[reservation] = None

    def remove(self, reservations: Iterable[Reservation]) -> None:
        """Delete reservations whose cores are held, released or lost with their worker."""
        for each in reservations:
            for index, key in ((self._by_worker, each.worker), (self._by_request, each.request_id)):
                del index[key][each]
                if not index[key]:
                    del index[key]

    def of_request(self, request_id: str) -> list[Reservation]:
        return list(self._by_request.get(request_id, ()))

    def on_worker(self, worker: str) -> list[Reservation]:
        return list(self._by_worker.get(worker, ()))

    def has_request(self, request_id: str) -> bool:
        """Return True if the request has a reservation on any worker."""
        return request_id in self._by_request


class Announcement(NamedTuple):
    """What a worker's announcement changed."""

    freed_cores: bool
    now_held: list[str]  # ids of requests of which the worker now holds a share


class CorePool:
    """Announced cores and reservations of the workers of a datacenter."""

    def __init__(self, workers: Iterable[str] = ()) -> None:
        self.reservations = Reservations()
        self.workers: dict[str, AnnounceCores] = {}  # the last announcement of each
        self.silent = set(workers)  # alive, but not announced yet
        self._lost: dict[str, int] = {}  # dead worker -> its last announced incarnation

    # --- workers ----------------------------------------------------------------------------

    def worker_up(self, worker: str) -> None:
        """Expect an announcement of a worker that is alive."""
        self._lost.pop(worker, None)
        if worker not in self.workers:
            self.silent.add(worker)

    def worker_down(self, worker: str) -> None:
        """Remove the cores and the reservations of a dead worker."""
        self.silent.discard(worker)
        known = self.workers.pop(worker, None)
        if known is not None:
            self._lost[worker] = known.incarnation
        self.reservations.remove(self.reservations.on_worker(worker))

    def announce(self, cores: AnnounceCores) -> Announcement | None:
        """Store a worker's announcement and drop the reservations it fulfils.

        Return None if the announcement is outdated or only repeats the last one.
        """
        worker = cores.worker
        known = self.workers.get(worker)
        if known is not None and (cores.incarnation, cores.version) < (
            known.incarnation,
            known.version,
        ):
            return None  # a later announcement arrived first
        if cores.incarnation <= self._lost.get(worker, -1):
            return None  # sent before the worker died
        self.silent.discard(worker)
        self.workers[worker] = cores
        reserved = self.reservations.on_worker(worker)
        if known is not None and not reserved and _is_same_state(cores, known):
            return None
        held = {
            (held.attempt_id.job, held.attempt_id.workflow, held.attempt_id.part)
            for held in cores.held
        }
        now_held = [each for each in reserved if (each.job, each.workflow, each.part) in held]
        self.reservations.remove(now_held)
        return Announcement(
            freed_cores=known is not None and taken_cores(cores.held) < taken_cores(known.held),
            now_held=[each.request_id for each in now_held],
        )

    # --- reads ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Cores of all workers that accept work, free or not."""
        return sum(worker.total for worker in self.workers.values() if worker.accepts_work)

    def accepting(self) -> dict[str, AnnounceCores]:
        """Return the workers that accept work."""
        return {name: worker for name, worker in self.workers.items() if worker.accepts_work}

    def meeting(self, placement: Placement) -> list[str]:
        """Return the accepting workers whose labels meet a placement."""
        workers = self.accepting()
        return [name for name, worker in workers.items() if placement.is_met_by(worker.labels)]

    def not_meeting(self, placement: Placement) -> frozenset[str]:
        """Return the workers that must not get a part of this placement."""
        if placement == ANYWHERE:
            return frozenset()
        return frozenset(self.workers).difference(self.meeting(placement))

    def why_unmet(self, placement: Placement) -> str:
        """Say that no worker which stays can ever meet a placement; empty if one can."""
        if placement == ANYWHERE:
            return ""
        staying = [worker.labels for worker in self.workers.values() if not worker.draining]
        if any(placement.is_met_by(labels) for labels in staying):
            return ""
        return why_unmet(placement, staying)

    def size_of(self, workers: Iterable[str]) -> int:
        """Cores of these workers, free or not."""
        return sum(self.workers[name].total for name in workers)

    def cores_of_workflow(self, worker: str, job: str, workflow: str) -> int:
        """Return the cores, or executors, of a workflow on a worker, held or reserved."""
        held = sum(
            each.cores
            for each in self.workers[worker].held
            if (each.attempt_id.job, each.attempt_id.workflow) == (job, workflow)
        )
        reserved = self.reservations.on_worker(worker)
        return held + sum(
            each.cores for each in reserved if (each.job, each.workflow) == (job, workflow)
        )

    def free(self) -> dict[str, int]:
        """Return the cores of each accepting worker that are neither held nor reserved."""
        return {
            name: max(0, worker.total - self._taken(name, worker))
            for name, worker in self.accepting().items()
        }

    def _taken(self, name: str, worker: AnnounceCores) -> int:
        reserved = self.reservations.on_worker(name)
        if not reserved:
            return taken_cores(worker.held)
        cores = _cores_by_job(worker.held, reserved)
        # The worker gives a core to an attempt that was to share one of its job, if the job has
        # left it meanwhile.
        jobs = {each.job for each in reserved if each.within_job}
        coreless = sum(not cores.get(job) for job in jobs)
        return sum(cores.values()) + coreless

    def executors(self) -> dict[str, int]:
        """Return the executors of each accepting worker, running or reserved, except those that
        share cores of their own job."""
        return {
            name: sum(
                each.cores for each in self._on(name) if not (each.shared and each.within_job)
            )
            for name in self.accepting()
        }

    def shared_within_jobs(self) -> dict[str, int]:
        """Return the executors of each accepting worker that were given cores of their own job to
        share, whether they have inherited one since or not."""
        return {
            name: sum(each.cores for each in self._on(name) if each.within_job)
            for name in self.accepting()
        }

    def _on(self, worker: str) -> "list[HeldCores | Reservation]":
        return [*self.workers[worker].held, *self.reservations.on_worker(worker)]

    def workers_by_job(self) -> dict[str, set[str]]:
        """Return the accepting workers on which each job has a core, held or reserved."""
        found: dict[str, set[str]] = {}
        for name, worker in self.accepting().items():
            for job in _cores_by_job(worker.held, self.reservations.on_worker(name)):
                found.setdefault(job, set()).add(name)
        return found

    def held(self) -> Iterator[HeldCores]:
        """Iterate over what holds cores on any worker."""
        for worker in self.workers.values():
            yield from worker.held


def taken_cores(held: Iterable[HeldCores]) -> int:
    """Return the cores held by attempts; attempts that run beside others take none."""
    return sum(each.cores for each in held if not each.shared)


def _cores_by_job(held: Iterable[HeldCores], reserved: Iterable[Reservation]) -> dict[str, int]:
    """Return the cores of each job that has any."""
    cores: Counter[str] = Counter()
    for each in held:
        if not each.shared:
            cores[each.attempt_id.job] += each.cores
    for reservation in reserved:
        if not reservation.shared:
            cores[reservation.job] += reservation.cores
    return cores


def _is_same_state(one: AnnounceCores, other: AnnounceCores) -> bool:
    """Return True if only the version of the announcements differs."""
    return replace(one, version=other.version) == other
