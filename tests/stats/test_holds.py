from hyperscale.stats.holds import hold_warnings, is_loop_held, loop_holds
from hyperscale.stats.workflow import WorkflowStats
from tests.stats.parts import Part, make_plan


def stats_of(*parts: Part) -> WorkflowStats:
    stats = WorkflowStats(make_plan())
    for part in parts:
        part.elapsed_s = 10.0
        stats.apply(part.report(histograms=False))
    return stats


def test_holds_of_all_executors_are_one_share_of_their_time_together() -> None:
    busy, calm = Part(slot=0), Part(slot=1)
    for _ in range(100):
        busy.hold("pay", 0.03)
    for _ in range(4):
        calm.hold("pay", 0.05)
    (hold,) = loop_holds(stats_of(busy, calm))
    assert (hold.name, hold.what, hold.count) == ("pay", "step", 104)
    assert round(hold.seconds, 6) == 3.2
    assert hold.max_s == 0.05
    assert round(hold.share, 6) == 0.16


def test_one_executor_report_of_a_part_has_the_holds_of_all() -> None:
    parts = [Part(slot=slot) for slot in range(2)]
    for part in parts:
        part.hold("pay", 0.03)
    merged = stats_of(*parts).merged(slot=0, sequence=1)
    assert merged is not None
    again = WorkflowStats(make_plan())
    again.apply(merged)
    assert loop_holds(again) == loop_holds(stats_of(*parts))


def test_a_rare_pause_is_counted_and_not_warned_of() -> None:
    part = Part()
    part.hold("pay", 0.2)
    part.hold("pay", 0.2)
    stats = stats_of(part)
    assert loop_holds(stats)[0].count == 2
    assert not is_loop_held(stats)
    assert hold_warnings(stats) == {}


def test_latencies_are_marked_only_if_many_of_them_contain_the_time_of_the_hold() -> None:
    part = Part()
    for _ in range(50):
        part.hold("pay", 0.03)
    for _ in range(1000):
        part.request("pay", 1_000_000)
    stats = stats_of(part)
    assert not is_loop_held(stats)
    assert hold_warnings(stats)["Shop.pay"].endswith("; meanwhile nothing is sent")
    part.counts["pay"].held = 5
    stats = stats_of(part)
    assert is_loop_held(stats)
    assert hold_warnings(stats)["Shop.pay"].endswith("; latencies contain that time")


def test_code_that_waits_and_code_that_computes_get_different_advice() -> None:
    part = Part()
    for _ in range(50):
        part.hold("pay", 0.03)
        part.hold("is_fast", 0.02, cpu_s=0.019)
        part.hold("write_log", 0.01)
    texts = hold_warnings(stats_of(part))
    pay, check, log = texts.values()
    assert list(texts) == ["Shop.pay", "Shop.is_fast", "Shop.write_log"]
    assert pay.startswith(
        "Shop: step `pay` blocks for 30 ms at a time (shop.py:14): 15% of the run; "
        "use asyncio or `await asyncio.to_thread`"
    )
    assert "check `is_fast` computes for 20 ms at a time" in check
    assert "to_thread" not in check
    assert "function `write_log` blocks for 10 ms" in log
