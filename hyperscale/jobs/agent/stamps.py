"""Stamps: readings of the worker's clock that job leaders return with their commands."""


class StampClock:
    """The worker's clock in milliseconds; every start of the worker continues at a later value.

    A stamp counts from the worker's incarnation, so that a stamp taken before a restart, or
    before a reboot, lies before the start of this process.
    """

    def __init__(self, incarnation: int, *, now_s: float) -> None:
        self.incarnation = incarnation
        self._began_s = now_s

    def stamp_ms(self, now_s: float) -> int:
        """Return the stamp of an instant."""
        return self.incarnation + self.alive_ms(now_s)

    def alive_ms(self, now_s: float) -> int:
        """Return how long this process has been running."""
        return int((now_s - self._began_s) * 1000)

    def instant_s(self, stamp_ms: int) -> float:
        """Return the instant of a stamp."""
        return self._began_s + (stamp_ms - self.incarnation) / 1000
