"""The errors of communication between nodes, typed by who must act.

`PeerProtocolError`: the peer broke the protocol or is not allowed here; drop the connection and
count the `RefusalReason`. `CallError` and its subclasses: a call did not succeed; `is_definite`
is True if the peer certainly did *not* execute it, so that it may be repeated elsewhere.
"""

from enum import StrEnum
from typing import ClassVar

from hyperscale.errors import HyperscaleError


class RefusalReason(StrEnum):
    """Why a peer, frame or datagram was refused. Metrics count refusals by this label."""

    SECRET = "secret"  # no secret of this node opens it  # noqa: S105  a label, not a secret
    UNSEALED = "unsealed"  # not sealed, but this node requires a secret
    SEALED = "sealed"  # sealed, but this node has no secret
    CERTIFICATE = "certificate"  # TLS refused it: expired, unknown authority, or missing
    IDENTITY = "identity"  # the certificate does not match the peer's introduction
    ROLE = "role"  # this role may not connect here, or not send this message
    CLUSTER = "cluster"
    ENVIRONMENT = "environment"
    DATACENTER = "datacenter"
    VERSION = "version"
    LOOPED = "looped"  # the peer is this node itself
    NAMESAKE = "namesake"  # the peer is another node with this node's name
    NAME_TAKEN = "name_taken"  # a third, living node has the peer's name
    NAME_UNCERTAIN = "name_uncertain"  # a third node has the name and may still be alive
    INCARNATION = "incarnation"  # a later incarnation of the node is known
    REPLAYED = "replayed"
    TAMPERED = "tampered"  # a sealed frame that does not open: altered, replayed or reordered
    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    UNEXPECTED = "unexpected"  # well formed, but not allowed at this point
    UNKNOWN = "unknown"  # a message kind this version does not know
    CROWDED = "crowded"  # beyond a limit of connections or handshakes
    SLOW = "slow"  # the handshake took too long


class PeerProtocolError(HyperscaleError):
    """The peer broke the protocol or is not allowed here. Drop the connection; count `reason`."""

    def __init__(self, message: str, reason: RefusalReason, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class PeerRefusedError(PeerProtocolError):
    """The peer refused this node; the message is the peer's."""


class CallError(HyperscaleError):
    """A call to a peer did not succeed."""

    is_definite: ClassVar[bool] = False
    """True if the peer certainly did not execute the call."""


class UnreachableError(CallError):
    """There was no connection to the peer before the deadline; nothing was sent."""

    is_definite = True


class QueueFullError(CallError):
    """The outgoing queue to this peer is full; nothing was sent."""

    is_definite = True


class RetryLaterError(CallError):
    """The call was not executed and may be repeated after `retry_after_s`."""

    is_definite = True

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpenError(RetryLaterError):
    """Recent calls to this peer failed; no call is sent for `retry_after_s`."""


class OverloadedError(RetryLaterError):
    """The peer is overloaded and executed nothing."""


class ConnectionLostError(CallError):
    """The connection ended before the reply: the call may or may not have been executed."""


class DeadlineError(CallError):
    """The deadline passed before the reply: the call may or may not have been executed."""


class RemoteErrorCode(StrEnum):
    """Why a peer answered a call with an error. Programs decide by this code, never by the text."""

    # Raised by handlers.
    UNAVAILABLE = "unavailable"  # the peer cannot serve the call now; another node may
    MOVED = "moved"  # another node leads what the call is about
    UNREACHABLE = "unreachable"  # the peer cannot reach the node it would have to ask
    NOT_ENDED = "not_ended"  # the job has no results yet
    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    UNKNOWN_BUNDLE = "unknown_bundle"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    FAILED = "failed"  # the handler raised an error that names no code
    INTERNAL = "internal"  # a bug in the handler; the peer's log has the traceback
    # Answered before a handler ran.
    UNHANDLED = "unhandled"  # nodes of this role do not serve the message
    UNKNOWN_MESSAGE = "unknown"  # the peer's version does not know the message
    ROLE = "role"  # the caller's role may not send the message
    MALFORMED = "malformed"  # the request or the reply could not be decoded
    UNEXPECTED = "unexpected"  # the reply was a message of another type
    QUEUE_FULL = "queue_full"  # the reply did not fit the peer's outgoing queue
    OTHER = "other"  # a code of a newer version; `RemoteError.code_text` keeps it

    @classmethod
    def parse(cls, text: str) -> "RemoteErrorCode":
        """Return the code that `text` names on the wire, or `OTHER`."""
        return _REMOTE_ERROR_CODES.get(text, cls.OTHER)


_REMOTE_ERROR_CODES = {str(code): code for code in RemoteErrorCode}


class RemoteError(CallError):
    """The peer answered the call with an error."""

    def __init__(
        self,
        message: str,
        *,
        code: RemoteErrorCode,
        hint: str = "",
        detail: str = "",
        code_text: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.code_text = code_text or str(code)
        """The code as it was on the wire: more than `code` says if that is `OTHER`."""
        self.detail = detail or message
        """What the peer's handler said, without the names of the call and the peer."""
