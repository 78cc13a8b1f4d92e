"""What the next process of a node must know about datagrams: who it was, and what it has seen.

Without it, datagrams that were recorded earlier could be replayed to a node that restarted; after
a crash those of the last `SAVE_S` seconds still can. A node that knows its last incarnation takes a
later one, also if its clock was set back meanwhile.
"""

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hyperscale.wire.sealing import DatagramSealer

SAVE_S = 5.0
FILE_NAME = "datagrams"

_Incarnation = Annotated[int, Meta(ge=0)]
_Counter = Annotated[int, Meta(ge=-1)]


class RememberedDatagrams(Struct, frozen=True):
    """Of the former process: its last incarnation, and what it had seen of others."""

    incarnation: _Incarnation = 0
    seen: dict[str, tuple[_Incarnation, _Counter]] = {}


_decoder = msgspec.msgpack.Decoder(RememberedDatagrams)
_log = logging.getLogger("hyperscale.nodes")


class DatagramMemory:
    """The file with what the sealer of a node was and has seen."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._saved = RememberedDatagrams()
        self._has_failed = False

    def read(self) -> RememberedDatagrams:
        """Return what the former process knew; nothing if the file cannot be read."""
        try:
            found = _decoder.decode(self._path.read_bytes())
        except FileNotFoundError:
            return RememberedDatagrams()
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            detail = f"{self._path}: {error}"
            _log.warning("datagrams.not_read: %s", detail, extra={"detail": detail})
            return RememberedDatagrams()
        return found

    def save(self, sealer: DatagramSealer) -> None:
        """Replace the file, unless nothing was heard since the last time."""
        now = RememberedDatagrams(sealer.incarnation, sealer.seen())
        if now == self._saved:
            return
        partial = self._path.with_suffix(".new")
        try:
            partial.write_bytes(msgspec.msgpack.encode(now))
            partial.replace(self._path)
        except OSError as error:  # a full disk is also noticed by what needs the disk
            if not self._has_failed:
                _log.warning("datagrams.not_saved: %s", error, extra={"detail": str(error)})
            self._has_failed = True
        else:
            self._saved, self._has_failed = now, False
