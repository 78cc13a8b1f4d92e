"""Events of a node as JSON lines."""

import io
import json
import logging
import os
import re
from contextlib import closing, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.telemetry.logs import LINES_WAITING_MAX, LineWriter, json_line, log_to


def line_of(message: object, *args: object, **extra: object) -> dict[str, Any]:
    record = logging.LogRecord("hyperscale.x", logging.INFO, "f", 1, message, args, None)
    record.__dict__.update(extra)
    formatted = json_line(record, {"node": "m0"})
    assert "\n" not in formatted
    line: dict[str, Any] = json.loads(formatted)
    return line


def test_an_event_is_one_line_with_its_fields() -> None:
    line = line_of("member.died", member="w1", evidence="refused")
    assert line["event"] == "member.died"
    assert (line["node"], line["member"], line["evidence"]) == ("m0", "w1", "refused")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_the_text_after_the_name_of_an_event_is_its_detail() -> None:
    assert line_of("accept.failed: %s", "no room")["detail"] == "no room"
    assert line_of("peer.refused: %s", "x", detail="the rest")["detail"] == "the rest"


def test_records_of_libraries_have_an_event_name_of_their_own() -> None:
    line = line_of("Task %s was destroyed\nbut it is pending", "t")
    assert line["event"] == "hyperscale.reported"
    assert line["detail"] == "Task t was destroyed\nbut it is pending"


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}_x", fullmatch=True), st.text() | st.binary()))
def test_a_field_of_any_type_is_written(fields: dict[str, object]) -> None:
    line_of("member.moved", **fields)


def test_long_fields_are_cut() -> None:
    assert len(line_of("a.b", member="x" * 100_000)["member"]) < 5_000


def test_a_reader_that_stops_reading_does_not_block_the_node() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    with closing(LineWriter(stream, {})) as writer:
        for _ in range(LINES_WAITING_MAX + 5_000):
            writer.emit(logging.LogRecord("hyperscale", 20, "f", 1, "a.b", (), None))
        assert writer.dropped > 0
        os.close(reading)  # later writes fail, and the node does not notice
    with suppress(BrokenPipeError):
        stream.close()


def test_loggers_are_restored_when_a_node_has_ended() -> None:
    logger = logging.getLogger("hyperscale")
    before = (logger.level, logger.propagate, list(logger.handlers))
    stream = io.StringIO()
    with log_to(stream, "info", {"node": "m0"}):
        logging.getLogger("hyperscale.nodes").info("node.started", extra={"address": "a"})
        logging.getLogger("hyperscale.nodes").debug("node.guessed")
    assert (logger.level, logger.propagate, logger.handlers) == before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["node.started"]
