"""Progress of a worker, from the actions that its executors have finished."""

from hyperscale.jobs.messages import AttemptId
from hyperscale.nodes.agent.executors import UsageMeter

ONE, OTHER = (AttemptId(f"dc.1-{name}", "Load", 0, 1) for name in "ab")


def test_the_end_of_an_attempt_is_no_progress_of_the_others() -> None:
    meter = UsageMeter(cores=2)
    meter.note_actions(ONE, 0, 5)
    meter.note_actions(OTHER, 1, 7)
    meter.measure([], [ONE, OTHER], now_s=0.0)
    assert meter.progress(now_s=1.0) == "progressing"
    meter.measure([], [OTHER], now_s=31.0)
    assert meter.progress(now_s=31.0) == "stalled"
    meter.note_actions(OTHER, 1, 8)
    meter.measure([], [OTHER], now_s=32.0)
    assert meter.progress(now_s=32.0) == "progressing"
    meter.measure([], [], now_s=33.0)
    assert meter.progress(now_s=33.0) == "idle"
