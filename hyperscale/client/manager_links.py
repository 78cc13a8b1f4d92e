"""How a client reaches managers: any that answers will do.

Every question may be asked twice, so what a lost connection leaves open is asked again, through
the next manager, until the deadline. A refusal for now is obeyed; a definite one is raised. If
nobody can be reached, the error names everyone who was tried, and why it failed. What takes its
time says soon what it waits for.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from msgspec import Struct

from hyperscale.config.addresses import format_address
from hyperscale.errors import HyperscaleError, InputError, RunError
from hyperscale.wire.connection import Connection
from hyperscale.wire.errors import (
    CallError,
    OverloadedError,
    PeerProtocolError,
    PeerRefusedError,
    RefusalReason,
    RemoteError,
    RemoteErrorCode,
)
from hyperscale.wire.server import PeerServer

ANSWER_S = 6.0
"""How long one manager may take before the next one is asked."""
TELL_S = 1.5
"""After so long without an answer it is told what is waited for."""
_PAUSE_S = 0.1
_PAUSE_MOST_S = 1.0

# Codes of managers that cannot help now; another one can, or the same one later.
PASSING = frozenset(
    {
        RemoteErrorCode.UNAVAILABLE,
        RemoteErrorCode.MOVED,
        RemoteErrorCode.UNREACHABLE,
        RemoteErrorCode.FAILED,
        RemoteErrorCode.INTERNAL,
    }
)
# The user gave something wrong: nobody else will let it in.
_OURS_TO_MEND = frozenset(
    {
        RefusalReason.SECRET,
        RefusalReason.UNSEALED,
        RefusalReason.SEALED,
        RefusalReason.CERTIFICATE,
        RefusalReason.IDENTITY,
        RefusalReason.ROLE,
        RefusalReason.CLUSTER,
        RefusalReason.ENVIRONMENT,
        RefusalReason.VERSION,
    }
)
_SECRETS = {
    RefusalReason.SECRET: "the secret that was given is not that of its cluster",
    RefusalReason.UNSEALED: "it lets nobody in without the secret of its cluster, or a certificate",
    RefusalReason.SEALED: "a secret was given, and its cluster has none",
}
# Nobody who speaks the protocol begins like that.
_FOREIGN = frozenset(
    {
        RefusalReason.OVERSIZED,
        RefusalReason.MALFORMED,
        RefusalReason.TRUNCATED,
        RefusalReason.UNEXPECTED,
    }
)

_R = TypeVar("_R", bound=Struct)
Address = tuple[str, int]


class NoManagerError(RunError):
    """No manager could be reached."""


class WrongSecretError(InputError):
    """Whoever is there belongs to a cluster with another secret, or with none."""


class Managers:
    """The managers a client knows of; the one that answered last is asked first. `on_trouble`
    is told what is waited for, while nothing comes."""

    def __init__(
        self,
        server: PeerServer,
        addresses: Sequence[Address],
        rng: Random,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._server = server
        self.on_trouble = on_trouble
        self._addresses = list(dict.fromkeys(addresses))
        self._rng = rng
        rng.shuffle(self._addresses)
        self._open: dict[Address, Connection] = {}
        self._troubles: dict[Address, Exception] = {}
        self.has_reached = False  # any of them, ever
        self._loop = asyncio.get_running_loop()

    @property
    def datacenters(self) -> list[str]:
        """Of the managers that were reached."""
        return sorted({each.peer.datacenter for each in self._open.values()} - {""})

    async def ask(
        self, message: Struct, reply: type[_R], *, within_s: float, patience_s: float | None = None
    ) -> _R:
        """The first answer. `patience_s` bounds how long it is tried while nobody can be
        reached at all."""
        began_s = self._loop.time()
        deadline_s = began_s + within_s
        give_up_s = deadline_s if patience_s is None else began_s + patience_s
        said: dict[Address, str] = {}
        reminder = self._loop.call_later(TELL_S, lambda: self._tell(said))
        pause_s = _PAUSE_S
        try:
            while True:
                before, wait_s = dict(said), pause_s
                for address in list(self._addresses):
                    answer = await self._ask_one(address, message, reply, deadline_s, said)
                    if isinstance(answer, reply):
                        return answer
                    if isinstance(answer, OverloadedError):
                        wait_s = max(wait_s, answer.retry_after_s)
                now_s = self._loop.time()
                if self._is_cut_off():
                    self._refuse_if_ours()
                    if now_s >= min(give_up_s, deadline_s):
                        raise self._nobody()
                if now_s >= deadline_s:
                    raise self._no_answer(said, within_s)
                if now_s >= began_s + TELL_S and said != before:
                    self._tell(said)
                # Together with everyone else who was refused: not all at once again.
                await asyncio.sleep(min(wait_s * self._rng.uniform(1.0, 1.3), deadline_s - now_s))
                pause_s = min(_PAUSE_MOST_S, pause_s * 2)
        finally:
            reminder.cancel()

    async def _ask_one(
        self,
        address: Address,
        message: Struct,
        reply: type[_R],
        deadline_s: float,
        said: dict[Address, str],
    ) -> _R | OverloadedError | None:
        """Its answer, if it has one; what it says instead is kept in `said`."""
        connection = await self._connection(address)
        until_s = min(deadline_s, self._loop.time() + ANSWER_S)
        if connection is None or self._loop.time() >= until_s:
            return None
        try:
            answer = await connection.call(message, reply, deadline_s=until_s)
        except OverloadedError as error:
            said[address] = error.message
            return error
        except RemoteError as error:
            if error.code not in PASSING:
                raise
            said[address] = in_short(error)
            return None
        except CallError:
            self.demote(address)
            return None
        self._prefer(address)
        return answer

    async def follow(
        self, message: Struct, item: type[_R], *, within_s: float, silence_s: float
    ) -> AsyncGenerator[_R, None]:
        """An answer in parts, from the first manager that begins one. It breaks with a
        `CallError` when the manager does, or says nothing for `silence_s`."""
        connection, address = await self.connected()
        deadline_s = self._loop.time() + within_s
        try:
            async with connection.stream(message, item, deadline_s=deadline_s) as parts:
                while True:
                    try:
                        async with asyncio.timeout(silence_s):
                            part = await anext(parts)
                    except StopAsyncIteration:
                        return
                    yield part
        except TimeoutError:
            self.demote(address)
            raise CallError(
                f"{format_address(*address)} said nothing for {silence_s:g} s"
            ) from None
        except RemoteError:
            self._rotate(address)
            raise
        except CallError:
            self.demote(address)
            raise

    async def connected(self) -> tuple[Connection, Address]:
        """A connection to whoever can be reached; raises if nobody can."""
        for address in list(self._addresses):
            connection = await self._connection(address)
            if connection is not None:
                return connection, address
        self._refuse_if_ours()
        raise self._nobody()

    def demote(self, address: Address) -> None:
        """This one is in trouble: dialled anew, and asked last."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.abort("it does not answer")
        self._rotate(address)

    # -- inside ---------------------------------------------------------------------------

    async def _connection(self, address: Address) -> Connection | None:
        connection = self._open.get(address)
        if connection is not None and connection.is_usable:
            return connection
        self._open.pop(address, None)
        try:
            connection = await self._server.dial(*address)
        except (OSError, TimeoutError, HyperscaleError) as error:
            self._troubles[address] = error
            return None
        self._troubles.pop(address, None)
        self._open[address] = connection
        self.has_reached = True
        return connection

    def _prefer(self, address: Address) -> None:
        self._addresses.remove(address)
        self._addresses.insert(0, address)

    def _rotate(self, address: Address) -> None:
        self._addresses.remove(address)
        self._addresses.append(address)

    def _is_cut_off(self) -> bool:
        return all(address in self._troubles for address in self._addresses)

    def _refuse_if_ours(self) -> None:
        """Raises what the user must mend, if that is all that went wrong."""
        refusals = [refusal(each, error) for each, error in self._troubles.items()]
        ours = [each for each in refusals if each is not None]
        if ours and len(ours) == len(refusals):
            raise ours[0]

    def _tell(self, said: Mapping[Address, str]) -> None:
        if self._is_cut_off():  # by whom and why is for the error, should it come to that
            self.on_trouble("no manager can be reached yet")
        else:
            self.on_trouble(f"no answer yet; {self._state(said)}")

    def _no_answer(self, said: Mapping[Address, str], within_s: float) -> RunError:
        return RunError(
            f"no answer within {within_s:.3g} s; {self._state(said)}",
            hint="more than half of the managers must be up and reach each other, and one of "
            "those must be known here; 'hyperscale members' shows who is up",
        )

    def _state(self, said: Mapping[Address, str]) -> str:
        """What keeps each manager from answering, as far as that is known."""
        rows: dict[str, list[str]] = {}
        for address in sorted(self._addresses):
            trouble = self._troubles.get(address)
            if trouble is not None:
                why = in_words(trouble)
            elif address in self._open:
                why = said.get(address, "reached, but silent so far")
            else:
                why = said.get(address, "silent so far")
            rows.setdefault(why, []).append(format_address(*address))
        return "; ".join(f"{', '.join(who)}: {why}" for why, who in rows.items())

    def _nobody(self) -> NoManagerError:
        tried = ", ".join(
            f"{format_address(*address)} ({in_words(error)})"
            for address, error in sorted(self._troubles.items(), key=lambda item: item[0])
        )
        odd = (TimeoutError, PeerProtocolError)
        is_odd = any(isinstance(each, odd) for each in self._troubles.values())
        other = " Its HTTP port is another one;" if is_odd else ""
        return NoManagerError(
            f"no manager can be reached; tried {tried or 'none'}",
            hint=f"is a manager running there?{other} 'hyperscale cluster up' starts a cluster",
        )


def refusal(address: Address, error: Exception) -> InputError | None:
    """What the user must mend, if that is why a node did not let us in."""
    if not isinstance(error, PeerProtocolError) or error.reason not in _OURS_TO_MEND:
        return None
    where, why, hint = format_address(*address), in_words(error), error.hint
    if error.reason in _SECRETS:
        if isinstance(error, PeerRefusedError):  # in its words, which are for nodes
            why = _SECRETS[error.reason]
        return WrongSecretError(
            f"{where} refused us: {why}",
            hint="the secret must be that of the cluster: --secret-file, or --dir for a local one",
        )
    if error.reason is RefusalReason.ROLE:
        hint = hint or "give the address of a manager"
    return InputError(f"{where} refused us: {why}", hint=hint)


def in_short(error: CallError) -> str:
    """Return what went wrong, without the names of the call and the peer and without the hint."""
    return error.detail if isinstance(error, RemoteError) else error.message


def in_words(error: Exception) -> str:
    if isinstance(error, PeerProtocolError) and error.reason in _FOREIGN:
        or_else = ", or wants a certificate" if error.reason is RefusalReason.TRUNCATED else ""
        return f"what answers there is no node of a cluster{or_else}: {error.message}"
    if isinstance(error, HyperscaleError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, TimeoutError):
        return "no answer in time"
    strerror = getattr(error, "strerror", None)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(strerror or error or type(error).__name__)
