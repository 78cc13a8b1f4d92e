"""Bringing a bundle to a manager, however often that is interrupted.

Pieces go one after the other; each answer says where to go on. Whoever takes over from a manager
that is lost says so too: from the beginning, or from where an earlier attempt had come.
"""

import asyncio

from hyperscale.client.api import Package
from hyperscale.client.manager_links import Managers
from hyperscale.client.messages import PutBlob, PutBlobReply
from hyperscale.errors import RunError

PIECE_BYTES = 128 * 1024
"""Small enough to arrive on a bad network before its manager is given up for another."""
_PAUSE_S = 0.02
_ANSWER_S = 1.0  # each piece has at least so long
_FALLS_MAX = 5


async def upload(managers: Managers, package: Package, *, within_s: float) -> None:
    """Returns when a manager has all of it; gives up if `within_s` bring it no further."""
    loop = asyncio.get_running_loop()
    payload, size = package.payload, len(package.payload)
    offset = farthest = falls = 0
    deadline_s = loop.time() + within_s
    while True:
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise RunError(
                f"the bundle of {size / 2**20:.1f} MiB came no further than "
                f"{farthest / 2**20:.1f} MiB within {within_s:g} s",
                hint="is the network to the managers in order?",
            )
        piece = PutBlob(
            sha256=package.sha256,
            size=size,
            offset=offset,
            data=payload[offset : offset + PIECE_BYTES],
        )
        taken = await managers.ask(piece, PutBlobReply, within_s=max(left_s, _ANSWER_S))
        if taken.is_complete:
            return
        offset = taken.offset
        farthest = max(farthest, offset)
        falls += offset < piece.offset  # another manager begins anew; not for ever
        if offset > piece.offset and falls <= _FALLS_MAX:
            deadline_s = loop.time() + within_s
        elif offset <= piece.offset:
            await asyncio.sleep(_PAUSE_S)
