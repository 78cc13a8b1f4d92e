"""Secret parameters of a job, packed for the way from the client to the executors.

The ledger holds only the id of the packed values. The values are with the managers of the job's
group, one file each, until the job ends.
"""

import hashlib
import secrets
from collections.abc import Mapping

import msgspec

from hyperscale.errors import InputError

SECRETS_BYTES_MAX = 512 * 1024
_SALT_BYTES = 16


class _Packed(msgspec.Struct, frozen=True):
    salt: bytes  # without it, a weak secret could be guessed from the id
    values: dict[str, str]


def pack_secrets(values: Mapping[str, str]) -> bytes:
    """Return the packed values; empty if there are none."""
    if not values:
        return b""
    packed = msgspec.msgpack.encode(_Packed(secrets.token_bytes(_SALT_BYTES), dict(values)))
    if len(packed) > SECRETS_BYTES_MAX:
        raise InputError(
            f"the secret parameters have {len(packed):,} bytes, more than {SECRETS_BYTES_MAX:,}"
        )
    return packed


def unpack_secrets(packed: bytes) -> dict[str, str]:
    return msgspec.msgpack.decode(packed, type=_Packed).values if packed else {}


def secrets_id(packed: bytes) -> str:
    """Return the id of packed values; empty if there are none."""
    return hashlib.sha256(packed).hexdigest() if packed else ""
