from tests.services.fixtures import service  # noqa: F401 - a fixture
