from collections.abc import Iterator

import pytest

from hyperscale._native import Target


@pytest.fixture
def target() -> Iterator[Target]:
    server = Target()
    yield server
    server.stop()
