"""Keys of submissions, key slots and job ids."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.jobs.committed.keys import (
    KEY_BYTES_MAX,
    JobName,
    job_id,
    key_problem,
    parse_job_id,
)
from hyperscale.ledger.replica import KEY_SLOTS, key_slot_of


@given(st.text())
def test_every_key_has_a_key_slot(key: str) -> None:
    assert 0 <= key_slot_of(key) < KEY_SLOTS


@given(st.text(min_size=1), st.integers(0, 10_000))
def test_a_job_id_names_its_scope_and_group(key: str, group: int) -> None:
    name = parse_job_id(job_id("dc-1.eu", group, key))
    assert (name.scope, name.group) == ("dc-1.eu", group)
    assert name.id == parse_job_id(job_id("other", 7, key)).id


def test_key_slots_and_job_ids_are_the_same_in_every_process() -> None:
    code = (
        "from hyperscale.jobs.committed.keys import job_id; "
        "from hyperscale.ledger.replica import key_slot_of; "
        "print(key_slot_of('a'), job_id('x', 1, 'a'))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77"},
    ).stdout.split()
    assert printed == [str(key_slot_of("a")), job_id("x", 1, "a")]


def test_keys_are_spread_evenly_over_key_slots() -> None:
    counts = [0] * KEY_SLOTS
    for number in range(64 * KEY_SLOTS):
        counts[key_slot_of(f"key-{number}")] += 1
    assert min(counts) > 20
    assert max(counts) < 120


@pytest.mark.parametrize("job", ["", "x", "x.1", "x-1", ".1-a", "x.a-b", "x.1-", "x.²-a"])
def test_a_text_that_is_not_a_job_id_is_refused(job: str) -> None:
    with pytest.raises(InputError, match="not a job id"):
        parse_job_id(job)


def test_a_scope_may_have_dots_and_dashes() -> None:
    assert parse_job_id("eu-west.dc-1.12-abc") == JobName("eu-west.dc-1", 12, "abc")


@pytest.mark.parametrize("key", ["a", "host:pid:1", "::1:42:ff", "k" * KEY_BYTES_MAX, "schlüssel"])
def test_any_printable_text_of_limited_size_is_a_key(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize("key", ["", "k" * (KEY_BYTES_MAX + 1), "ü" * 65, "a\nb", "\ud800"])
def test_a_malformed_key_has_a_problem(key: str) -> None:
    assert (key_problem(key) or "").startswith("Invalid idempotency key format")
