"""The cores of all workers: what each worker announced, and what is reserved on it.

Workers are the source of truth about their cores. A new allocator knows no worker until the
worker has announced its cores. Reservations cover the time between a grant and the
announcement in which the worker holds the granted cores.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hyperscale.jobs.messages import AnnounceCores, HeldCores


class ReservationKey(NamedTuple):
    """The share of a grant that a reservation is for."""

    request_id: str
    job: str
    workflow: str
    part: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Granted cores that their worker does not yet announce as held."""

    key: ReservationKey
    worker: str
    cores: int
    shared: bool  # beside other attempts: takes no core of its own


class Reservations:
    """All reservations, by worker and by request."""

    def __init__(self) -> None:
        self._by_worker: dict[str, dict[ReservationKey, Reservation]] = {}
        self._by_request: dict[str, dict[ReservationKey, Reservation]] = {}

    def add(self, reservation: Reservation) -> None:
        """Store a reservation."""
        key = reservation.key
        self._by_worker.setdefault(reservation.worker, {})[key] = reservation
        self._by_request.setdefault(key.request_id, {})[key] = reservation

    def remove(self, reservation: Reservation) -> None:
        """Delete a reservation: its cores are held, released or lost with their worker."""
        key = reservation.key
        for index, name in (
            (self._by_worker, reservation.worker),
            (self._by_request, key.request_id),
        ):
            del index[name][key]
            if not index[name]:
                del index[name]

    def of_request(self, request_id: str) -> list[Reservation]:
        """Return the reservations of a request."""
        return list(self._by_request.get(request_id, {}).values())

    def on_worker(self, worker: str) -> list[Reservation]:
        """Return the reservations on a worker."""
        return list(self._by_worker.get(worker, {}).values())

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
        self._workers: dict[str, AnnounceCores] = {}  # the last announcement of each
        self._silent: set[str] = set(workers)  # alive, but not announced yet
        self._lost: dict[str, int] = {}  # dead worker -> its last announced incarnation

    # --- workers ----------------------------------------------------------------------------

    def worker_up(self, worker: str) -> None:
        """Expect an announcement of a worker that is alive."""
        self._lost.pop(worker, None)
        if worker not in self._workers:
            self._silent.add(worker)

    def worker_down(self, worker: str) -> None:
        """Remove the cores and the reservations of a dead worker."""
        self._silent.discard(worker)
        known = self._workers.pop(worker, None)
        if known is not None:
            self._lost[worker] = known.incarnation
        for reservation in self.reservations.on_worker(worker):
            self.reservations.remove(reservation)

    def announce(self, cores: AnnounceCores) -> Announcement | None:
        """Store a worker's announcement and drop the reservations it fulfils.

        Return None if the announcement is outdated or only repeats the last one.
        """
        worker = cores.worker
        known = self._workers.get(worker)
        if known is not None and (cores.incarnation, cores.version) < (
            known.incarnation,
            known.version,
        ):
            return None  # a later announcement arrived first
        if cores.incarnation <= self._lost.get(worker, -1):
            return None  # sent before the worker died
        self._silent.discard(worker)
        self._workers[worker] = cores
        reserved = self.reservations.on_worker(worker)
        if known is not None and not reserved and _is_same_state(cores, known):
            return None
        held = {
            (held.attempt_id.job, held.attempt_id.workflow, held.attempt_id.part)
            for held in cores.held
        }
        now_held = [each for each in reserved if each.key[1:] in held]
        for reservation in now_held:
            self.reservations.remove(reservation)
        return Announcement(
            freed_cores=known is not None and _taken(cores) < _taken(known),
            now_held=[each.key.request_id for each in now_held],
        )

    # --- reads ------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Cores of all workers that accept work, free or not."""
        return sum(worker.total for worker in self._workers.values() if not worker.draining)

    @property
    def worker_count(self) -> int:
        """Number of workers that have announced their cores."""
        return len(self._workers)

    @property
    def silent(self) -> list[str]:
        """Workers that are alive and have not announced their cores to this allocator."""
        return sorted(self._silent)

    @property
    def is_complete(self) -> bool:
        """True if every worker that is alive has announced its cores."""
        return not self._silent

    def accepting(self) -> dict[str, AnnounceCores]:
        """Return the workers that accept work."""
        return {name: worker for name, worker in self._workers.items() if not worker.draining}

    def free(self) -> dict[str, int]:
        """Return the cores of each accepting worker that are neither held nor reserved."""
        return {
            name: max(0, worker.total - _taken(worker) - self._reserved(name))
            for name, worker in self.accepting().items()
        }

    def executors(self) -> dict[str, int]:
        """Return the executors of each accepting worker, running or reserved, shared or not."""
        return {
            name: sum(held.cores for held in worker.held)
            + sum(reservation.cores for reservation in self.reservations.on_worker(name))
            for name, worker in self.accepting().items()
        }

    def holds(self) -> dict[str, tuple[int, Sequence[HeldCores]]]:
        """Return each worker's number of cores and what holds them, as announced."""
        return {name: (worker.total, worker.held) for name, worker in self._workers.items()}

    def held(self) -> Iterator[HeldCores]:
        """Iterate over what holds cores on any worker."""
        for worker in self._workers.values():
            yield from worker.held

    def _reserved(self, worker: str) -> int:
        """Return the reserved cores of a worker; shared reservations take none."""
        return sum(each.cores for each in self.reservations.on_worker(worker) if not each.shared)


def _taken(cores: AnnounceCores) -> int:
    """Return the cores held by attempts; attempts that run beside others take none."""
    return sum(held.cores for held in cores.held if not held.shared)


def _is_same_state(one: AnnounceCores, other: AnnounceCores) -> bool:
    """Return True if only the version of the announcements differs."""
    return (one.total, one.draining, one.held) == (other.total, other.draining, other.held)
