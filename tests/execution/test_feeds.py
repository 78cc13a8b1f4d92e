"""Rows of feeds on virtual users."""

from collections import Counter

import pytest

from hyperscale.errors import InputError
from tests.lab.executors import Lab

PEOPLE = "email,name\n" + "".join(f"u{n}@shop.test,User {n}\n" for n in range(5))


def write(
    lab: Lab, feed: str, settings: str = "", *, rows: str = PEOPLE, load: str = "vus = 2"
) -> None:
    (lab.directory / "people.csv").write_text(rows)
    lab.write(f"""
        from hyperscale.testing import Feed

        class Fed(Workflow):
            {load}
            duration = "20s"
            {settings}
            people = {feed}

            @step()
            async def one(self) -> Result:
                log(self.vu, self.people["email"])
                await asyncio.sleep(0)
                return Result()
    """)


def taken(lab: Lab) -> Counter[str]:
    return Counter(line.split()[1].partition("@")[0] for line in lab.log())


@pytest.mark.parametrize("executors", [1, 2])
def test_rows_are_taken_once_by_all_users_together_and_then_users_end(
    lab: Lab, executors: int
) -> None:
    write(lab, 'Feed("people.csv", take="once")')
    outcomes = lab.run("Fed", executors=executors)
    assert taken(lab) == {f"u{n}": 1 for n in range(5)}
    assert sum(outcome.report.iterations for outcome in outcomes) == 5


@pytest.mark.parametrize("executors", [1, 2])
def test_circular_rows_come_again_in_turn(lab: Lab, executors: int) -> None:
    write(lab, 'Feed("people.csv")', "iterations = 20")
    lab.run("Fed", executors=executors)
    assert taken(lab) == {f"u{n}": 4 for n in range(5)}


def test_a_user_keeps_its_row(lab: Lab) -> None:
    write(lab, 'Feed("people.csv", per="vu")', "iterations = '3/vu'")
    lab.run("Fed", executors=2)
    assert sorted(lab.log()) == ["0 u0@shop.test"] * 3 + ["1 u1@shop.test"] * 3


def test_a_user_for_whom_no_row_is_left_does_not_begin(lab: Lab) -> None:
    write(
        lab, 'Feed("people.csv", per="vu", take="once")', "iterations = '1/vu'", rows="email\na@b\n"
    )
    outcomes = lab.run("Fed", executors=2)
    assert sum(outcome.report.iterations for outcome in outcomes) == 1


def test_random_rows_are_the_same_in_every_run(lab: Lab) -> None:
    write(lab, 'Feed("people.csv", take="random")', "iterations = 30")
    lab.run("Fed")
    first = taken(lab)
    lab.log_file.unlink()
    lab.run("Fed")
    assert taken(lab) == first
    assert len(first) > 1


def test_rows_may_come_from_code_and_cannot_be_changed(lab: Lab) -> None:
    write(lab, 'Feed({"email": f"c{n}"} for n in range(3))', "iterations = 3")
    lab.run("Fed")
    assert taken(lab) == {"c0": 1, "c1": 1, "c2": 1}


def test_rows_from_code_that_differ_in_an_executor_are_refused(lab: Lab) -> None:
    write(lab, 'Feed([{"email": str(os.getpid())}])', "iterations = 3")
    with pytest.raises(InputError, match=r"Fed\.people: has other rows in an executor"):
        lab.run("Fed")


def test_a_rate_ends_when_there_are_no_rows_left(lab: Lab) -> None:
    write(lab, 'Feed("people.csv", take="once")', load="rate = '50/s'")
    outcomes = lab.run("Fed")
    assert sum(outcome.report.iterations for outcome in outcomes) == 5
