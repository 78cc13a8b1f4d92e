"""An allocator with workers that hold what they were granted, on a clock the test moves."""

from hyperscale.jobs.allocator.core import RESERVE_S, SETTLE_S, Allocator, Tell
from hyperscale.jobs.messages import (
    AnnounceCores,
    AttemptId,
    HeldCores,
    RequestCores,
    RequestCoresReply,
)
from hyperscale.plan import Priority


class Pool:
    """An allocator with workers that hold what they were granted."""

    def __init__(self, *totals: int, queue_max: int = 1000, told: bool = True) -> None:
        self.now_s = 100.0
        self.totals = {f"w{i}": total for i, total in enumerate(totals)}
        self.held: dict[str, list[HeldCores]] = {name: [] for name in self.totals}
        self.versions = dict.fromkeys(self.totals, 0)
        self.incarnations = dict.fromkeys(self.totals, 1)
        self.draining: set[str] = set()
        self.allocator = Allocator(queue_max=queue_max)
        self.allocator.lead(self.totals, now_s=self.now_s)
        self.granted: dict[str, RequestCoresReply] = {}
        self.wishes: dict[str, RequestCores] = {}
        if told:
            for name in self.totals:
                self.tell(name)
            self.now_s += RESERVE_S  # nothing of an earlier allocator is under way

    def tell(self, name: str) -> None:
        self.versions[name] += 1
        cores = AnnounceCores(
            worker=name,
            incarnation=self.incarnations[name],
            version=self.versions[name],
            total=self.totals[name],
            held=self.held[name],
            draining=name in self.draining,
        )
        self.take(self.allocator.told(cores, now_s=self.now_s))

    def take(self, tells: list[Tell]) -> None:
        for each in tells:
            assert each.answer.ask not in self.granted
            self.granted[each.answer.ask] = each.answer

    def ask(self, name: str, **wish: object) -> RequestCoresReply:
        made = RequestCores(
            ask=name,
            leader="m1",
            **{"job": name, "workflow": "Load", "group": 1, "term": 1, "vus": 1000, **wish},  # type: ignore[arg-type]  # fields of RequestCores
        )
        self.wishes[name] = made
        return self.allocator.ask(made, now_s=self.now_s)

    def run(self, seconds: float, *, holds: bool = True, asks: bool = True) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 0.5)
            if asks:
                for name, wish in self.wishes.items():
                    if name not in self.granted:
                        self.allocator.ask(wish, now_s=self.now_s)
            self.take(self.allocator.tick(now_s=self.now_s))
            if holds:
                self.hold()

    def settle(self, *, holds: bool = True) -> None:
        self.now_s += SETTLE_S
        self.take(self.allocator.tick(now_s=self.now_s))
        if holds:
            self.hold()

    def hold(self) -> None:
        """Workers have taken what was granted on them."""
        for name, answer in self.granted.items():
            wish = self.wishes[name]
            for index, share in enumerate(answer.shares):
                part = max(wish.part, index)
                run = AttemptId(wish.job, wish.workflow, part, 1)
                if all(held.run != run for held in self.held[share.worker]):
                    exclusive = wish.is_test and wish.priority is Priority.EXCLUSIVE
                    self.held[share.worker].append(
                        HeldCores(
                            run=run, cores=share.cores, shared=answer.shared, exclusive=exclusive
                        )
                    )
        for name in self.totals:
            if self.versions[name]:
                self.tell(name)

    def end(self, name: str) -> None:
        over = (self.wishes[name].job, self.wishes[name].workflow)
        for worker, held in self.held.items():
            left = [each for each in held if (each.run.job, each.run.workflow) != over]
            self.held[worker] = left
        del self.granted[name]
        del self.wishes[name]
        for worker in self.totals:
            if self.versions[worker]:
                self.tell(worker)

    def cores(self, name: str) -> int:
        return sum(share.cores for share in self.granted[name].shares)
