"""Which handshakes a node takes while strangers knock: limits per address and in all.

A *pending* handshake has not been authenticated. One address cannot take every place, some places
are kept for addresses that have authenticated before, and once half of the places are taken the
oldest pending handshakes make room after `silent_s`. No socket and no clock: the listener closes
what this module names.
"""

from collections import Counter, OrderedDict

from msgspec import Struct

_KNOWN_MAX = 4096


class DoorLimits(Struct, frozen=True):
    """How many handshakes may be pending."""

    pending_max: int = 256
    pending_per_host_max: int = 64
    reserved: int = 64
    """Places of `pending_max` that only known addresses get."""
    silent_s: float = 2.0
    """The age at which a pending handshake may be dropped to make room."""


class HandshakeDoor:
    """Admits handshakes and names those that make room. Tokens are the caller's."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._pending: OrderedDict[int, tuple[str, float]] = OrderedDict()  # oldest first
        self._per_host: Counter[str] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()  # the latest last

    @property
    def pending(self) -> int:
        return len(self._pending)

    def admits(self, host: str) -> bool:
        """Return True if a handshake of this address may begin."""
        limits = self._limits
        is_known = host in self._known
        places = limits.pending_max - (0 if is_known else limits.reserved)
        return self.pending < places and self._per_host[host] < limits.pending_per_host_max

    def overdue(self, now_s: float) -> list[int]:
        """Return the handshakes to drop, oldest first; none while half of the places are free."""
        limits = self._limits
        found: list[int] = []
        crowd = self.pending - limits.pending_max // 2
        for token, (_, began_s) in self._pending.items():
            if len(found) >= crowd or now_s - began_s < limits.silent_s:
                break
            found.append(token)
        return found

    def begin(self, token: int, host: str, now_s: float) -> None:
        self._pending[token] = (host, now_s)
        self._per_host[host] += 1

    def end(self, token: int, *, is_authenticated: bool) -> None:
        host, _ = self._pending.pop(token)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        if is_authenticated:
            self._known[host] = None
            self._known.move_to_end(host)
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
