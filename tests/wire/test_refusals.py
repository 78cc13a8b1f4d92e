"""Refused peers are counted each time and logged once each."""

import logging

import pytest

from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.refusal_log import LINES_PER_MINUTE, PEERS_REMEMBERED, RefusalLog


def refuse(refusals: RefusalLog, peer: str, reason: RefusalReason, now_s: float = 0.0) -> None:
    refusals.add(peer, PeerProtocolError("no", reason), now_s=now_s)


def test_every_refusal_is_counted_and_each_peer_and_reason_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = RefusalLog()
    with caplog.at_level(logging.WARNING, "hyperscale.wire"):
        for _ in range(5):
            refuse(refusals, "10.0.0.1", RefusalReason.SECRET)
            refuse(refusals, "10.0.0.2", RefusalReason.SECRET)
        refuse(refusals, "10.0.0.1", RefusalReason.CLUSTER)
    assert refusals.counts == {RefusalReason.SECRET: 10, RefusalReason.CLUSTER: 1}
    assert [record.__dict__["peer"] for record in caplog.records] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.1",
    ]
    assert caplog.records[0].__dict__["reason"] == "secret"


def test_forged_addresses_fill_neither_the_log_nor_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = RefusalLog()
    for number in range(3 * PEERS_REMEMBERED):
        refuse(refusals, f"peer-{number}", RefusalReason.SECRET, now_s=number / 1000)
    assert len(caplog.records) <= LINES_PER_MINUTE
    caplog.clear()
    for minute in range(1, PEERS_REMEMBERED + 2):
        refuse(refusals, f"late-{minute}", RefusalReason.SECRET, now_s=60.0 * minute)
        refuse(refusals, "late-1", RefusalReason.ROLE, now_s=60.0 * minute)
    assert len(caplog.records) == PEERS_REMEMBERED + 2
    refuse(refusals, "late-1", RefusalReason.SECRET, now_s=1e9)  # was forgotten, so logged again
    assert len(caplog.records) == PEERS_REMEMBERED + 3
