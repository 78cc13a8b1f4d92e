"""Where soak tests leave what they found."""

import pytest

from tests.nodes.report import RESULTS, Report


@pytest.fixture
def report() -> Report:
    return Report(RESULTS)
