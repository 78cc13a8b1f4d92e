"""DNS for discovery: the one module of membership that does I/O.

A name that begins with an underscore is resolved as SRV, ports included; any other name as A and
AAAA, with the default port. All queries for one name run at once, under one deadline.
"""

import asyncio
from collections.abc import Iterable

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.resolver import Answer

from hyperscale.config.addresses import format_address
from hyperscale.membership.discovery import NameResolved, NameUnresolved


class DnsResolver:
    """Queries the name servers of the system, or those given."""

    def __init__(
        self, *, default_port: int, name_servers: Iterable[str] = (), port: int = 53
    ) -> None:
        servers = list(name_servers)
        self._resolver = Resolver(configure=not servers)
        if servers:
            self._resolver.nameservers = servers
            self._resolver.port = port
        self._default_port = default_port

    async def resolve(self, name: str, timeout_s: float) -> NameResolved | NameUnresolved:
        """Return every address of `name`. A DNS failure is returned, not raised."""
        try:
            async with asyncio.timeout(timeout_s):
                if name.startswith("_"):
                    return await self._services(name, timeout_s)
                return await self._hosts(name, self._default_port, timeout_s)
        except TimeoutError:
            return NameUnresolved(name, f"no answer within {timeout_s:g} s")

    async def _services(self, name: str, timeout_s: float) -> NameResolved | NameUnresolved:
        answer = await self._query(name, "SRV", timeout_s)
        if isinstance(answer, str):
            return NameUnresolved(name, answer)
        services = sorted(
            (r.priority, -r.weight, r.target.to_text(omit_final_dot=True), r.port) for r in answer
        )
        found = await asyncio.gather(
            *(self._hosts(target, port, timeout_s) for _, _, target, port in services)
        )
        resolved = [result for result in found if isinstance(result, NameResolved)]
        if not resolved:
            return NameUnresolved(name, "none of its targets resolves")
        addresses = tuple(address for result in resolved for address in result.addresses)
        return NameResolved(name, addresses, min(_ttl_s(answer), *(r.ttl_s for r in resolved)))

    async def _hosts(self, name: str, port: int, timeout_s: float) -> NameResolved | NameUnresolved:
        answers = await asyncio.gather(
            self._query(name, "A", timeout_s), self._query(name, "AAAA", timeout_s)
        )
        found = [answer for answer in answers if isinstance(answer, Answer)]
        addresses = tuple(
            format_address(host, port)
            for answer in found
            for host in sorted(record.address for record in answer)
        )
        if not addresses:
            return NameUnresolved(
                name, "; ".join(sorted({a for a in answers if isinstance(a, str)}))
            )
        return NameResolved(name, addresses, min(_ttl_s(answer) for answer in found))

    async def _query(self, name: str, kind: str, timeout_s: float) -> Answer | str:
        """Return the records, or a text that says why there are none."""
        try:
            return await self._resolver.resolve(
                name, kind, lifetime=timeout_s, raise_on_no_answer=True
            )
        except (DNSException, OSError) as error:
            return f"{type(error).__name__}: {error}"


def _ttl_s(answer: Answer) -> float:
    return float(answer.rrset.ttl) if answer.rrset is not None else 0.0
