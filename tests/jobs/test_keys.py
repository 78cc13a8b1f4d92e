"""Keys, slots and job ids."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.errors import InputError
from hyperscale.jobs.committed.keys import (
    KEY_BYTES_MAX,
    KEY_SLOTS,
    JobName,
    job_id,
    key_problem,
    key_slot_of,
    parse_job_id,
)


@given(st.text())
def test_every_key_has_a_slot(key: str) -> None:
    assert 0 <= key_slot_of(key) < KEY_SLOTS


@given(st.text(min_size=1), st.integers(0, 10_000))
def test_a_job_id_says_where_to_ask_for_it(key: str, group: int) -> None:
    name = parse_job_id(job_id("dc-1.eu", group, key))
    assert (name.scope, name.group) == ("dc-1.eu", group)
    assert name.id == parse_job_id(job_id("other", 7, key)).id


def test_slots_and_ids_are_the_same_in_every_process() -> None:
    code = (
        "from hyperscale.jobs.committed.keys import *; print(key_slot_of('a'), job_id('x', 1, 'a'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77"},
    ).stdout.split()
    assert said == [str(key_slot_of("a")), job_id("x", 1, "a")]


def test_slots_are_used_evenly() -> None:
    counts = [0] * KEY_SLOTS
    for number in range(64 * KEY_SLOTS):
        counts[key_slot_of(f"key-{number}")] += 1
    assert min(counts) > 20
    assert max(counts) < 120


@pytest.mark.parametrize("job", ["", "x", "x.1", "x-1", ".1-a", "x.a-b", "x.1-", "x.²-a"])
def test_what_is_no_job_id_is_said_so(job: str) -> None:
    with pytest.raises(InputError, match="not a job id"):
        parse_job_id(job)


def test_a_scope_may_have_dots_and_dashes() -> None:
    assert parse_job_id("eu-west.dc-1.12-abc") == JobName("eu-west.dc-1", 12, "abc")


@pytest.mark.parametrize("key", ["a", "host:pid:1", "::1:42:ff", "k" * KEY_BYTES_MAX, "schlüssel"])
def test_keys_are_opaque(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize("key", ["", "k" * (KEY_BYTES_MAX + 1), "ü" * 65, "a\nb", "\ud800"])
def test_a_malformed_key_is_named(key: str) -> None:
    assert (key_problem(key) or "").startswith("Invalid idempotency key format")
