import re
from pathlib import PurePosixPath

import msgspec
import pytest
from wcwidth import wcswidth

from hyperscale.reporting.results import RunResult, RunStatus
from hyperscale.stats.attempt_results import UsageResult
from hyperscale.stats.reasons import Reason, ReasonKind
from hyperscale.ui.summary import summary
from hyperscale.ui.theme import Theme
from tests.ui import scenes

PLAIN = Theme(colors=None)
SGR = re.compile(r"\x1b\[[0-9;]*m")


def text_of(result: RunResult, width: int = 150) -> str:
    return "\n".join(summary(result, width, PLAIN))


def test_the_summary_has_every_figure_of_a_step() -> None:
    lines = text_of(scenes.result()).splitlines()
    header = next(line for line in lines if line.lstrip().startswith("step"))
    counts, times = "ok failed none cut skipped sent steps/s", "min mean p50 p90 p95 p99 p99.9 max"
    assert " ".join(header.split()) == f"step {counts} {times}"
    login = next(line for line in lines if line.lstrip().startswith("login"))
    assert login.split()[1:5] == ["221,495", "105", "0", "3"]
    assert any(line.lstrip().startswith("all steps") for line in lines)


def test_requests_are_what_was_sent_and_cut_requests_censor_the_percentiles() -> None:
    text = text_of(scenes.result(), width=200)
    assert "664,700 requests · 11,078/s · 664,670 steps · 221,480 iterations" in text
    censored = "9 calls cut at the end, after 1s to 2.5s: percentiles are censored from 1s on"
    assert censored in text
    all_steps = next(line for line in text.splitlines() if line.lstrip().startswith("all steps"))
    assert all_steps.split()[2:8] == ["664,565", "105", "12", "9", "0", "664,679"]


def test_the_summary_names_what_went_wrong_and_ends_with_the_verdict() -> None:
    text = text_of(scenes.result(), 160)
    assert "status 105" in text
    assert "has_price 105 of 221,580 failed  first: AssertionError" in text
    assert re.search(r"✗ errors +<0.01% +0.0158%", text)
    assert re.search(r"✓ login.p99 +<250ms +13.4ms", text)
    assert "saturated on 1 of 2 cores" in text
    assert "dependency failed: Reindex" in text
    assert "reports/report.html" in text
    assert text.splitlines()[-1] == (
        "✗ failed in 1m2s: Shop: errors <0.01%, was 0.0158%; Shop: check has_price failed 105 of "
        "221,580 times; Cleanup: dependency failed: Reindex"
    )


def test_the_summary_lists_workers_with_their_usage_the_busiest_first() -> None:
    result = scenes.result()
    name = result.workflows[0].name

    def used(number: int, attempt: int, cpu: float, *, saturated: bool = False) -> UsageResult:
        return UsageResult(
            workflow=name,
            part=number,
            attempt=attempt,
            worker=f"worker-{number}",
            cores=2,
            cpu=cpu,
            memory_bytes=40_000_000,
            saturated=saturated,
        )

    few = [used(1, 1, 0.25), used(2, 1, 0.97, saturated=True), used(1, 2, 0.5)]
    text = text_of(msgspec.structs.replace(result, usage=few))
    told = "worker-2 cpu 97%, 40 MB, saturated · worker-1 cpu 50%, 40 MB"
    assert [line.split(None, 1) for line in text.splitlines() if "worker-" in line] == [
        ["workers", told]
    ]
    many = [used(number, 1, number / 100) for number in range(1, 51)]
    crowd = text_of(msgspec.structs.replace(result, usage=many))
    assert "worker-50 cpu 50%, 40 MB" in crowd
    assert "42 more cpu 42% at most" in crowd
    assert "workers" not in text_of(result)


def test_a_passing_run_ends_with_passed() -> None:
    text = text_of(scenes.result(passed=True))
    assert text.splitlines()[-1] == "✓ passed in 1m2s"
    assert "saturated" not in text


def test_a_run_without_success_does_not_look_as_if_it_had_passed() -> None:
    result = scenes.result(passed=True)
    first, *others = result.workflows
    reason = Reason(kind=ReasonKind.NO_SUCCESS, text="not one call succeeded: 3 failed")
    failing = msgspec.structs.replace(first, ok=0, failed=first.total, reasons=[reason])
    result = msgspec.structs.replace(result, workflows=[failing, *others], passed=False)
    lines = text_of(result).splitlines()
    assert lines[-1] == "✗ failed in 1m2s: not one call succeeded: 3 failed"
    assert any(line.startswith(f"✗ {first.name}  failed in") for line in lines)


@pytest.mark.parametrize("status", [status for status in RunStatus if status.value != "completed"])
def test_a_run_that_did_not_complete_says_how_it_ended(status: RunStatus) -> None:
    result = msgspec.structs.replace(scenes.result(), status=status, passed=False)
    assert f"{status.value} after 1m2s" in text_of(result).splitlines()[-1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 119, 200])
@pytest.mark.parametrize("theme", [Theme(), PLAIN, Theme(unicode=False, colors=None)])
def test_no_line_but_a_path_is_wider_than_the_window(width: int, theme: Theme) -> None:
    for line in summary(scenes.result(), width, theme):
        assert wcswidth(SGR.sub("", line)) <= width
        assert theme.unicode or line.isascii()


def test_a_long_path_is_not_cut() -> None:
    path = str(PurePosixPath("/", *["directory"] * 20, "report.html"))
    result = msgspec.structs.replace(scenes.result(), outputs={"html": path})
    assert path in text_of(result, 60)


def test_a_threshold_without_samples_says_so() -> None:
    result = scenes.result()
    unmeasured = msgspec.structs.replace(result.thresholds[1], value=None)
    assert "no samples" in text_of(msgspec.structs.replace(result, thresholds=[unmeasured]))


def test_hostile_text_in_results_is_harmless() -> None:
    result = scenes.result()
    workflow = msgspec.structs.replace(
        result.workflows[0], name=scenes.HOSTILE, error=scenes.HOSTILE
    )
    result = msgspec.structs.replace(
        result, workflows=[workflow], warnings=[scenes.HOSTILE], outputs={"html": scenes.HOSTILE}
    )
    for line in summary(result, 100, Theme()):
        assert SGR.sub("", line).isprintable()


def test_narrow_windows_show_every_metric() -> None:
    assert "revenue 1,234,568" in text_of(scenes.result(), 40)
    assert "render mean 12.3ms, p99 34.0ms" in text_of(scenes.result(), 60)


def test_the_summary_marks_latencies_of_a_held_loop_and_names_the_steps() -> None:
    result = scenes.result()
    shop = result.workflows[0]
    first, *others = shop.steps
    held = msgspec.structs.replace(first, held_seconds=24.6, held_max_ms=31.0)
    marked = msgspec.structs.replace(shop, steps=[held, *others], loop_held=True, held_seconds=24.6)
    text = text_of(msgspec.structs.replace(result, workflows=[marked, *result.workflows[1:]]))
    assert "latencies are suspect for 24.6s in all" in text
    assert f"{first.name} 24.6s, up to 31.0ms" in text
    assert "latencies are suspect for" not in text_of(result)
