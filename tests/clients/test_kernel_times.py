"""Latencies while code of the test holds the event loop: the kernel knows when responses came."""

import asyncio
import time

import pytest

from hyperscale.testing import HTTPResponse
from tests.conftest import RunningTarget
from tests.lab.clients import Lab, in_lab

_HOLD_S = 0.3
_ROUNDS = 5


async def held_while_it_answers(lab: Lab, url: str) -> HTTPResponse:
    """Send a request, then hold the loop for longer than the response takes."""
    call = asyncio.ensure_future(lab.http.get(url, verify=False))
    await asyncio.sleep(0)
    time.sleep(_HOLD_S)
    return await call


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_latency_does_not_contain_the_time_in_which_the_loop_was_held(
    target: RunningTarget, tls_target: RunningTarget, scheme: str
) -> None:
    url = (target if scheme == "http" else tls_target).url

    async def work(lab: Lab) -> list[HTTPResponse]:
        await lab.http.get(f"{url}/json", verify=False)  # opens the connection
        return [await held_while_it_answers(lab, f"{url}/json") for _ in range(_ROUNDS)]

    responses = in_lab(work)
    assert all(response.json() for response in responses)
    # The machine may be slow to answer once, but not every time.
    assert min(response.elapsed_s for response in responses) < _HOLD_S / 2
    phases = [response.phases.first_byte_s for response in responses]
    assert min(first_byte_s for first_byte_s in phases if first_byte_s) < _HOLD_S / 2


def test_a_response_that_came_in_time_is_no_timeout_although_it_is_read_late(
    target: RunningTarget,
) -> None:
    async def work(lab: Lab) -> HTTPResponse:
        await lab.http.get(f"{target.url}/json")
        call = asyncio.ensure_future(lab.http.get(f"{target.url}/delay/20", timeout=0.25))
        await asyncio.sleep(0)
        time.sleep(1.0)
        return await call

    assert in_lab(work).status == 200
