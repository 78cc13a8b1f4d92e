"""Announcements of a worker's cores to the allocator: on every change, and each second."""

from hyperscale.jobs.messages import AnnounceCores, HeldCores

ANNOUNCE_CORES_EVERY_S = 1.0


class CoreAnnouncements:
    """The last announcement, and when it is repeated."""

    def __init__(self, worker: str, *, incarnation: int, cores: int, now_s: float) -> None:
        self._last = AnnounceCores(worker=worker, incarnation=incarnation, version=0, total=cores)
        self._repeat_at_s = now_s

    def wake_at_s(self) -> float:
        """Return when the announcement is repeated."""
        return self._repeat_at_s

    def update(
        self, held: list[HeldCores], *, is_draining: bool, now_s: float
    ) -> AnnounceCores | None:
        """Return the next announcement, if one is due or anything has changed."""
        last = self._last
        if (held, is_draining) == (last.held, last.draining) and now_s < self._repeat_at_s:
            return None
        self._repeat_at_s = now_s + ANNOUNCE_CORES_EVERY_S
        self._last = AnnounceCores(
            worker=last.worker,
            incarnation=last.incarnation,
            version=last.version + 1,
            total=last.total,
            held=held,
            draining=is_draining,
        )
        return self._last
