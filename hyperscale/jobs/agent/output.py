"""What user code printed, until it is forwarded to the job leader; limited by a rate."""

OUTPUT_BYTES_PER_S = 64 * 1024
OUTPUT_BURST_BYTES = 256 * 1024


class OutputBuffer:
    """Output of one attempt that was not forwarded yet.

    Pieces are numbered from `first` on, whichever job leader they are sent to, so that a
    repeated piece is recognised.
    """

    def __init__(self, *, first: int, now_s: float) -> None:
        self._next = first
        self._texts: dict[tuple[int, str], list[str]] = {}  # (place, stream) -> texts
        self._credit_bytes = float(OUTPUT_BURST_BYTES)
        self._filled_s = now_s
        self._dropped_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._texts) or self._dropped_bytes > 0

    def add(self, place: int, stream: str, text: str, *, now_s: float) -> None:
        """Keep a text, or count it as dropped if the rate is exceeded."""
        gained = (now_s - self._filled_s) * OUTPUT_BYTES_PER_S
        self._credit_bytes = min(OUTPUT_BURST_BYTES, self._credit_bytes + gained)
        self._filled_s = now_s
        size = len(text.encode("utf-8", "replace"))
        if size > self._credit_bytes:
            self._dropped_bytes += size
            return
        self._credit_bytes -= size
        self._texts.setdefault((place, stream), []).append(text)

    def take(self) -> list[tuple[int, int, str, str]]:
        """Remove and return all pieces: number, place, stream and text."""
        taken = [(*key, "".join(texts)) for key, texts in self._texts.items()]
        self._texts = {}
        if self._dropped_bytes:
            note = (
                f"[{self._dropped_bytes:,} bytes of output were dropped: the limit is "
                f"{OUTPUT_BYTES_PER_S // 1024} KiB/s]\n"
            )
            taken.append((taken[0][0] if taken else 0, "stderr", note))
            self._dropped_bytes = 0
        first = self._next
        self._next += len(taken)
        return [(number, *piece) for number, piece in enumerate(taken, first)]
