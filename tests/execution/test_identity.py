"""Who a virtual user is: its number, its iteration, and which attributes `self` has."""

import pytest

from hyperscale.errors import RunError
from tests.lab.executors import Bench, Lab


def test_every_user_has_its_own_number_and_counts_its_iterations(lab: Lab) -> None:
    lab.write("""
        class Numbered(Workflow):
            vus = 7
            duration = "30s"
            iterations = 70

            @step()
            async def one(self) -> Result:
                log("step", self.vu, self.iteration)
                await asyncio.sleep(0)
                return Result()

            @setup(per="vu")
            async def login(self):
                log("login", self.vu)
    """)
    lab.run("Numbered", executors=3)
    seen: dict[int, list[int]] = {}
    for line in lab.log():
        if line.startswith("step"):
            _, vu, iteration = line.split()
            seen.setdefault(int(vu), []).append(int(iteration))
    # User k of slot s of 3 is s + 3k.
    assert sorted(seen) == list(range(7))
    assert all(counted == list(range(len(counted))) for counted in seen.values())
    assert sorted(line for line in lab.log() if "login" in line) == [f"login {n}" for n in range(7)]


def test_what_setup_sets_on_self_belongs_to_the_executor_or_to_the_user(lab: Lab) -> None:
    lab.write("""
        class Scoped(Workflow):
            vus = 4
            duration = "30s"
            iterations = 8

            def __init__(self):
                self.pool = None

            @setup(per="executor")
            async def open(self):
                self.pool = object()
                log("open")

            @setup(per="vu")
            async def login(self):
                self.token = f"{os.getpid()}-{self.vu}"
                self.seen = [self.pool]
                await asyncio.sleep(0)

            @step()
            async def one(self) -> Result:
                self.seen.append(self.pool)
                log("pool", id(self.pool))
                return Result(ok=self.token.endswith(f"-{self.vu}") and self.pool is self.seen[0])

            @teardown(per="vu")
            async def logout(self):
                log("logout", self.token)

            @teardown(per="executor")
            async def close(self):
                self.pool = None
                log("close")
    """)
    outcomes = lab.run("Scoped", executors=2)
    assert sum(outcome.step("one").counts.ok for outcome in outcomes) == 8
    assert [outcome.step("login").counts.ok for outcome in outcomes] == [2, 2]
    lines = lab.log()
    assert len({line for line in lines if line.startswith("pool")}) == 2
    assert len({line for line in lines if line.startswith("logout")}) == 4
    assert lines.count("open") == lines.count("close") == 2


@pytest.mark.parametrize(
    ("hook", "is_refused"),
    [
        ("@step()\nasync def two(self) -> Result: self.token = 1", False),
        ("@check()\ndef two(self, one): self.token = 1", False),
        ("@setup()\ndef two(self): self.token = 1", True),
        ("@state('Other')\ndef two(self) -> Use[str]: self.token = 1", True),
    ],
)
def test_elsewhere_setting_self_is_an_error_that_names_the_way(
    lab: Lab, hook: str, is_refused: bool
) -> None:
    body = "\n".join(f"            {line}" for line in hook.splitlines())
    lab.write(f"""
        class Other(Workflow):
            @step()
            async def one(self) -> Result: return Result()

        @depends("Other")
        class Careless(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def one(self) -> Result:
                return Result()

{body}
    """)
    advice = r"self\.token cannot be set here.*self\.context\[.token.\].*@setup\(per=.vu.\)"
    if is_refused:
        with pytest.raises(RunError, match=advice):
            lab.run("Careless")
        return
    (outcome,) = lab.run("Careless")
    said = outcome.output + "".join(check.first_failure or "" for check in outcome.report.checks)
    assert "self.token cannot be set here" in said
    assert "self.context['token']" in said
    assert '@setup(per="vu")' in said


def test_a_login_that_fails_fails_the_slot_and_those_who_logged_in_log_out(lab: Lab) -> None:
    lab.write("""
        class Logins(Workflow):
            vus = 1000
            duration = "30s"

            @setup(per="vu")
            async def login(self):
                log("login", self.vu)
                await asyncio.sleep(0)
                if self.vu == 150:
                    raise PermissionError("150 is locked")

            @step()
            async def one(self) -> Result:
                return Result()

            @teardown(per="vu")
            async def logout(self):
                log("logout", self.vu)
    """)

    async def work(bench: Bench) -> None:
        with pytest.raises(RunError, match=r"Logins\.login failed: PermissionError: 150 is locked"):
            await bench.prepare("Logins")

    lab.work(work)
    lines = lab.log()
    logged_in = {line.split()[1] for line in lines if line.startswith("login")}
    logged_out = {line.split()[1] for line in lines if line.startswith("logout")}
    assert logged_in == logged_out
    assert 150 < len(logged_in) < 1000
