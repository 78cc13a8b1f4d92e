"""The state diagrams of the documentation are those of the code."""

from enum import Enum
from pathlib import Path

import pytest

from tests.diagrams import DIAGRAMS, DOCUMENTS, StateDiagram, names_in, redraw

WITH_DIAGRAMS = [path for path in sorted(DOCUMENTS.glob("*.md")) if names_in(path.read_text())]


class Light(Enum):
    RED = "red"
    GREEN = "green"
    DARK = "dark"


@pytest.mark.parametrize("path", WITH_DIAGRAMS, ids=lambda path: path.name)
def test_a_document_shows_the_transition_tables_of_the_code(path: Path) -> None:
    text = path.read_text()
    assert text == redraw(text), "run `python -m tests.diagrams` to draw the diagrams again"


def test_every_transition_table_is_in_a_document() -> None:
    shown = [name for path in WITH_DIAGRAMS for name in names_in(path.read_text())]
    assert sorted(shown) == sorted(DIAGRAMS)


def test_a_diagram_shows_initial_and_final_states_and_the_causes_of_moves() -> None:
    diagram = StateDiagram(
        {
            Light.RED: {Light.DARK, Light.GREEN},
            Light.GREEN: {Light.DARK: "power cut"},
            Light.DARK: set(),
        },
        initial=(Light.RED,),
    )
    assert diagram.mermaid().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> red",
        "    red --> green",
        "    red --> dark",
        "    green --> dark: power cut",
        "    dark --> [*]",
    ]
