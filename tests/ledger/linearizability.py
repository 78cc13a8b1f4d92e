"""Whether what clients saw could have come from one copy of each job, one operation at a time.

    history = History()
    operation = history.invoke("client-3", "key-7", "submit", digest, now_s)
    history.returned(operation, "new", now_s)          # it was told so
    history.dropped(operation)                         # certainly not carried out
    # neither: it may have been carried out, or may be yet
    assert check(history.operations) is None

Every key is a register of its own: `submit` (argument: digest of the payload), `cancel`,
`finish` (argument: status) and `read`. Results are those of `JobRegister`. Times are only
compared with each other: any one clock will do, e.g. `time.monotonic()` of the one process all
clients run in.

The search is Wing and Gong's, with Lowe's memory of what was tried: operations are put in
an order that respects time (what returned before another was invoked comes before it) until the
results fit, or no order does. An operation without a return may come anywhere after its
invocation, or never.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Operation:
    """One call of one client. `returned_s` is infinite while its outcome is not known."""

    client: str
    key: str
    name: str
    argument: Any
    invoked_s: float
    returned_s: float = _NEVER
    result: Any = None

    def __str__(self) -> str:
        end = "?" if self.returned_s == _NEVER else f"{self.returned_s:.4f}"
        told = "?" if self.returned_s == _NEVER else self.result
        return (
            f"{self.invoked_s:.4f}..{end} {self.client} "
            f"{self.name}({self.key}, {self.argument}) -> {told}"
        )


class History:
    """The operations of all clients, in the order of their calls."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def invoke(self, client: str, key: str, name: str, argument: Any, now_s: float) -> Operation:
        operation = Operation(client, key, name, argument, now_s)
        self.operations.append(operation)
        return operation

    def returned(self, operation: Operation, result: Any, now_s: float) -> None:
        operation.returned_s, operation.result = now_s, result

    def dropped(self, operation: Operation) -> None:
        """Drop an operation that certainly took no effect."""
        self.operations.remove(operation)


class Model(Protocol):
    """A sequential model of one object."""

    initial: Hashable

    def step(self, state: Any, name: str, argument: Any) -> tuple[Any, Any]:
        """Return the next state and the result of an operation."""


class JobRegister:
    """A job as its submitters see it: (digest, status)."""

    initial: Hashable = ("", "none")

    def step(self, state: tuple[str, str], name: str, argument: Any) -> tuple[tuple[str, str], str]:
        digest, status = state
        match name:
            case "submit" if status == "none":
                return (argument, "submitted"), "new"
            case "submit":
                return state, "duplicate" if digest == argument else "conflict"
            case "read":
                return state, status
            case _ if status == "none":
                return state, "unknown_job"
            case "cancel":
                return _cancel(digest, status)
            case "finish":
                return _finish(digest, status, argument)
        raise ValueError(f"no operation {name!r}")


def _cancel(digest: str, status: str) -> tuple[tuple[str, str], str]:
    if status == "submitted":
        return (digest, "cancelling"), "ok"
    if status in ("cancelling", "cancelled"):
        return (digest, status), "duplicate"
    return (digest, status), "terminal"


def _finish(digest: str, status: str, wanted: str) -> tuple[tuple[str, str], str]:
    if status in ("submitted", "cancelling"):
        return (digest, wanted), "ok"
    return (digest, status), "duplicate" if status == wanted else "terminal"


@dataclass(frozen=True)
class Counterexample:
    """The operations on one key that no order explains, and how far the best try came."""

    key: str
    operations: tuple[Operation, ...]
    explained: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"no order explains what was seen of {self.key}; explained so far:"]
        lines += [f"  {operation}" for operation in self.explained]
        left = [o for o in self.operations if o not in self.explained]
        lines += ["not explained:", *(f"  {operation}" for operation in left)]
        return "\n".join(lines)


def check(history: Iterable[Operation], model: Model | None = None) -> Counterexample | None:
    """Return None if the operations on every key are linearizable."""
    by_key: dict[str, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    for key, operations in sorted(by_key.items()):
        found = _check_key(key, operations, model or JobRegister())
        if found is not None:
            return found
    return None


def _check_key(key: str, operations: list[Operation], model: Model) -> Counterexample | None:
    ordered = sorted(operations, key=lambda o: (o.invoked_s, o.returned_s))
    known = sum(1 << at for at, o in enumerate(ordered) if o.returned_s != _NEVER)
    tried: set[tuple[int, Hashable]] = set()
    best: tuple[Operation, ...] = ()
    # Depth first, by hand: histories can be longer than the interpreter's stack is deep.
    stack: list[tuple[int, Any, tuple[Operation, ...]]] = [(0, model.initial, ())]
    while stack:
        done, state, path = stack.pop()
        if done & known == known:
            return None
        if len(path) > len(best):
            best = path
        for at, operation in _candidates(ordered, done):
            after, result = model.step(state, operation.name, operation.argument)
            is_known = operation.returned_s != _NEVER
            if is_known and result != operation.result:
                continue
            if not is_known and after == state:
                continue  # changes nothing and nobody saw its result: as good as never
            seen = (done | 1 << at, after)
            if seen not in tried:
                tried.add(seen)
                stack.append((*seen, (*path, operation)))
    return Counterexample(key, tuple(ordered), best)


def _candidates(ordered: list[Operation], done: int) -> list[tuple[int, Operation]]:
    """Those that may come next: none that is left returned before they were invoked."""
    found: list[tuple[int, Operation]] = []
    first_return_s = _NEVER
    for at, operation in enumerate(ordered):
        if done >> at & 1:
            continue
        if operation.invoked_s > first_return_s:
            break
        found.append((at, operation))
        first_return_s = min(first_return_s, operation.returned_s)
    return found
