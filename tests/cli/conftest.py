from collections.abc import Iterator

import pytest

from tests.lab.command import end_all


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    end_all()
