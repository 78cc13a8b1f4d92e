"""Exceptions of user code are printed once and then counted."""

from pathlib import Path

from hyperscale.errors import RunError
from hyperscale.execution.user_errors import UserErrorLog, describe_error, failure, format_error
from hyperscale.testing.arguments import split_url
from hyperscale.testing.parameters import Mask, install_mask


def caught(function) -> BaseException:
    try:
        function()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")


def fails_here() -> None:
    raise ValueError("here")


def fails_in_our_code() -> None:
    split_url("nowhere")


def fails_with_a_cause() -> None:
    try:
        fails_here()
    except ValueError as error:
        raise RuntimeError("outer") from error


def test_an_error_message_with_undecodable_bytes_can_be_sent() -> None:
    described = describe_error(ValueError(b"caf\xe9".decode("utf-8", "surrogateescape")))
    assert described == r"ValueError: caf\udce9"


def test_the_first_error_of_a_kind_is_printed_and_the_others_are_counted() -> None:
    said: list[str] = []
    log = UserErrorLog(said.append)
    for _ in range(3):
        log.note("login", caught(fails_here))
    log.note("logout", caught(fails_here))
    assert len(said) == 2
    assert said[0].startswith("login raised (shown once by each process):\nTraceback")
    log.summarise()
    assert len(said) == 3
    assert "login raised ValueError at" in said[2]
    assert "3 times in this process" in said[2]


def test_tracebacks_leave_out_frames_of_hyperscale() -> None:
    text = format_error(caught(fails_in_our_code))
    assert "in fails_in_our_code" in text
    assert "in split_url" not in text


def test_tracebacks_of_causes_are_kept_and_trimmed() -> None:
    text = format_error(caught(fails_with_a_cause))
    assert "ValueError: here" in text
    assert "RuntimeError: outer" in text
    assert "direct cause" in text


def test_a_description_names_the_error_and_the_users_line() -> None:
    assert describe_error(caught(fails_here)).startswith("ValueError: here (test_user_errors.py:")


def test_an_error_raised_in_a_library_names_the_line_of_the_user() -> None:
    told = describe_error(caught(lambda: Path("nowhere/x.csv").read_text()))
    assert told.startswith("FileNotFoundError: ")
    assert "(test_user_errors.py:" in told


def test_a_missing_file_gets_a_hint_that_opened_files_are_not_sent() -> None:
    missing = caught(lambda: Path("nowhere").read_text())
    assert "must be on every machine" in failure(RunError, "Shop.open failed", missing).hint
    assert failure(RunError, "Shop.open failed", caught(fails_here)).hint == ""


def test_a_message_of_several_lines_becomes_one_and_notes_are_left_out() -> None:
    def fails() -> None:
        error = ValueError("first\n  second\n")
        error.add_note("and this")
        raise error

    assert describe_error(caught(fails)).startswith(
        "ValueError: first second (test_user_errors.py:"
    )
    assert describe_error(caught(lambda: compile("x = (", "user.py", "exec"))).startswith(
        "SyntaxError: '(' was never closed (test_user_errors.py:"
    )


def test_a_very_long_message_is_cut() -> None:
    def fails() -> None:
        raise ValueError("x" * 100_000)

    assert len(describe_error(caught(fails))) < 600


def test_a_secret_is_masked_also_where_a_text_is_cut() -> None:
    secret = "hunter2-" * 10

    def fails(length: int) -> None:
        raise ValueError("x" * length + secret + "y" * 3_960)

    install_mask(Mask([secret]))
    try:
        for length in (440, 470):
            seen = UserErrorLog(lambda _: None).note("step", caught(lambda n=length: fails(n)))
            assert "hunter2" not in seen.message + seen.trace
    finally:
        install_mask(Mask())


def test_the_number_of_kinds_of_errors_is_limited() -> None:
    said: list[str] = []
    log = UserErrorLog(said.append)
    for number in range(150):
        log.note(f"step{number}", caught(fails_here))
    assert len(said) == 100
    log.summarise()
    assert said[-1] == "… and 50 exceptions of other kinds, not shown\n"
