"""The cores of all workers: what each worker announced, and what is reserved on it.

Workers are the source of truth about their cores. A new allocator knows no worker until the
worker has announced its cores. Reservations cover the time between a grant and the
announcement in which the worker holds the granted cores.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hyperscale.jobs.messages import AnnounceCores, HeldCores


class Reservation(NamedTuple):
    """A share of a grant whose cores their worker does not yet announce as held."""

    request_id: str
    job: str
    workflow: str
    part: int
    worker: str
    cores: int
    shared: bool  # beside other attempts: takes no core of its own


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
            freed_cores=known is not None and _taken(cores) < _taken(known),
            now_held=[each.request_id for each in now_held],
        )

    # --- reads ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Cores of all workers that accept work, free or not."""
        return sum(worker.total for worker in self.workers.values() if not worker.draining)

    def accepting(self) -> dict[str, AnnounceCores]:
        """Return the workers that accept work."""
        return {name: worker for name, worker in self.workers.items() if not worker.draining}

    def free(self) -> dict[str, int]:
        """Return the cores of each accepting worker that are neither held nor reserved."""
        return {
            name: max(
                0,
                worker.total
                - _taken(worker)
                - sum(each.cores for each in self.reservations.on_worker(name) if not each.shared),
            )
            for name, worker in self.accepting().items()
        }

    def executors(self) -> dict[str, int]:
        """Return the executors of each accepting worker, running or reserved, shared or not."""
        return {
            name: sum(held.cores for held in worker.held)
            + sum(reservation.cores for reservation in self.reservations.on_worker(name))
            for name, worker in self.accepting().items()
        }

    def held(self) -> Iterator[HeldCores]:
        """Iterate over what holds cores on any worker."""
        for worker in self.workers.values():
            yield from worker.held


def _taken(cores: AnnounceCores) -> int:
    """Return the cores held by attempts; attempts that run beside others take none."""
    return sum(held.cores for held in cores.held if not held.shared)


def _is_same_state(one: AnnounceCores, other: AnnounceCores) -> bool:
    """Return True if only the version of the announcements differs."""
    return (one.total, one.draining, one.held) == (other.total, other.draining, other.held)
