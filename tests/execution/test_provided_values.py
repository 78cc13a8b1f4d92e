"""Values that one workflow provides to another."""

from hyperscale.execution.values import pack_value
from hyperscale.plan.context import ContextValue, ReceivedContext, decode_provided, encode_received
from hyperscale.plan.status import PartStatus
from tests.lab.executors import Lab


def test_provided_values_and_the_context_are_sent_as_opaque_bytes(lab: Lab) -> None:
    lab.write("""
        class Token:
            def __init__(self, text):
                self.text = text

        class Seed(Workflow):
            vus = 1
            duration = "30s"

            @action()
            async def make(self):
                self.context["plain"] = {"a": [1, 2.5, None, "x", b"y"]}
                self.context["lock"] = __import__("threading").Lock()
                return 41

            @state("Shop")
            def token(self) -> Provide[Token]:
                return Token("t-1")

            @state("Shop")
            async def last(self) -> Provide[int]:
                return self.make.response + 1

            @state("Shop")
            def nothing(self) -> Provide[str]:
                return None

        @depends("Seed")
        class Shop(Workflow):
            vus = 2
            duration = "30s"
            iterations = 2

            @state("Seed")
            def take(self, token: Token | None = None, last=0, nothing="-") -> Use[str]:
                self.context["taken"] = (token.text, last, nothing)
                return token.text

            @step()
            async def use(self, taken=None, plain=None) -> Result:
                log(taken, plain, self.take(), "lock" in self.context)
                return Result()
    """)
    (outcome,) = lab.run("Seed")
    assert outcome.finished is not None
    assert outcome.finished.status is PartStatus.COMPLETED
    provided = decode_provided(outcome.finished.provided)
    assert set(provided.states) == {"token", "last"}
    assert set(provided.context) == {"plain"}
    assert "lock" in outcome.output
    values = {
        key: ContextValue(chunks=(data,))
        for key, data in (provided.states | provided.context).items()
    }
    uses = {"take": {key: values[key] for key in ("token", "last")}}
    received = encode_received(ReceivedContext(context=values, uses=uses))
    lab.run("Shop", context=received)
    expected = "('t-1', 42, '-') {'a': [1, 2.5, None, 'x', b'y']} t-1 False"
    assert lab.log() == [expected] * 2


def test_a_provided_list_has_the_items_of_all_slots(lab: Lab) -> None:
    lab.write("""
        class Seed(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @step()
            async def make(self) -> Result:
                return Result()

            @state("Shop")
            def ids(self) -> Provide[list[int]]:
                return [1]

        @depends("Seed")
        class Shop(Workflow):
            vus = 1
            duration = "30s"
            iterations = 1

            @state("Seed")
            def take(self, ids: list[int] = []) -> Use[list[int]]:
                log(ids)

            @step()
            async def use(self) -> Result:
                return Result()
    """)
    value = ContextValue(
        chunks=(pack_value([1, 2], where=""), pack_value([3], where="")), is_list=True
    )
    lab.run("Shop", context=encode_received(ReceivedContext(uses={"take": {"ids": value}})))
    assert lab.log() == ["[1, 2, 3]"]


def test_a_slot_that_provides_too_many_bytes_fails_with_their_number(lab: Lab) -> None:
    seed = """
class Seed(Workflow):
    vus = 1
    duration = "30s"
    iterations = 1

    @step()
    async def make(self) -> Result:
        return Result()
"""
    for number in range(17):
        seed += f"""
    @state("Shop")
    def value{number}(self) -> Provide[str]:
        return "x" * 1_000_000
"""
    shop = """
class Shop(Workflow):
    vus = 1
    duration = "30s"

    @step()
    async def use(self) -> Result:
        return Result()
"""
    lab.write(f"{seed}\n@depends('Seed'){shop}")
    (outcome,) = lab.run("Seed")
    assert outcome.finished is not None, outcome.died
    assert outcome.finished.status is PartStatus.FAILED
    assert "Seed: Provide hooks return 17,0" in (outcome.finished.error or "")
    assert outcome.report.iterations == 1
