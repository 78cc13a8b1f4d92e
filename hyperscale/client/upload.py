"""Upload a bundle to a manager, across lost connections and managers.

Pieces are sent one after the other; each answer names the offset of the next piece. If a manager
is lost, the next one names the offset it needs: 0, or where an earlier upload to it had stopped.
"""

import asyncio

from hyperscale.client.manager_connections import ManagerConnections
from hyperscale.client.messages import PutBlob, PutBlobReply
from hyperscale.client.submission import Package
from hyperscale.errors import RunError

PIECE_BYTES = 128 * 1024
"""Small enough to arrive over a slow network before the next manager is asked."""
_PAUSE_S = 0.02
_ANSWER_S = 1.0  # the least time for each piece
_RESTARTS_MAX = 5


async def upload(managers: ManagerConnections, package: Package, *, within_s: float) -> None:
    """Return when a manager has the whole bundle; raise if `within_s` pass without progress."""
    loop = asyncio.get_running_loop()
    payload, size = package.payload, len(package.payload)
    offset = farthest = restarts = 0
    deadline_s = loop.time() + within_s
    while True:
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            raise RunError(
                f"the bundle of {size / 2**20:.1f} MiB got no further than "
                f"{farthest / 2**20:.1f} MiB within {within_s:g} s",
                hint="check the network between this machine and the managers",
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
        restarts += offset < piece.offset  # another manager starts from the beginning
        if offset > piece.offset and restarts <= _RESTARTS_MAX:
            deadline_s = loop.time() + within_s
        elif offset <= piece.offset:
            await asyncio.sleep(_PAUSE_S)
