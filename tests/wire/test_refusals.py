"""Refused peers are counted each time and logged once each."""

import logging

import pytest

from hyperscale.wire.errors import PeerProtocolError, Reason
from hyperscale.wire.refusals import LINES_PER_MINUTE, PEERS_REMEMBERED, Refusals


def refuse(refusals: Refusals, peer: str, reason: Reason, now_s: float = 0.0) -> None:
    refusals.add(peer, PeerProtocolError("no", reason=reason), now_s=now_s)


def test_every_refusal_is_counted_and_each_peer_and_reason_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    with caplog.at_level(logging.WARNING, "hyperscale.wire"):
        for _ in range(5):
            refuse(refusals, "10.0.0.1", Reason.SECRET)
            refuse(refusals, "10.0.0.2", Reason.SECRET)
        refuse(refusals, "10.0.0.1", Reason.CLUSTER)
    assert refusals.counts == {Reason.SECRET: 10, Reason.CLUSTER: 1}
    assert [record.__dict__["peer"] for record in caplog.records] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.1",
    ]
    assert caplog.records[0].__dict__["reason"] == "secret"


def test_forged_addresses_fill_neither_the_log_nor_the_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    for number in range(3 * PEERS_REMEMBERED):
        refuse(refusals, f"peer-{number}", Reason.SECRET, now_s=number / 1000)
    assert len(caplog.records) <= LINES_PER_MINUTE
    for number in range(200 * PEERS_REMEMBERED // 100):
        refuse(refusals, f"late-{number}", Reason.SECRET, now_s=60.0 * number)
    assert len(refusals._logged) <= PEERS_REMEMBERED
