"""The audit: who changed what, committed in the same entry as the change itself.

Each entry becomes a row of the history of its group: it is replicated, handed over, backed up and
dropped after `ledger.history_days` like all others. Requests that change nothing leave no row.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hyperscale.wire.calls import InboundCall

AUDIT = "#audit"
"""The index (`ledger.replica.is_index`) that the rows are in."""
_KIND = "audit"
_DETAIL_CHARS = 200


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that somebody asked for."""

    by: str
    role: str  # of the client, or of the connection if the client has no name
    action: str
    subject: str = ""  # the job, node or datacenter
    detail: str = ""
    is_proven: bool = False  # a credential proves the name; else it is only claimed


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(AuditEntry)


def audit_of(
    call: InboundCall, action: str, subject: str = "", *, detail: str = "", claimed: str = ""
) -> bytes:
    """Return the encoded entry for a request."""
    principal, peer = call.principal, call.peer
    return _encode(
        AuditEntry(
            by=principal.name if principal else claimed or peer.node_id,
            role=str(principal.role if principal else peer.role),
            action=action,
            subject=subject,
            detail=detail[:_DETAIL_CHARS],
            is_proven=principal is not None,
        )
    )


def decode_audit(data: bytes) -> AuditEntry:
    """Decode an entry; raise `msgspec.MsgspecError` for bytes that are none."""
    return _decoder.decode(data)


def audit_row(data: bytes, history: Sequence[tuple[str, str, bytes]]) -> tuple[str, str, bytes]:
    """Return the history row of an entry. The job of a submission is known when it is applied."""
    try:
        entry = _decoder.decode(data)
    except msgspec.MsgspecError:
        return AUDIT, _KIND, data
    if not entry.subject and history:
        data = _encode(replace(entry, subject=history[0][0]))
    return AUDIT, _KIND, data
