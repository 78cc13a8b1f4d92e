"""Settings that shape the load: what they mean, and a clear refusal of each wrong one."""

from textwrap import dedent

import pytest

from hyperscale.plan import ArrivalKind, StagePlan, WorkflowPlan

from .conftest import Files
from .test_wrong_input import STEP as INDENTED_STEP
from .test_wrong_input import refusal, workflow

STEP = dedent(INDENTED_STEP)


def planned(files: Files, *settings: str, **overrides: object) -> WorkflowPlan:
    body = "\n".join(settings)
    return files.plan(workflow("Shop", f"{body}\n{STEP}"), **overrides).workflows[0]


def test_a_rate_is_a_constant_shape_under_a_cap_of_users(files: Files) -> None:
    plan = planned(files, "rate = '30000/min'", "duration = '10s'")
    assert plan.is_open
    assert plan.stages == (
        StagePlan(duration_s=0.0, target=500.0),
        StagePlan(duration_s=10.0, target=500.0),
    )
    assert (plan.vus, plan.arrivals) == (1000, ArrivalKind.EVEN)
    capped = planned(files, "rate = '7200/h'", "max_vus = 7", "arrivals = 'poisson'")
    assert (capped.stages[0].target, capped.vus) == (2.0, 7)
    assert capped.arrivals is ArrivalKind.POISSON


def test_stages_say_how_many_users_there_are_and_how_long(files: Files) -> None:
    plan = planned(files, "stages = [('1m', 100), ('5m', 100), (30, 0)]")
    assert (plan.vus, plan.duration_s, plan.is_open) == (100, 390.0, False)
    rates = planned(files, "stages = [['1m', '10/s'], ['0s', '0/s']]", "max_vus = 3")
    assert (rates.vus, rates.duration_s, rates.is_open) == (3, 60.0, True)


def test_pauses_warm_up_and_iterations(files: Files) -> None:
    plan = planned(files, "think = ('1s', 3)", "warmup = '30s'", "iterations = '10/vu'")
    assert (plan.think_s, plan.warmup_s) == ((1.0, 3.0), 30.0)
    assert (plan.iterations, plan.iterations_per_vu) == (None, 10)
    assert planned(files, "think = '2s'").think_s == (2.0, 2.0)


def test_settings_that_are_none_are_not_set(files: Files) -> None:
    plan = planned(files, "vus = 5", "rate = None", "stages = None", "think = None")
    assert (plan.vus, plan.stages, plan.is_open) == (5, (), False)


def test_a_duration_of_the_command_line_replaces_that_of_a_rate(files: Files) -> None:
    assert planned(files, "rate = '5/s'", duration="3s").stages[1].duration_s == 3.0


WRONG = [
    ("rate = 500", "Shop.rate: 500 is not a rate"),
    ("rate = '500'", "Shop.rate: '500' is not a rate"),
    ("rate = 'fast'", "Shop.rate: 'fast' is not a rate"),
    ("rate = '-5/s'", "Shop.rate: '-5/s' is not a rate"),
    ("rate = '5/day'", "Shop.rate: '5/day' is not a rate"),
    ("rate = '/s'", "Shop.rate: '/s' is not a rate"),
    ("rate = '1e3/s'", "Shop.rate: '1e3/s' is not a rate"),
    ("rate = 'nan/s'", "Shop.rate: 'nan/s' is not a rate"),
    ("rate = True", "Shop.rate: True is not a rate"),
    ("rate = []", "Shop.rate: [] is not a rate"),
    ("rate = '0/s'", "Shop.rate: '0/s' must be above 0"),
    ("rate = '99999999/s'", "Shop.rate: '99999999/s' must be above 0 and at most 10,000,000/s"),
    ("rate = '5/s'; max_vus = 0", "Shop.max_vus: 0 must be at least 1"),
    ("rate = '5/s'; max_vus = 'x'", "Shop.max_vus: 'x' is not a whole number"),
    ("rate = '5/s'; max_vus = 1.5", "Shop.max_vus: 1.5 is not a whole number"),
    ("rate = '5/s'; max_vus = 10**8", "Shop.max_vus: 100000000 must be at least 1"),
    ("rate = '5/s'; arrivals = 'random'", "Shop.arrivals: 'random' is unknown"),
    ("rate = '5/s'; arrivals = 5", "Shop.arrivals: 5 is unknown"),
    ("max_vus = 5", "Shop.max_vus: max_vus needs a rate"),
    ("arrivals = 'poisson'", "Shop.arrivals: arrivals needs a rate"),
    ("stages = [('1m', 5)]; max_vus = 5", "Shop.max_vus: max_vus needs a rate"),
    ("stages = []", "Shop.stages: [] is not a list of stages"),
    ("stages = '1m'", "Shop.stages: '1m' is not a list of stages"),
    ("stages = 5", "Shop.stages: 5 is not a list of stages"),
    ("stages = {'1m': 5}", "Shop.stages: {'1m': 5} is not a list of stages"),
    ("stages = [5]", "Shop.stages: stage 1: 5 is not a duration and a target"),
    ("stages = ['1m']", "Shop.stages: stage 1: '1m' is not a duration and a target"),
    ("stages = [('1m',)]", "Shop.stages: stage 1: ('1m',) is not a duration and a target"),
    ("stages = [('1m', 5, 6)]", "stage 1: ('1m', 5, 6) is not a duration and a target"),
    ("stages = [('1m', 5), ('x', 5)]", "Shop.stages: stage 2: 'x' is not a duration"),
    ("stages = [(-1, 5)]", "Shop.stages: stage 1: -1 must be at least 0"),
    ("stages = [('1m', -5)]", "Shop.stages: stage 1: -5 is neither a number of users"),
    ("stages = [('1m', 1.5)]", "Shop.stages: stage 1: 1.5 is neither a number of users"),
    ("stages = [('1m', True)]", "Shop.stages: stage 1: True is neither a number of users"),
    ("stages = [('1m', None)]", "Shop.stages: stage 1: None is neither a number of users"),
    ("stages = [('1m', 10**8)]", "stage 1: 100000000 is neither a number of users"),
    ("stages = [('1m', 'many')]", "Shop.stages: stage 1: 'many' is not a rate"),
    ("stages = [('1m', '5')]", "Shop.stages: stage 1: '5' is not a rate"),
    ("stages = [('1m', 5), ('1m', '5/s')]", "some targets are users and some are rates"),
    ("stages = [('0s', 5)]", "Shop.stages: all stages together last 0ms"),
    ("stages = [('20d', 5), ('20d', 5)]", "Shop.stages: all stages together last 960h"),
    ("stages = [('1m', 0)]", "Shop.stages: there is no load: every target is 0"),
    ("stages = [('1m', '0/s')]", "Shop.stages: there is no load: every target is 0"),
    ("stages = [('1s', 1)] * 1001", "Shop.stages: 1,001 stages are more than 1,000"),
    ("think = 'long'", "Shop.think: 'long' is not a duration"),
    ("think = 0", "Shop.think: 0 must be above 0"),
    ("think = -1", "Shop.think: -1 must be above 0"),
    ("think = ('1s',)", "Shop.think: ('1s',) is not a range"),
    ("think = ('1s', '2s', '3s')", "is not a range"),
    ("think = ('3s', '1s')", "Shop.think: ('3s', '1s') has its longest pause first"),
    ("think = ('1s', 'x')", "Shop.think: 'x' is not a duration"),
    ("think = {}", "Shop.think: {} is not a duration"),
    ("warmup = 'x'", "Shop.warmup: 'x' is not a duration"),
    ("warmup = -1", "Shop.warmup: -1 must be at least 0"),
    ("warmup = '1m'", "Shop.warmup: the warm-up of 1m leaves nothing of the 1m to measure"),
    ("warmup = '2h'; duration = '1h'", "Shop.warmup: the warm-up of 2h leaves nothing"),
    ("iterations = '0/vu'", "Shop.iterations: '0' must be at least 1"),
    ("iterations = '1.5/vu'", "Shop.iterations: '1.5/vu' is not a whole number"),
    ("iterations = '5/user'", "Shop.iterations: '5/user' is not a whole number"),
    ("iterations = '-5/vu'", "Shop.iterations: '-5/vu' is not a whole number"),
    ("def rate(self): ...", "Shop.rate: 'rate' is a setting, not a method"),
    ("thresholds = {'dropped': '<1%'}", "'dropped' is a share of arrivals, and there are none"),
    ("thresholds = {'iteration.errors': '<1%'}", "'iteration.errors' names no step 'iteration'"),
    ("rate = '5/s'; thresholds = {'late': '<5ms'}", "has the unit 'ms', but this is a fraction"),
]

CLASHES = [
    ("rate = '5/s'; stages = [('1m', 5)]", "Shop.stages: stages and rate contradict each other"),
    ("rate = '5/s'; vus = 5", "Shop.vus: vus and rate contradict each other"),
    ("rate = '5/s'; interval = '1s'", "Shop.interval: interval and rate contradict each other"),
    ("rate = '5/s'; think = '1s'", "Shop.think: think and rate contradict each other"),
    ("rate = '5/s'; iterations = 5", "Shop.iterations: iterations and rate contradict"),
    ("stages = [('1m', 5)]; vus = 5", "Shop.vus: vus and stages contradict each other"),
    ("stages = [('1m', 5)]; duration = '1m'", "Shop.duration: duration and stages contradict"),
    ("stages = [('1m', 5)]; iterations = 5", "Shop.iterations: iterations and stages contradict"),
    ("stages = [('1m', '5/s')]; interval = 1", "Shop.interval: interval and stages contradict"),
    ("stages = [('1m', '5/s')]; think = 1", "Shop.think: think and stages contradict each other"),
    ("interval = '1s'; think = '1s'", "Shop.think: think and interval contradict each other"),
]


@pytest.mark.parametrize(("settings", "said"), WRONG + CLASHES)
def test_a_wrong_setting_is_named_with_its_value(files: Files, settings: str, said: str) -> None:
    body = "\n".join(settings.split("; "))
    assert said in refusal(files, workflow("Shop", f"{body}\n{STEP}"))


@pytest.mark.parametrize("setting", ["rate = '5/s'", "stages = [('1m', 5)]", "warmup = '1s'"])
def test_a_workflow_that_runs_once_has_no_shape(files: Files, setting: str) -> None:
    body = f"{setting}\n@action()\nasync def seed(self): ..."
    said = refusal(files, workflow("Shop", body))
    assert "measures nothing, so its steps run once" in said


@pytest.mark.parametrize(
    ("setting", "flag", "said"),
    [
        ("rate = '5/s'", {"vus": 5}, "--vus: Shop has a rate"),
        ("stages = [('1m', 5)]", {"vus": 5}, "--vus: Shop has stages"),
        ("stages = [('1m', 5)]", {"duration": "1m"}, "--duration: Shop has stages"),
    ],
)
def test_a_flag_that_a_shape_contradicts_is_refused(
    files: Files, setting: str, flag: dict[str, object], said: str
) -> None:
    assert said in refusal(files, workflow("Shop", f"{setting}\n{STEP}"), **flag)
