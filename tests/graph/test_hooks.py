"""Decorated methods on instances."""

import asyncio
from typing import Any

import pytest

from hyperscale.graph import Provide, Use, Workflow, check, state, step
from hyperscale.graph.workflow import attach, remember
from hyperscale.testing import HTTPResponse


class Sample(Workflow):
    def __init__(self) -> None:
        self.greeting = "hello"

    @step()
    async def login(self, name: str = "x") -> HTTPResponse:
        """Greets."""
        return f"{self.greeting} {name}"  # type: ignore[return-value]  # no client here

    @check()
    def fine(self, login: HTTPResponse) -> bool:
        return bool(login)

    @state("Other")
    def token(self) -> Provide[str]:
        return "t"

    @state("Other")
    def take(self, key: str | None = "default", more: int = 1) -> Use[str]:
        return f"{key}{more}"


def test_decorated_methods_stay_callable() -> None:
    sample = Sample()
    assert asyncio.run(sample.login("you")) == "hello you"  # type: ignore[comparison-overlap]  # as above
    assert sample.fine(login=True)  # type: ignore[arg-type]  # as above
    assert sample.token() == "t"
    assert Sample.login.__doc__ == "Greets."


def test_a_step_has_the_last_response_of_its_own_instance() -> None:
    first, second = Sample(), Sample()
    assert first.login.response is None
    remember(first, "login", "response")
    assert first.login.response == "response"  # type: ignore[comparison-overlap]  # as above
    assert second.login.response is None


def test_a_use_method_without_arguments_gets_the_provided_values() -> None:
    sample = Sample()
    assert sample.take() == "default1"
    attach(sample, client=_client(), context={"key": "k"}, received={"take": {"key": "k"}}, vu=0)
    assert sample.take() == "k1"
    assert sample.take(key="mine", more=2) == "mine2"
    assert sample.context["key"] == "k"


def test_reading_the_client_of_an_instance_without_a_run_raises() -> None:
    with pytest.raises(AttributeError, match="exists only on a virtual user"):
        _ = Sample().client


def test_each_instance_has_its_own_context() -> None:
    first, second = Sample(), Sample()
    first.context["a"] = 1
    assert second.context == {}


def _client() -> Any:
    return object()
