"""Wrong values of everything that shapes the load: each is refused before the run, in words that
name the place, what is wrong and what to do."""

from textwrap import dedent, indent

import pytest

from hyperscale.errors import InputError

from .conftest import Files

STEP = """
@step()
async def page(self, url: URL = "http://localhost/") -> HTTPResponse:
    return await self.client.http.get(url)
"""

ALTERNATIVES = """
@step(weight=WEIGHT)
async def browse(self) -> HTTPResponse:
    return await self.client.http.get("http://localhost/")

@step(weight=1)
async def buy(self) -> HTTPResponse:
    return await self.client.http.get("http://localhost/")
"""

COLUMN = """
pages = Feed([{"url": "http://localhost/1", "n": 5}, {"url": "http://localhost/2", "n": 6}])

@step()
async def page(self, url: URL = pages.column("url"), extra: PART = COLUMN) -> HTTPResponse:
    return await self.client.http.get(url)
"""

SETTINGS = [
    # rates
    ("rate = 500", "Shop.rate: 500 is not a rate"),
    ("rate = '500'", "'500' is not a rate"),
    ("rate = '-5/s'", "'-5/s' is not a rate"),
    ("rate = '0/s'", "'0/s' must be above 0"),
    ("rate = '500/d'", "'500/d' is not a rate"),
    ("rate = '1e9/s'", "'1e9/s' is not a rate"),
    ("rate = '99999999999/s'", "at most 10,000,000/s"),
    ("rate = '5/s'; max_vus = 0", "Shop.max_vus: 0 must be at least 1"),
    ("rate = '5/s'; max_vus = 'many'", "'many' is not a whole number"),
    ("rate = '5/s'; arrivals = 'random'", "Shop.arrivals: 'random' is unknown"),
    ("max_vus = 5", "Shop.max_vus: max_vus needs a rate"),
    ("arrivals = 'poisson'", "Shop.arrivals: arrivals needs a rate"),
    # contradictions
    ("rate = '5/s'; interval = '1s'", "interval and rate contradict each other"),
    ("rate = '5/s'; think = '1s'", "think and rate contradict each other"),
    ("rate = '5/s'; vus = 5", "vus and rate contradict each other"),
    ("rate = '5/s'; iterations = 5", "iterations and rate contradict each other"),
    ("rate = '5/s'; stages = [('1s', 5)]", "stages and rate contradict each other"),
    ("stages = [('1s', 5)]; vus = 5", "vus and stages contradict each other"),
    ("stages = [('1s', 5)]; duration = '1m'", "duration and stages contradict each other"),
    ("stages = [('1s', 5)]; iterations = 9", "iterations and stages contradict each other"),
    ("stages = [('1s', '5/s')]; think = '1s'", "think and stages contradict each other"),
    ("stages = [('1s', '5/s')]; interval = '1s'", "interval and stages contradict each other"),
    ("stages = [('1s', 5)]; max_vus = 5", "Shop.max_vus: max_vus needs a rate"),
    ("interval = '1s'; think = '1s'", "think and interval contradict each other"),
    ("weight = 1; vus = 5", "vus and weight contradict each other"),
    ("weight = 1; rate = '5/s'", "rate and weight contradict each other"),
    # stages
    ("stages = '1m'", "'1m' is not a list of stages"),
    ("stages = []", "[] is not a list of stages"),
    ("stages = [5]", "stage 1: 5 is not a duration and a target"),
    ("stages = [('1m', 5, 6)]", "stage 1: ('1m', 5, 6) is not a duration and a target"),
    ("stages = [('soon', 5)]", "stage 1: 'soon' is not a duration"),
    ("stages = [('1m', -5)]", "stage 1: -5 is neither a number of users"),
    ("stages = [('1m', 2.5)]", "stage 1: 2.5 is neither a number of users"),
    ("stages = [('1m', 5), ('1m', '5/s')]", "some targets are users and some are rates"),
    ("stages = [('0s', 5)]", "all stages together last 0ms"),
    ("stages = [('1m', 0)]", "there is no load: every target is 0"),
    # pauses, iterations, warm-up, weights of workflows
    ("interval = 0", "Shop.interval: 0 must be above 0"),
    ("think = ('3s', '1s')", "has its longest pause first"),
    ("think = ('1s',)", "('1s',) is not a range"),
    ("think = 'soon'", "'soon' is not a duration"),
    ("iterations = 0", "Shop.iterations: 0 must be at least 1"),
    ("iterations = '10/user'", "'10/user' is not a whole number"),
    ("iterations = '0/vu'", "must be at least 1"),
    ("warmup = '1m'; duration = '1m'", "leaves nothing of the 1m to measure"),
    ("warmup = -1", "Shop.warmup: -1"),
    ("weight = 0", "Shop.weight: 0 is not a weight"),
    ("weight = True", "Shop.weight: True is not a weight"),
    # thresholds
    ("thresholds = {'p99': '<250ms over 11m'}", "a whole number of seconds, from 1s to 10m"),
    ("thresholds = {'p99': '<250ms over 0s'}", "from 1s to 10m"),
    ("thresholds = {'p99': '<250ms over 1.5s'}", "a whole number of seconds"),
    ("thresholds = {'p99': '<250ms over long'}", "'long' is not a duration"),
    ("thresholds = {'p99': '<250 over 10s'}", "a number without a unit"),
    ("thresholds = {'checks': '>99% over 10s'}", "judged over the whole run only"),
    ("thresholds = {'iteration.p99': '<1s over 9s'}", "judged over the whole run only"),
    ("thresholds = {'delivered': '>98%'}", "there are none without a rate"),
    ("rate = '5/s'; thresholds = {'delivered': '>98% over 9s'}", "over the whole run only"),
    ("rate = '5/s'; thresholds = {'delivered': '>120%'}", "'>120%' is more than 100 %"),
    ("rate = '5/s'; thresholds = {'late': '<5ms'}", "has the unit 'ms'"),
    ("thresholds = {'p99': {'limit': '<1s', 'delay': '5s'}}", "a delay has no meaning without"),
]


def refused(files: Files, body: str) -> str:
    text = f"class Shop(Workflow):\n{indent(dedent(body).strip(), '    ')}\n"
    with pytest.raises(InputError) as caught:
        files.plan(text, name="shop.py")
    message = str(caught.value)
    assert "shop.py" in message, message  # the place
    return message


@pytest.mark.parametrize(("settings", "said"), SETTINGS)
def test_a_wrong_setting_is_refused(files: Files, settings: str, said: str) -> None:
    assert said in refused(files, "\n".join(settings.split("; ")) + STEP)


@pytest.mark.parametrize("weight", ["0", "-1", "'3'", "True", "float('nan')", "10**7", "[1]"])
def test_a_wrong_weight_of_a_step_is_refused(files: Files, weight: str) -> None:
    message = refused(files, ALTERNATIVES.replace("WEIGHT", weight))
    assert "Shop.browse: weight: " in message
    assert "is not a weight (hint: a number above 0, up to 1,000,000)" in message


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (ALTERNATIVES.replace("WEIGHT", "None"), "Shop.buy: has a weight, but no other step at"),
        (
            ALTERNATIVES.replace("WEIGHT", "3").replace("@step(weight=1)", "@step('x', weight=1)")
            + STEP.replace("def page", "def x"),
            "Shop.browse: has a weight, but no other step at the start has one",
        ),
        (
            ALTERNATIVES.replace("WEIGHT", "3")
            + STEP.replace("()", "('browse')").replace("page", "more")
            + STEP.replace("()", "('buy')").replace("page", "pay")
            + STEP.replace("()", "('more', 'pay')").replace("page", "last"),
            "Shop.last: never runs, because it waits for steps of more than one of the "
            "alternatives browse, buy",
        ),
    ],
)
def test_alternatives_that_make_no_sense_are_refused(files: Files, steps: str, said: str) -> None:
    assert said in refused(files, steps)


@pytest.mark.parametrize(
    ("part", "column", "said"),
    [
        ("URL", 'pages.column("ulr")', "extra: row 1 of pages has no column 'ulr' (hint: did you"),
        ("URL", 'pages.column("zzz")', "has no column 'zzz' (hint: it has 'url', 'n')"),
        ("URL", "pages.column(5)", "has no column 5"),
        ("URL", 'pages.column("n")', "extra: row 1 of pages: 5 is not a URL"),
        ("Headers", 'pages.column("url")', "is not a mapping of headers"),
        ("Cookies", 'pages.column("n")', "row 1 of pages: 5 is not a mapping of cookies"),
        ("File", 'pages.column("url")', "extra: a column cannot be this kind of parameter"),
        ("str", 'pages.column("url")', "extra: a column cannot be this kind of parameter"),
        ("URL", 'Feed([{"url": "http://a/"}]).column("url")', "of a feed that Shop does not have"),
    ],
)
def test_a_wrong_column_is_refused(files: Files, part: str, column: str, said: str) -> None:
    assert said in refused(files, COLUMN.replace("PART", part).replace("COLUMN", column))


def test_a_wrong_cell_is_refused_with_its_row(files: Files) -> None:
    files.write("url\nhttp://localhost/\nlocalhost\n", "pages.csv")
    body = 'pages = Feed("pages.csv")' + STEP.replace('"http://localhost/"', 'pages.column("url")')
    said = refused(files, body)
    assert "Shop.page: url: row 2 of pages: 'localhost' is not an http URL" in said


def test_only_a_step_takes_a_column(files: Files) -> None:
    body = COLUMN.replace("PART", "URL").replace("COLUMN", 'pages.column("url")')
    body += """
@check()
def c(self, page: HTTPResponse, url: URL = pages.column("url")) -> bool:
    return True
"""
    assert "Shop.c: url: only a step has a row" in refused(files, body)
