"""Entries as they are written."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale.ledger.records import (
    DigestRequested,
    KeySlotsAdopted,
    KeySlotsHandedOver,
    KeySlotsReleased,
    MachineCommand,
    Record,
    RequestAudited,
    StateDigest,
    decode_record,
    encode_record,
)

stamps = st.integers(0, 2**63 - 1)
numbers = st.integers(0, 2**40)
key_slots = st.lists(st.integers(0, 1023), max_size=20).map(tuple)
records = st.one_of(
    st.builds(MachineCommand, stamps, st.text(max_size=128), st.binary(max_size=200)),
    st.builds(KeySlotsReleased, stamps, numbers, key_slots, numbers, numbers),
    st.builds(KeySlotsAdopted, stamps, numbers, key_slots, numbers, st.binary(max_size=200)),
    st.builds(KeySlotsHandedOver, stamps, numbers),
    st.builds(StateDigest, stamps, numbers, st.binary(min_size=16, max_size=16)),
    st.builds(DigestRequested, stamps),
    st.builds(RequestAudited, stamps, st.binary(max_size=200)),
)


@given(records)
def test_a_record_survives_encoding_and_decoding(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_or_decode_to_a_record(data: bytes) -> None:
    try:
        decode_record(data)
    except msgspec.MsgspecError:
        return


def test_a_record_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_record(msgspec.msgpack.encode([99, 1]))
