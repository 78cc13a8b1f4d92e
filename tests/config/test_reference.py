"""The page on nodes lists every setting."""

from tests.config.reference import in_document, table


def test_the_table_of_settings_is_that_of_the_schema() -> None:
    assert in_document() == table(), "run: python -m tests.config.reference"
