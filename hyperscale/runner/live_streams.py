"""The live streams of a run: what they get, and when.

Makes a snapshot from the merged statistics at an interval, notes what people should see in their
graphs, and hands both to `reporting.streams.hub`, which sends them in a thread of its own.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from hyperscale.reporting.streams.hub import LiveStream, StreamHub
from hyperscale.reporting.streams.snapshot import (
    Annotation,
    AnnotationKind,
    Snapshot,
    breached,
    metrics_of,
)
from hyperscale.stats.workflow import WorkflowStats


class RunStreams:
    """The streams of one run, open from the start of the run to `finish`."""

    def __init__(
        self,
        streams: Sequence[LiveStream],
        *,
        run_id: str,
        file: str,
        workflows: Callable[[], Sequence[WorkflowStats]],
        every_s: float,
        datacenter: str = "",
        started_unix_ms: int = 0,
    ) -> None:
        """`started_unix_ms`: when a run began that has been streamed before, or elsewhere."""
        self._hub = StreamHub(streams)
        self._run_id = run_id
        self._file = file
        self._workflows = workflows
        self._every_s = every_s
        self._datacenter = datacenter
        self._started_unix_ms = started_unix_ms or _now_unix_ms()
        self._annotations: list[Annotation] = []
        self._breached: set[tuple[str, str]] = set()  # workflow, threshold
        self.annotate("start", f"{file} started", at_unix_ms=self._started_unix_ms)

    def annotate(
        self, kind: AnnotationKind, text: str, workflow: str = "", *, at_unix_ms: int = 0
    ) -> None:
        """Note something for the next snapshot."""
        self._annotations.append(Annotation(kind, at_unix_ms or _now_unix_ms(), text, workflow))

    async def run(self) -> None:
        """Push a snapshot at each interval, until cancelled."""
        while True:
            self.push()
            await asyncio.sleep(self._every_s)

    async def finish(
        self, verdict: str, totals: Sequence[WorkflowStats] | None = None
    ) -> tuple[str, ...]:
        """Push the totals, wait until they have arrived, and return what was lost."""
        if totals is not None:
            self._workflows = lambda: totals
        self.annotate("end", f"{self._file} {verdict}")
        self.push(is_final=True)
        losses = await asyncio.to_thread(self._hub.finish)
        return tuple(loss.describe() for loss in losses)

    def close(self) -> None:
        """End the streams if `finish` did not."""
        self._hub.abandon()

    def push(self, *, is_final: bool = False) -> None:
        """Push a snapshot with what was noted since the last one."""
        workflows = self._workflows()
        for stats in workflows:
            for name, text in breached(stats).items():
                if (stats.plan.name, name) not in self._breached:
                    self._breached.add((stats.plan.name, name))
                    self.annotate("threshold", text, stats.plan.name)
        annotations, self._annotations = tuple(self._annotations), []
        self._hub.push(
            Snapshot(
                run_id=self._run_id,
                file=self._file,
                started_unix_ms=self._started_unix_ms,
                at_unix_ms=_now_unix_ms(),
                metrics=metrics_of(self._run_id, workflows, datacenter=self._datacenter),
                annotations=annotations,
                is_final=is_final,
                datacenter=self._datacenter,
            )
        )


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
