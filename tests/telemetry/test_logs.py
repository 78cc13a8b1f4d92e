"""Events of a node as JSON lines."""

import io
import json
import logging
import os
import re
import sys
import traceback
import warnings
from contextlib import closing, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.telemetry.logs import (
    LINES_WAITING_MAX,
    LineWriter,
    json_line,
    log_to,
    printed_as_events,
)


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


def test_what_libraries_print_and_warn_becomes_events() -> None:
    stream = io.StringIO()
    before = sys.stderr
    with log_to(stream, "info", {"node": "m0"}), printed_as_events():
        for part in ("half a line, ", "and the rest", "\n"):
            sys.stderr.write(part)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old call", UserWarning, stacklevel=1)
        try:
            raise ValueError("no such thing")
        except ValueError:
            traceback.print_exc()
        sys.stderr.write("no end of line")
    assert sys.stderr is before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {line["node"] for line in lines} == {"m0"}
    assert lines[0]["event"] == "stderr.printed"
    assert lines[0]["detail"] == "half a line, and the rest"
    assert lines[1]["event"] == "py.reported"
    assert "old call" in lines[1]["detail"]
    details = [line["detail"] for line in lines if line["event"] == "stderr.printed"]
    assert "ValueError: no such thing" in details
    assert details[-1] == "no end of line"
