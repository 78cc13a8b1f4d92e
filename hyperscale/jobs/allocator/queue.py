"""Those that wait for cores: in which order they are served, and why one waits, in words.

An *ask* has a place in the queue by its rank, which grows while it waits, then first come
first served. A `Standing` is the queue and the pool at one moment, as far as whoever waits is
told of them: its position and its reason. What is granted, `allocator` decides.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from hyperscale.jobs.messages import RequestCores, RequestCoresReply
from hyperscale.jobs.provisioner import RANK, Claim, Provisioner
from hyperscale.plan import Priority

_RECOVERY_RANK = 100  # before all others, however long they have waited

Run = tuple[str, str, int]  # job, workflow, part
Named = tuple[str, str]  # job, workflow
Place = tuple[float, float, int]  # rank, then since when it waits, then in the order of asking


@dataclass(slots=True)
class Ask:
    wish: RequestCores
    since_s: float  # it waits, also with an earlier allocator
    came_s: float
    settled_s: float  # when it is served at the soonest, with those that came meanwhile
    heard_s: float
    order: int
    answer: RequestCoresReply | None = None  # once granted
    is_held: bool = False  # a worker has been seen to hold of it
    reserved: dict[Run, str] = field(default_factory=dict)  # on which worker

    @property
    def claim(self) -> Claim:
        wish = self.wish
        return Claim(wish.ask, wish.priority, wish.is_test, wish.vus)

    @property
    def named(self) -> Named:
        return self.wish.job, self.wish.workflow

    @property
    def is_exclusive(self) -> bool:
        """Whether it waits for the pool to be empty; a part of such a workflow, lost, does not."""
        return self.is_of_exclusive and not self.wish.is_recovery

    @property
    def is_of_exclusive(self) -> bool:
        return self.wish.is_test and self.wish.priority is Priority.EXCLUSIVE

    def rank(self, now_s: float, age_s: float) -> float:
        if self.wish.is_recovery:
            return _RECOVERY_RANK
        # Non-test workflows are short and others wait for them.
        base = RANK[self.wish.priority] if self.wish.is_test else len(RANK)
        return base + int((now_s - self.since_s) / age_s)

    def place(self, now_s: float, age_s: float) -> Place:
        """The smaller, the sooner it is served."""
        return -self.rank(now_s, age_s), self.since_s, self.order

    def has_waited(self, now_s: float, age_s: float) -> bool:
        """Whether it has waited so long that nothing passes it any more."""
        return now_s >= self.since_s + age_s


@dataclass(slots=True)
class Standing:
    """What those that wait are told, made once for all of them: each asks every second."""

    places: list[Place]  # sorted
    first: Ask
    pool: int
    free: int
    alone: Named | None  # what is to have nothing beside it, and has begun
    running: list[Named]
    silent: list[str]  # workers that have not told this allocator what they hold
    known_s: float  # from here on nothing can be under way that an earlier allocator granted

    def join(self, place: Place) -> None:
        insort(self.places, place)

    def position(self, place: Place) -> int:
        """1 is next."""
        return bisect_left(self.places, place) + 1

    def until_told(self, ask: Ask) -> str:
        """Why nothing at all is granted yet."""
        return f"{ask.wish.workflow} {self._until_told()}"

    def why(self, ask: Ask, now_s: float) -> str:
        """Why this one waits; empty if it has no reason to."""
        reason = self._why(ask, now_s)
        return f"{ask.wish.workflow} {reason}" if reason else ""

    # --- with the workflow as the subject ---------------------------------------------------

    def _why(self, ask: Ask, now_s: float) -> str:
        taken = self.pool - self.free
        busy = f"{taken} of {self.pool} {'is' if taken == 1 else 'are'} busy"
        if ask.wish.is_recovery:
            return f"needs {_cores(ask.wish.cores)} on another worker, and {busy}"
        if self.alone is not None:
            return f"waits for the EXCLUSIVE {_name(self.alone)} to end"
        if ask.is_exclusive and (why := self._why_not_alone(now_s)):
            return why
        least, _ = Provisioner(self.pool).range_of(ask.claim)
        if least > self.free and not ask.is_exclusive:
            return f"needs {_cores(least)}, and {busy}"
        if self.first is ask:
            return ""  # it is about to get its cores
        return f"waits behind {_name(self.first.named)}"

    def _why_not_alone(self, now_s: float) -> str:
        """What keeps an exclusive workflow from having the pool; empty if nothing does."""
        if others := self.running:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f"is EXCLUSIVE and waits for {_name(others[0])}{more} to end"
        if self.silent:
            return self._until_told()
        if now_s < self.known_s:
            left_s = max(1, round(self.known_s - now_s))
            return (
                f"is EXCLUSIVE and waits {left_s} s more, for whatever may have been granted "
                "before the allocator changed"
            )
        return ""

    def _until_told(self) -> str:
        return f"waits for {', '.join(self.silent)} to tell what runs there"


NO_WORKERS = "there are no workers that take work"


def no_worker_for(cores: int) -> str:
    """Why a part whose worker is lost cannot go on elsewhere."""
    return f"no other worker can take a part of {_cores(cores)}"


def capacity_exceeded(waiting: int) -> str:
    """What a submission or an ask beyond the queue is told."""
    return f"capacity exceeded: {waiting:,} workflows wait for cores, and no more may"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _name(workflow: Named) -> str:
    job, name = workflow
    return f"{name} of {job}"
