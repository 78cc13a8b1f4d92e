from hyperscale.stats.saturation import SaturationWatch
from tests.stats.parts import Part


def run(
    watch: SaturationWatch,
    part: Part,
    seconds: float,
    *,
    cpu_share: float = 0.3,
    wait_share: float = 0.0,
    lag_s: float = 0.0,
    held_share: float = 0.0,
    every_s: float = 0.1,
) -> None:
    for _ in range(round(seconds / every_s)):
        part.elapsed_s += every_s
        part.cpu_s += every_s * cpu_share
        part.cpu_wait_s += every_s * wait_share
        part.hold("pay", every_s * held_share)
        watch.observe(part.report(histograms=False, loop_lag_s=lag_s))


def test_a_core_in_full_use_for_two_seconds_is_saturated() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 1.5, cpu_share=0.99)
    assert not watch.is_saturated
    run(watch, part, 1.0, cpu_share=0.99)
    assert watch.is_saturated


def test_a_core_that_is_busy_but_not_full_is_not_saturated() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 20, cpu_share=0.85)
    assert not watch.was_saturated


def test_the_warning_does_not_flicker_around_the_limit() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 3, cpu_share=0.95)
    run(watch, part, 5, cpu_share=0.85)
    assert watch.is_saturated
    run(watch, part, 3, cpu_share=0.5)
    assert not watch.is_saturated
    assert watch.was_saturated


def test_repeated_loop_lag_is_saturation_and_a_single_one_is_not() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 0.1, lag_s=0.4)
    run(watch, part, 6.0)
    assert not watch.was_saturated
    run(watch, part, 0.3, lag_s=0.15)
    assert watch.is_saturated
    run(watch, part, 6.0)
    assert not watch.is_saturated


def test_a_loop_that_stalls_for_a_second_at_a_time_is_noticed() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 4, lag_s=1.0, every_s=1.0)
    assert watch.is_saturated


def test_the_warning_counts_the_saturated_cores() -> None:
    watch = SaturationWatch("Shop")
    calm, busy = Part(slot=0), Part(slot=1)
    run(watch, calm, 4)
    run(watch, busy, 4, cpu_share=1.0)
    text = watch.live_warning()
    assert text is not None
    assert text.startswith("Shop: ")
    assert "saturated on 1 of 2 cores" in text
    assert "latencies are suspect" in text
    assert "fewer vus" in text


def test_the_final_warning_says_for_how_long() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 12, cpu_share=1.0)
    run(watch, part, 10)
    assert watch.live_warning() is None
    text = watch.final_warning()
    assert text is not None
    assert "was saturated on 1 of 1 core for up to 1" in text


def test_a_repeated_or_late_report_changes_nothing() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 4)
    late = part.report(histograms=False, loop_lag_s=9.0)
    run(watch, part, 1)
    for _ in range(5):
        watch.observe(late)
    assert not watch.was_saturated


def test_a_core_that_waits_for_other_processes_is_saturated_when_never_idle() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 4, cpu_share=0.6, wait_share=0.2)
    assert not watch.is_saturated
    run(watch, part, 4, cpu_share=0.6, wait_share=0.35)
    text = watch.live_warning()
    assert text is not None
    assert "waited for a core 35% of the time, CPU 60%" in text
    assert "too few cores" in text
    assert "fewer vus" not in text


def test_a_loop_that_code_of_the_test_holds_is_late_but_not_saturated() -> None:
    watch, part = SaturationWatch("Shop"), Part()
    run(watch, part, 6, lag_s=0.3, held_share=0.6)
    assert not watch.was_saturated
    run(watch, part, 6, lag_s=0.3)
    assert watch.is_saturated
