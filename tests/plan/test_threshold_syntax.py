import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.plan import MetricKind, StepKind, StepPlan, ThresholdPlan, WorkflowPlan
from hyperscale.plan.thresholds import (
    STEP_KEYS,
    Quantity,
    Threshold,
    parse_threshold,
    threshold_plans,
    thresholds_of,
)

WHERE = "shop.py: Shop.thresholds"
STEPS = ["login", "pay"]
METRICS = {
    "carts": MetricKind.COUNT,
    "depth": MetricKind.GAUGE,
    "spend": MetricKind.DISTRIBUTION,
    "render": MetricKind.TIMER,
    "orders": MetricKind.RATE,
}


def parse(name: object, limit: object) -> Threshold:
    return parse_threshold(name, limit, where=WHERE, steps=STEPS, metrics=METRICS)


@pytest.mark.parametrize(
    ("name", "limit", "step", "metric", "key", "bound"),
    [
        ("login.p99", "<250ms", "login", None, "p99", 0.25),
        ("p999", "<= 1.5s", None, None, "p999", 1.5),
        ("mean", "<500us", None, None, "mean", 0.0005),
        ("errors", "<1%", None, None, "errors", 0.01),
        ("pay.errors", "<=0.02", "pay", None, "errors", 0.02),
        ("rate", ">500/s", None, None, "rate", 500.0),
        ("rate", ">500", None, None, "rate", 500.0),
        ("login.total", ">=1000", "login", None, "total", 1000.0),
        ("checks", ">=99.9%", None, None, "checks", 0.999),
        ("carts", ">=10", None, "carts", "value", 10.0),
        ("orders", ">2/s", None, "orders", "value", 2.0),
        ("depth", ">-5", None, "depth", "value", -5.0),
        ("render", "<20ms", None, "render", "value", 0.02),
        ("render.p95", "<20ms", None, "render", "p95", 0.02),
        ("spend.p50", "<30", None, "spend", "p50", 30.0),
        ("errors", "==0", None, None, "errors", 0.0),
    ],
)
def test_a_threshold_names_what_it_judges_and_its_bound_in_base_units(
    name: str, limit: str, step: str | None, metric: str | None, key: str, bound: float
) -> None:
    parsed = parse(name, limit)
    assert (parsed.step, parsed.metric, parsed.key) == (step, metric, key)
    assert parsed.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "name", ["p98", "checkout.p99", "login.p42", "login.", ".p99", "", "carts.p99", "Login.p99", 7]
)
def test_an_unknown_key_is_refused_with_the_valid_ones(name: object) -> None:
    with pytest.raises(InputError) as caught:
        parse(name, "<250ms")
    text = str(caught.value)
    assert text.startswith(WHERE)
    assert repr(name) in text
    assert all(word in text for word in ("p50", "checks", "login", "pay", "carts"))


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("p99", "<250"),
        ("p99", "<1%"),
        ("p99", "250ms"),
        ("p99", "=<250ms"),
        ("p99", "<-1ms"),
        ("p99", "<250 ms 3"),
        ("p99", 250),
        ("p99", None),
        ("p99", True),
        ("errors", "<5"),
        ("errors", "<101%"),
        ("errors", "<250ms"),
        ("checks", ">2/s"),
        ("rate", ">500ms"),
        ("rate", ">50%"),
        ("total", ">10/s"),
        ("total", ">10%"),
        ("carts", "<1s"),
        ("render", "<5"),
        ("total", f">{'9' * 400}"),
    ],
)
def test_a_limit_that_does_not_fit_its_key_is_refused_with_an_example(
    name: str, limit: object
) -> None:
    with pytest.raises(InputError) as caught:
        parse(name, limit)
    text = str(caught.value)
    assert text.startswith(f"{WHERE}[{name!r}]")
    assert repr(limit) in text
    assert "write a" in text


def test_a_mapping_becomes_plans_in_the_order_written() -> None:
    plans = threshold_plans(
        {"login.p99": "<250ms", "p99": {"limit": "<300ms", "abort_on_fail": True}},
        where=WHERE,
        steps=STEPS,
        metrics=METRICS,
    )
    assert plans == (
        ThresholdPlan(name="login.p99", limit="<250ms"),
        ThresholdPlan(name="p99", limit="<300ms", abort_on_fail=True),
    )


def test_a_workflow_without_thresholds_has_no_threshold_plans() -> None:
    assert threshold_plans(None, where=WHERE, steps=(), metrics={}) == ()


@pytest.mark.parametrize(
    "thresholds",
    [
        ["p99<250ms"],
        "p99<250ms",
        {"p99": {"limit": "<1s", "abort": True}},
        {"p99": {"abort_on_fail": True}},
        {"p99": {"limit": "<1s", "abort_on_fail": "yes"}},
        {"p99": {"limit": "<1s", "delay": "5s"}},
        {"p99": {"limit": "<1s", "abort_on_fail": True, "delay": "soon"}},
        {"p99": {"limit": "<1s", "abort_on_fail": True, "delay": -1}},
        {"p99": {}},
    ],
)
def test_a_malformed_mapping_is_refused(thresholds: object) -> None:
    with pytest.raises(InputError, match=r"^shop\.py: Shop\.thresholds"):
        threshold_plans(thresholds, where=WHERE, steps=STEPS, metrics=METRICS)


def test_the_thresholds_of_a_plan_are_those_that_were_parsed() -> None:
    plan = WorkflowPlan(
        name="Shop",
        vus=1,
        duration_s=1,
        timeout_s=1,
        steps=(StepPlan(name="login", kind=StepKind.TEST),),
        thresholds=(ThresholdPlan(name="login.p99", limit="<250ms", abort_on_fail=True),),
    )
    (threshold,) = thresholds_of(plan)
    assert threshold.step == "login"
    assert threshold.abort_on_fail
    assert threshold.passes(0.2499)
    assert not threshold.passes(0.25)
    assert threshold.in_unit(0.2) == pytest.approx(200.0)


@given(
    key=st.sampled_from(STEP_KEYS),
    number=st.decimals(min_value=0, max_value=1, places=3),
    compare=st.sampled_from(["<", "<=", ">", ">=", "=="]),
    value=st.floats(min_value=0, max_value=2),
)
def test_a_threshold_passes_by_the_comparison_it_is_written_with(
    key: str, number: float, compare: str, value: float
) -> None:
    unit = {Quantity.DURATION: "s"}.get(parse_quantity(key), "")
    threshold = parse(key, f"{compare}{number}{unit}")
    bound = float(number)
    expected = {
        "<": value < bound,
        "<=": value <= bound,
        ">": value > bound,
        ">=": value >= bound,
        "==": value == bound,
    }
    assert threshold.passes(value) is expected[compare]


def parse_quantity(key: str) -> Quantity:
    for limit in ("<1s", "<1"):
        try:
            return parse(key, limit).quantity
        except InputError:
            continue
    raise AssertionError(key)


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_parsed_or_refused_as_an_input_error(name: str, limit: str) -> None:
    message = WHERE
    try:
        parse(name, limit)
    except InputError as error:
        message = str(error)
    assert message.startswith(WHERE)


@pytest.mark.parametrize(
    ("name", "limit", "bound", "window_s"),
    [
        ("pay.p99", "<250ms over 30s", 0.25, 30),
        ("errors", "<=1% over 1m", 0.01, 60),
        ("rate", ">500/s over 10s", 500.0, 10),
        ("login.total", ">=5  over  1s", 5.0, 1),
    ],
)
def test_a_limit_may_hold_for_every_window(
    name: str, limit: str, bound: float, window_s: int
) -> None:
    parsed = parse(name, limit)
    assert (parsed.bound, parsed.window_s, parsed.limit) == (pytest.approx(bound), window_s, limit)


@pytest.mark.parametrize(
    ("name", "limit", "problem"),
    [
        ("p99", "<250ms over 11m", "from 1s to 10m"),
        ("p99", "<250ms over 0s", "from 1s to 10m"),
        ("p99", "<250ms over 1.5s", "a whole number of seconds"),
        ("p99", "<250ms over soon", "is not a duration"),
        ("p99", "<250ms over", "is not a limit"),
        ("p99", "over 30s", "is not a limit"),
        ("checks", ">99% over 30s", "over the whole run only"),
        ("carts", ">3 over 30s", "over the whole run only"),
        ("iteration.p99", "<1s over 30s", "over the whole run only"),
    ],
)
def test_a_window_that_cannot_be_judged_is_refused(name: str, limit: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse(name, limit)


def test_a_window_of_arrivals_is_refused() -> None:
    with pytest.raises(InputError, match="over the whole run only"):
        parse_threshold(
            "delivered", ">98% over 10s", where=WHERE, steps=STEPS, metrics={}, is_open=True
        )


def test_delivered_is_for_workflows_with_a_rate() -> None:
    with pytest.raises(InputError, match="a share of arrivals, and there are none without a rate"):
        parse("delivered", ">98%")
