"""Who gets which cores of the datacenter: one allocator for all job leaders.

It owns nothing durable. The workers are the truth about their cores: each tells what it has
and holds, and after a change of allocator nothing is granted before all of them have told
the new one. A grant reserves cores until the worker is seen to hold them; the worker has
the last word, and whoever was refused asks again.

How many cores a workflow gets follows from its priority and the *total* pool (`allocation`).
Asks are served in the order of the queue (`queueing`); smaller ones may pass a large one that
does not fit, until it has waited long enough. The queue is bounded. Pure: time is an argument,
answers are returned or handed back as `Tell`.

Vocabulary: an *ask* waits, a *grant* is what it got, a *share* is a worker's part of it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hyperscale.jobs.allocator.queue import (
    NO_WORKERS,
    Ask,
    Named,
    Run,
    Standing,
    capacity_exceeded,
    no_worker_for,
)
from hyperscale.jobs.messages import (
    SHARED_MAX,
    AnnounceCores,
    AskState,
    HeldCores,
    ReleaseCores,
    RequestCores,
    RequestCoresReply,
    WorkerShare,
)
from hyperscale.jobs.provisioner import Provisioner

SETTLE_S = 0.03
"""Whoever asks within this time of the first is served together with it."""
TOGETHER_S = 1.5
"""Workflows of a job that ask in the same moment are waited for so long; asks are repeated
sooner. Otherwise who is heard first would have all the cores."""
FREED_S = 0.25
"""Cores of one workflow come free together within this time: who waits is given all of them,
not the first one alone."""
FORGET_S = 5.0
"""An ask not repeated for this long has no leader any more."""
RESERVE_S = 15.0
"""A grant that no worker is seen to hold by then was not used."""
REBUILD_S = 5.0
"""A worker that has not told its cores by then is not waited for, except by the exclusive."""
AGE_S = 30.0
"""Waiting so long lifts an ask by one rank; after it, none passes it that came later."""
QUEUE_MAX = 1000
AT_ONCE = 20_000
"""Asks times workers: beyond it, not every word of one worker has all of them looked at."""
SOON_S = 0.05
RECOVERED_AT_ONCE = 200
"""Lost parts that are given cores in one turn; a thousand workers may be lost together."""


@dataclass(frozen=True, slots=True)
class Tell:
    """An answer that was not there when it was asked for. May get lost: leaders ask again."""

    leader: str
    answer: RequestCoresReply


_Share = tuple[str, Run]  # the ask it is reserved for, and which of its runs


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Cores that their worker is not seen to hold yet."""

    cores: int
    shared: bool


@dataclass(slots=True)
class _Worker:
    total: int
    incarnation: int
    version: int
    is_draining: bool
    held: tuple[HeldCores, ...]

    def says_the_same(self, other: "_Worker") -> bool:
        return (self.total, self.is_draining, self.held) == (
            other.total,
            other.is_draining,
            other.held,
        )

    def taken(self) -> int:
        return sum(held.cores for held in self.held if not held.shared)

    def executors(self) -> int:
        return sum(held.cores for held in self.held)


class Allocator:
    """The pool and the queue. Only the leader of the management group has it lead."""

    def __init__(self, *, queue_max: int = QUEUE_MAX, age_s: float = AGE_S) -> None:
        self._queue_max = queue_max
        self._age_s = age_s
        self._is_leading = False
        self._since_s = 0.0
        self._workers: dict[str, _Worker] = {}  # those that have told this allocator
        self._silent: set[str] = set()  # those that are there and have not
        self._lost: dict[str, int] = {}  # the incarnations of those that are not there any more
        self._asks: dict[str, Ask] = {}
        self._terms: dict[int, int] = {}  # of leaders, by group: one that was deposed asks in vain
        self._reserved: dict[str, dict[_Share, _Reserved]] = {}  # by worker
        self._orders = 0
        self._settled_s = float("-inf")  # of those that came last
        self._serve_at_s = float("inf")
        self._freed_s: float | None = None  # since when cores come free that somebody waits for
        self._standing: Standing | None = None

    # --- who leads, who is there ----------------------------------------------------------

    def lead(self, workers: Iterable[str], *, now_s: float) -> None:
        """This node is the allocator now. What it may have known before is worth nothing."""
        self._is_leading = True
        self._since_s = now_s
        self._workers.clear()
        self._lost.clear()
        self._silent = set(workers)
        self._asks.clear()
        self._terms.clear()
        self._reserved.clear()
        self._standing = None
        self._freed_s = None
        self._serve_at_s = now_s

    def follow(self) -> None:
        self._is_leading = False
        self._workers.clear()
        self._silent.clear()
        self._asks.clear()
        self._reserved.clear()
        self._serve_at_s = float("inf")

    @property
    def is_leading(self) -> bool:
        return self._is_leading

    def worker_up(self, worker: str, *, now_s: float) -> list[Tell]:
        """Membership sees it. Its cores count once it has told of them."""
        self._lost.pop(worker, None)
        if worker not in self._workers:
            self._silent.add(worker)
        return self._serve_soon(now_s)

    def worker_down(self, worker: str, *, now_s: float) -> list[Tell]:
        """Membership has given it up: its cores are gone, and nobody waits for it."""
        self._silent.discard(worker)
        known = self._workers.pop(worker, None)
        if known is not None:
            self._lost[worker] = known.incarnation
        for share in list(self._reserved.get(worker, ())):
            self._unreserve(worker, share)
        return self._serve_soon(now_s)

    def told(self, cores: AnnounceCores, *, now_s: float) -> list[Tell]:
        """A worker says what it has and holds."""
        if not self._is_leading:
            return []
        known = self._workers.get(cores.worker)
        if known is not None and (cores.incarnation, cores.version) < (
            known.incarnation,
            known.version,
        ):
            return []  # overtaken on the way
        if cores.incarnation <= self._lost.get(cores.worker, -1):
            return []  # by its end
        self._silent.discard(cores.worker)
        told = _Worker(
            cores.total, cores.incarnation, cores.version, cores.draining, tuple(cores.held)
        )
        self._workers[cores.worker] = told
        if known is not None:
            if told.says_the_same(known) and cores.worker not in self._reserved:
                return []  # each does so every second
            if told.taken() < known.taken() and self.waiting:
                self._freed_s = now_s if self._freed_s is None else self._freed_s
        held = {(h.run.job, h.run.workflow, h.run.part) for h in cores.held}
        for share in list(self._reserved.get(cores.worker, ())):
            if share[1] in held:
                self._asks[share[0]].is_held = True
                self._unreserve(cores.worker, share)
        return self._serve_soon(now_s)

    # --- asks -----------------------------------------------------------------------------

    def ask(self, wish: RequestCores, *, now_s: float) -> RequestCoresReply:
        """Takes or renews an ask. A grant comes with this answer, or later as a `Tell`."""
        if not self._is_leading or not self._heeds(wish):
            return RequestCoresReply(ask=wish.ask, state=AskState.NOT_ALLOCATOR)
        known = self._asks.get(wish.ask)
        if known is not None and known.answer is not None:
            if known.reserved or known.is_held:
                known.heard_s = now_s
                return known.answer
            # All of it is gone with its workers: asked again, it is another wish.
            self._drop(wish.ask)
            known = None
        if known is None:
            waiting = self.waiting
            if waiting >= self._queue_max and not wish.is_recovery:
                return RequestCoresReply(
                    ask=wish.ask,
                    state=AskState.EXCEEDED,
                    position=waiting + 1,
                    queue=waiting,
                    pool=self.pool,
                    retry_after_s=min(60.0, 1.0 + waiting / 100),
                    reason=capacity_exceeded(waiting),
                )
            self._orders += 1
            since_s = now_s - max(0.0, wish.waited_s)
            if now_s >= self._settled_s:
                self._settled_s = now_s + SETTLE_S
            known = Ask(wish, since_s, now_s, self._settled_s, now_s, self._orders)
            self._asks[wish.ask] = known
            if self._standing is not None:
                self._standing.join(known.place(now_s, self._age_s))
            self._serve_at_s = min(self._serve_at_s, self._settled_s)
        known.wish, known.heard_s = wish, now_s
        return self._waiting_answer(known, now_s)

    def release(self, release: ReleaseCores, *, now_s: float) -> list[Tell]:
        """A wish or a grant is over, or a part of a grant."""
        ask = self._asks.get(release.ask)
        if not self._heeds(release) or ask is None:
            return []
        if release.part < 0:
            self._drop(release.ask)
        else:
            for run, worker in list(ask.reserved.items()):
                if run[2] == release.part:
                    self._unreserve(worker, (release.ask, run))
        return self._serve_soon(now_s)

    def _heeds(self, word: RequestCores | ReleaseCores) -> bool:
        """Hears of the leader whose word it is; false if a later one of its group is known."""
        newest = self._terms[word.group] = max(word.term, self._terms.get(word.group, word.term))
        return word.term == newest

    def tick(self, *, now_s: float) -> list[Tell]:
        """What is due at `wake_at_s`."""
        return self._serve(now_s)

    def wake_at_s(self) -> float:
        return self._serve_at_s

    # --- the pool -------------------------------------------------------------------------

    @property
    def pool(self) -> int:
        """All cores of all workers that take work, busy or not."""
        return sum(worker.total for worker in self._workers.values() if not worker.is_draining)

    @property
    def waiting(self) -> int:
        return sum(ask.answer is None for ask in self._asks.values())

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, self._queue_max - self.waiting)

    @property
    def is_rebuilt(self) -> bool:
        """Whether every worker that is there has told this allocator what it holds."""
        return self._is_leading and not self._silent

    def free(self) -> dict[str, int]:
        """Cores nobody has or was promised, by worker; those that take no work left out."""
        return {
            name: max(0, worker.total - worker.taken() - self._promised(name, shared=False))
            for name, worker in self._workers.items()
            if not worker.is_draining
        }

    def holds(self) -> dict[str, tuple[int, Sequence[HeldCores]]]:
        """Cores and what is on them, as each worker has told this allocator."""
        return {name: (worker.total, worker.held) for name, worker in self._workers.items()}

    def _promised(self, worker: str, *, shared: bool) -> int:
        """Cores of it that are reserved, and with `shared` those beside others too."""
        reserved = self._reserved.get(worker, {}).values()
        return sum(each.cores for each in reserved if shared or not each.shared)

    def _unreserve(self, worker: str, share: _Share) -> None:
        ask, run = share
        del self._asks[ask].reserved[run]
        del self._reserved[worker][share]
        if not self._reserved[worker]:
            del self._reserved[worker]

    def _drop(self, name: str) -> None:
        """The end of an ask, with all that is reserved for it."""
        for run, worker in list(self._asks[name].reserved.items()):
            self._unreserve(worker, (name, run))
        del self._asks[name]

    def _knows_all(self, now_s: float) -> bool:
        """Whether nothing can be under way that an earlier allocator has granted."""
        return self.is_rebuilt and now_s >= self._since_s + RESERVE_S

    def _may_grant(self, now_s: float) -> bool:
        return self._is_leading and (self.is_rebuilt or now_s >= self._since_s + REBUILD_S)

    # --- serving --------------------------------------------------------------------------

    def _serve_soon(self, now_s: float) -> list[Tell]:
        """Now, or where that would take long, with what else is told meanwhile."""
        if len(self._asks) * len(self._workers) <= AT_ONCE:
            return self._serve(now_s)
        self._serve_at_s = min(self._serve_at_s, now_s + SOON_S)
        return []

    def _serve(self, now_s: float) -> list[Tell]:
        """Grants what can be granted."""
        if not self._is_leading:
            return []
        self._standing = None
        self._forget(now_s)
        queue = self._queue(now_s)
        queue, settling = self._settled(queue, now_s)
        self._serve_at_s = now_s + 1.0
        if not self._may_grant(now_s):
            self._serve_at_s = min(self._serve_at_s, self._since_s + REBUILD_S)
            return []
        self._serve_at_s = min([self._serve_at_s, *settling])
        lost = [ask for ask in queue if ask.wish.is_recovery]
        tells = [Tell(ask.wish.leader, answer) for ask, answer in self._recover(lost, now_s)]
        if len(tells) == RECOVERED_AT_ONCE:
            # The rest of them, before anything new is given cores.
            self._serve_at_s = min(self._serve_at_s, now_s + SOON_S)
            return tells
        if self._freed_s is not None and now_s < self._freed_s + FREED_S:
            self._serve_at_s = min(self._serve_at_s, self._freed_s + FREED_S)
            return tells
        self._freed_s = None
        seats = [ask for ask in queue if not ask.wish.is_recovery]
        tells += [Tell(ask.wish.leader, answer) for ask, answer in self._seat(seats, now_s)]
        return tells

    def _forget(self, now_s: float) -> None:
        """Asks without a leader, and grants nobody used."""
        for name, ask in list(self._asks.items()):
            is_unused = ask.answer is not None and now_s >= ask.heard_s + RESERVE_S
            is_orphan = ask.answer is None and now_s >= ask.heard_s + FORGET_S
            if is_unused or is_orphan:
                self._drop(name)

    def _queue(self, now_s: float) -> list[Ask]:
        waiting = [ask for ask in self._asks.values() if ask.answer is None]
        return sorted(waiting, key=lambda ask: ask.place(now_s, self._age_s))

    def _settled(self, queue: Sequence[Ask], now_s: float) -> tuple[list[Ask], list[float]]:
        """Those whose job has asked for all it wants, and until when the others are waited for."""
        heard = Counter(
            ask.wish.job
            for ask in self._asks.values()
            if not ask.wish.is_recovery and (ask.answer is None or ask.reserved)
        )
        until_s: dict[str, float] = {}  # by job, of what was lost by ask
        for ask in queue:
            wish = ask.wish
            is_missed = not wish.is_recovery and wish.together > heard[wish.job]
            ask_s = ask.came_s + TOGETHER_S if is_missed else ask.settled_s
            until_s[_served_as(ask)] = max(ask_s, until_s.get(_served_as(ask), ask_s))
        settled = [ask for ask in queue if now_s >= until_s[_served_as(ask)]]
        return settled, [each_s for each_s in until_s.values() if now_s < each_s]

    def _seat(self, queue: Sequence[Ask], now_s: float) -> list[tuple[Ask, RequestCoresReply]]:
        """Those of the queue that start now: their least cores in order, then what is spare."""
        pool = self.pool
        if not pool or not queue or self._exclusive_now() is not None:
            return []
        free = self.free()
        provisioner = Provisioner(pool)
        is_idle = not self._running()
        left = sum(free.values())
        chosen: list[Ask] = []
        for ask in queue:
            if not left:
                break
            least, _ = provisioner.range_of(ask.claim)
            if ask.is_exclusive:
                fits = is_idle and not chosen and self._knows_all(now_s)
            else:
                fits = least <= left and not any(other.is_exclusive for other in chosen)
            if fits:
                chosen.append(ask)
                left -= least
            elif ask.has_waited(now_s, self._age_s):
                break  # what comes free from here on is for it
        wishes = {ask.wish.ask: ask for ask in chosen}
        claims = [ask.claim for ask in chosen]
        granted = []
        for grant in provisioner.grant(claims, busy=pool - sum(free.values())):
            ask = wishes[grant.name]
            shares = place(grant.threads, free)
            for share in shares:
                free[share.worker] -= share.cores
            granted.append((ask, self._grant(ask, shares, shared=False, now_s=now_s)))
        return granted

    def _recover(self, lost: Sequence[Ask], now_s: float) -> list[tuple[Ask, RequestCoresReply]]:
        """Load that was there must come back at once: on free cores, else beside others."""
        if not lost:
            return []
        free = self.free()
        workers = {name: self._workers[name] for name in free}
        executors = {
            name: worker.executors() + self._promised(name, shared=True)
            for name, worker in workers.items()
        }
        alone = self._exclusive_jobs()
        granted: list[tuple[Ask, RequestCoresReply]] = []
        hopeless = float("inf")  # no worker can take a part of so many cores
        for ask in lost:
            wish, cores = ask.wish, ask.wish.cores
            if cores >= hopeless or any(job != wish.job for job in alone):
                continue
            if len(granted) == RECOVERED_AT_ONCE:
                break
            fitting = [name for name, left in free.items() if left >= cores]
            beside = [
                name
                for name, worker in workers.items()
                if executors[name] + cores <= worker.total * SHARED_MAX
            ]
            if not fitting and not beside:
                hopeless = cores
                continue
            fitting = [name for name in fitting if name not in wish.exclude]
            beside = [name for name in beside if wish.may_share and name not in wish.exclude]
            if fitting:
                best = min(fitting, key=lambda name: (free[name], name))
                free[best] -= cores
            elif beside:
                best = min(
                    beside,
                    key=lambda name: ((executors[name] + cores) / workers[name].total, name),
                )
            else:
                continue
            executors[best] += cores
            share = WorkerShare(best, cores)
            granted.append((ask, self._grant(ask, [share], shared=not fitting, now_s=now_s)))
        return granted

    def _grant(
        self, ask: Ask, shares: list[WorkerShare], *, shared: bool, now_s: float
    ) -> RequestCoresReply:
        wish = ask.wish
        parts = [wish.part] if wish.part >= 0 else list(range(len(shares)))
        for part, share in zip(parts, shares, strict=True):
            run = (wish.job, wish.workflow, part)
            ask.reserved[run] = share.worker
            of_worker = self._reserved.setdefault(share.worker, {})
            of_worker[wish.ask, run] = _Reserved(share.cores, shared)
        ask.heard_s = now_s
        ask.answer = RequestCoresReply(
            ask=wish.ask,
            state=AskState.GRANTED,
            shares=shares,
            shared=shared,
            pool=self.pool,
        )
        return ask.answer

    # --- waiting --------------------------------------------------------------------------

    def _waiting_answer(self, ask: Ask, now_s: float) -> RequestCoresReply:
        standing = self._standing or self._stand(now_s)
        if not self._may_grant(now_s):
            state, reason = AskState.REBUILDING, standing.until_told(ask)
        elif not standing.pool:
            state, reason = AskState.IMPOSSIBLE, NO_WORKERS
        elif ask.wish.is_recovery and not self._can_recover(ask.wish):
            state, reason = AskState.IMPOSSIBLE, no_worker_for(ask.wish.cores)
        else:
            state, reason = AskState.QUEUED, standing.why(ask, now_s)
        return RequestCoresReply(
            ask=ask.wish.ask,
            state=state,
            position=standing.position(ask.place(now_s, self._age_s)),
            queue=len(standing.places),
            pool=standing.pool,
            reason=reason,
        )

    def _stand(self, now_s: float) -> Standing:
        queue = self._queue(now_s)
        self._standing = Standing(
            places=[ask.place(now_s, self._age_s) for ask in queue],
            first=queue[0],
            pool=self.pool,
            free=sum(self.free().values()),
            alone=self._exclusive_now(),
            running=self._running(),
            silent=sorted(self._silent),
            known_s=self._since_s + RESERVE_S,
        )
        return self._standing

    def _can_recover(self, wish: RequestCores) -> bool:
        """Whether a worker is there that could take the part, were it idle."""
        return any(
            name not in wish.exclude
            and not worker.is_draining
            and wish.cores <= worker.total * (SHARED_MAX if wish.may_share else 1)
            for name, worker in self._workers.items()
        )

    # --- what runs ------------------------------------------------------------------------

    def _exclusive_now(self) -> Named | None:
        """What is to have nothing beside it, and has begun."""
        for worker in self._workers.values():
            for held in worker.held:
                if held.exclusive:
                    return held.run.job, held.run.workflow
        for ask in self._asks.values():
            if ask.is_of_exclusive and (ask.reserved or ask.wish.is_recovery):
                return ask.named
        return None

    def _exclusive_jobs(self) -> set[str]:
        """Those that have the datacenter for themselves, or were promised it."""
        return {
            held.run.job
            for worker in self._workers.values()
            for held in worker.held
            if held.exclusive
        } | {ask.wish.job for ask in self._asks.values() if ask.is_exclusive and ask.reserved}

    def _running(self) -> list[Named]:
        """Whatever holds cores, or was promised some."""
        held = [
            (held.run.job, held.run.workflow)
            for worker in self._workers.values()
            for held in worker.held
        ]
        promised = [ask.named for ask in self._asks.values() if ask.reserved]
        return list(dict.fromkeys([*held, *promised]))


def place(cores: int, free: dict[str, int]) -> list[WorkerShare]:
    """`cores` on the fewest workers that have them free: the emptiest first, the last one the
    fullest that still fits, so that large holes stay whole. Ties fall by name."""
    left = {name: count for name, count in free.items() if count > 0}
    if sum(left.values()) < cores:
        raise ValueError(f"{cores} cores do not fit into {sum(left.values())}")
    shares = []
    while cores:
        fitting = [name for name, count in left.items() if count >= cores]
        if fitting:
            best = min(fitting, key=lambda name: (left[name], name))
            shares.append(WorkerShare(best, cores))
            break
        largest = min(left, key=lambda name: (-left[name], name))
        shares.append(WorkerShare(largest, left[largest]))
        cores -= left.pop(largest)
    return shares


def _served_as(ask: Ask) -> str:
    """The new workflows of a job are served as one; a part that was lost waits for nobody."""
    return ask.wish.ask if ask.wish.is_recovery else ask.wish.job
