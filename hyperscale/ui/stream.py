"""Text straight to a stream's descriptor, past the layers that would remember a failure."""

import os
from typing import TextIO


def write_through(stream: TextIO, text: str) -> bool:
    """Write all of `text`, waiting for the reader; false if there is none any more.

    What a text stream keeps after a failed write is written again at exit, and fails again,
    with a message nobody asked for. A stream without a descriptor is written to as it is.
    """
    try:
        stream.flush()
        fd = stream.fileno()
    except (OSError, AttributeError):
        fd = -1
    try:
        if fd < 0:
            stream.write(text)
            stream.flush()
            return True
        view = memoryview(text.encode(stream.encoding or "utf-8", "replace"))
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return False
    return True
