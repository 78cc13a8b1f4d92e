"""The connections of a client to managers: which one is asked, and what if it fails.

Any manager can answer any question, and every question may be repeated. So a question whose
connection is lost is asked again, through the next manager, until the deadline. A manager that
is overloaded is asked again after the time it names; a definite refusal is raised. If no manager
can be reached, the error names each one that was tried, and why it failed. A question that
takes long reports soon what it waits for.
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
"""How long one manager may take to answer before the next one is asked."""
REPORT_AFTER_S = 1.5
"""After this long without an answer, `on_trouble` is called with what the client waits for."""
_PAUSE_S = 0.1
_PAUSE_MOST_S = 1.0

# A manager with one of these errors cannot answer now; another one can, or the same one later.
TRANSIENT_CODES = {
    RemoteErrorCode.UNAVAILABLE,
    RemoteErrorCode.MOVED,
    RemoteErrorCode.UNREACHABLE,
    RemoteErrorCode.FAILED,
    RemoteErrorCode.INTERNAL,
}
_SECRET_ERRORS = {
    RefusalReason.SECRET: "the secret of this client is not the secret of its cluster",
    RefusalReason.UNSEALED: "it requires the secret of its cluster, or a certificate",
    RefusalReason.SEALED: "this client uses a secret, and its cluster has none",
}
# The user gave something wrong: no other manager will accept this client either.
_USER_ERRORS = {
    *_SECRET_ERRORS,
    RefusalReason.CERTIFICATE,
    RefusalReason.IDENTITY,
    RefusalReason.ROLE,
    RefusalReason.CLUSTER,
    RefusalReason.ENVIRONMENT,
    RefusalReason.VERSION,
}
# A node of a cluster never answers like this.
_NOT_A_NODE = {
    RefusalReason.OVERSIZED,
    RefusalReason.MALFORMED,
    RefusalReason.TRUNCATED,
    RefusalReason.UNEXPECTED,
}

_R = TypeVar("_R", bound=Struct)
Address = tuple[str, int]


class NoManagerError(RunError):
    """No manager could be reached."""


class NoAnswerError(RunError):
    """No manager answered in time. `flags` reach the cluster, for the command in the hint."""

    def __init__(self, message: str, *, flags: str = "") -> None:
        hint = (
            "more than half of the managers or gates must be up and reach each other, and this "
            f"client must know one of them; 'hyperscale members{flags}' shows which nodes are up"
        )
        super().__init__(message, hint=hint)


class WrongSecretError(InputError):
    """The node belongs to a cluster with another secret, or with none."""


class NotAllowedError(InputError):
    """The credential of this client does not permit the request."""


class ManagerConnections:
    """The managers that a client knows, in the order in which it asks them.

    The manager that answered last is asked first. `on_trouble` is called with a sentence that
    says what the client waits for, while it waits.
    """

    def __init__(
        self,
        server: PeerServer,
        addresses: Sequence[Address],
        rng: Random,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._server = server
        self.on_trouble = on_trouble
        self._addresses = list(addresses)
        self._rng = rng
        self._open: dict[Address, Connection] = {}
        self._dial_errors: dict[Address, Exception] = {}
        self.has_reached = False  # a manager was connected at least once
        self._loop = asyncio.get_running_loop()

    @property
    def datacenters(self) -> list[str]:
        """Return the datacenters of the managers that are connected."""
        return sorted({each.peer.datacenter for each in self._open.values()} - {""})

    async def ask(
        self, message: Struct, reply: type[_R], *, within_s: float, patience_s: float | None = None
    ) -> _R:
        """Return the first answer. Give up after `patience_s` if no manager can be reached."""
        began_s = self._loop.time()
        deadline_s = began_s + within_s
        give_up_s = deadline_s if patience_s is None else began_s + patience_s
        refusals: dict[Address, str] = {}
        reminder = self._loop.call_later(REPORT_AFTER_S, lambda: self._report(refusals))
        pause_s = _PAUSE_S
        try:
            while True:
                before, wait_s = dict(refusals), pause_s
                for address in list(self._addresses):
                    answer = await self._ask_one(address, message, reply, deadline_s, refusals)
                    if isinstance(answer, reply):
                        return answer
                    if isinstance(answer, OverloadedError):
                        wait_s = max(wait_s, answer.retry_after_s)
                now_s = self._loop.time()
                if self._are_all_unreachable():
                    self._raise_user_error()
                    if now_s >= min(give_up_s, deadline_s):
                        raise self._no_manager_error()
                if now_s >= deadline_s:
                    state = self._state(refusals)
                    raise NoAnswerError(f"no answer within {within_s:.3g} s; {state}")
                if now_s >= began_s + REPORT_AFTER_S and refusals != before:
                    self._report(refusals)
                # Clients that were refused together must not ask again all at once.
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
        refusals: dict[Address, str],
    ) -> _R | OverloadedError | None:
        """Ask one manager; put the reason into `refusals` if it does not answer now."""
        connection = await self._connection(address)
        until_s = min(deadline_s, self._loop.time() + ANSWER_S)
        if connection is None or self._loop.time() >= until_s:
            return None
        try:
            answer = await connection.call(message, reply, deadline_s=until_s)
        except OverloadedError as error:
            refusals[address] = error.message
            return error
        except RemoteError as error:
            if error.code is RemoteErrorCode.ROLE:
                raise NotAllowedError(error.detail, hint=error.hint) from error
            if error.code not in TRANSIENT_CODES:
                raise
            refusals[address] = short_reason(error)
            return None
        except CallError:
            self._ask_last(address, disconnect=True)
            return None
        self._addresses.remove(address)
        self._addresses.insert(0, address)
        return answer

    async def follow(
        self, message: Struct, item: type[_R], *, within_s: float, silence_s: float
    ) -> AsyncGenerator[_R, None]:
        """Yield the items of a stream from the first manager that can be reached.

        Raise `CallError` when the connection is lost or nothing arrives for `silence_s`.
        """
        connection, address = await self.connected()
        deadline_s = self._loop.time() + within_s
        try:
            async with connection.stream(message, item, deadline_s=deadline_s) as items:
                while True:
                    try:
                        async with asyncio.timeout(silence_s):
                            received = await anext(items)
                    except StopAsyncIteration:
                        return
                    yield received
        except TimeoutError:
            self._ask_last(address, disconnect=True)
            where = format_address(*address)
            raise CallError(f"{where} sent nothing for {silence_s:g} s") from None
        except CallError as error:
            if isinstance(error, RemoteError) and error.code is RemoteErrorCode.ROLE:
                raise NotAllowedError(error.detail, hint=error.hint) from error
            self._ask_last(address, disconnect=not isinstance(error, RemoteError))
            raise

    async def connected(self) -> tuple[Connection, Address]:
        """Return a connection to the first manager that can be reached; raise if there is none."""
        for address in list(self._addresses):
            connection = await self._connection(address)
            if connection is not None:
                return connection, address
        self._raise_user_error()
        raise self._no_manager_error()

    def _ask_last(self, address: Address, *, disconnect: bool) -> None:
        """Move a manager that failed to the end of the order."""
        self._addresses.remove(address)
        self._addresses.append(address)
        if disconnect and (connection := self._open.pop(address, None)) is not None:
            connection.abort("the manager does not answer")

    async def _connection(self, address: Address) -> Connection | None:
        connection = self._open.get(address)
        if connection is not None and connection.is_usable:
            return connection
        self._open.pop(address, None)
        try:
            connection = await self._server.dial(*address)
        except (OSError, TimeoutError, HyperscaleError) as error:
            self._dial_errors[address] = error
            return None
        self._dial_errors.pop(address, None)
        self._open[address] = connection
        self.has_reached = True
        return connection

    def _are_all_unreachable(self) -> bool:
        return all(address in self._dial_errors for address in self._addresses)

    def _raise_user_error(self) -> None:
        """Raise the error that the user must fix, if every failed dial is of that kind."""
        errors = [user_error(each, error) for each, error in self._dial_errors.items()]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    def _report(self, refusals: Mapping[Address, str]) -> None:
        if self._are_all_unreachable():  # the error will name them, if it comes to that
            self.on_trouble("no manager can be reached yet")
        else:
            self.on_trouble(f"no answer yet; {self._state(refusals)}")

    def _state(self, refusals: Mapping[Address, str]) -> str:
        """Say for each manager why it has not answered, as far as that is known."""
        rows: dict[str, list[str]] = {}
        for address in sorted(self._addresses):
            error = self._dial_errors.get(address)
            if error is not None:
                why = dial_reason(error)
            else:
                connected = "connected, but " if address in self._open else ""
                why = refusals.get(address, f"{connected}silent so far")
            rows.setdefault(why, []).append(format_address(*address))
        return "; ".join(f"{', '.join(who)}: {why}" for why, who in rows.items())

    def _no_manager_error(self) -> NoManagerError:
        tried = ", ".join(
            f"{format_address(*address)} ({dial_reason(error)})"
            for address, error in sorted(self._dial_errors.items(), key=lambda item: item[0])
        )
        not_a_node = (TimeoutError, PeerProtocolError)
        may_be_http = any(isinstance(each, not_a_node) for each in self._dial_errors.values())
        http = " Its HTTP port is another one;" if may_be_http else ""
        return NoManagerError(
            f"no manager can be reached; tried {tried or 'none'}",
            hint=f"is a manager running there?{http} 'hyperscale cluster up' starts a cluster",
        )


def user_error(address: Address, error: Exception) -> InputError | None:
    """Return what the user must fix, if that is why a node refused this client."""
    if not isinstance(error, PeerProtocolError) or error.reason not in _USER_ERRORS:
        return None
    where, why, hint = format_address(*address), dial_reason(error), error.hint
    if error.reason in _SECRET_ERRORS:
        if isinstance(error, PeerRefusedError):  # its own words are meant for nodes
            why = _SECRET_ERRORS[error.reason]
        return WrongSecretError(
            f"{where} refused this client: {why}",
            hint="give the secret of the cluster: --secret-file, or --dir for a local cluster",
        )
    if error.reason is RefusalReason.ROLE:
        hint = hint or "give the address of a manager"
    return InputError(f"{where} refused this client: {why}", hint=hint)


def short_reason(error: CallError) -> str:
    """Return what went wrong, without the names of the call and the peer and without the hint."""
    return error.detail if isinstance(error, RemoteError) else error.message


def dial_reason(error: Exception) -> str:
    """Return in a few words why a node could not be connected."""
    if isinstance(error, PeerProtocolError) and error.reason in _NOT_A_NODE:
        is_cut = error.reason is RefusalReason.TRUNCATED
        or_else = ", or it requires a certificate" if is_cut else ""
        return f"no node of a cluster answers there{or_else}: {error.message}"
    if isinstance(error, HyperscaleError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
