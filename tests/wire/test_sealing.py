"""Sealing: what opens, what does not, and under which reason it is counted."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperscale._native import KeyExchange
from hyperscale.errors import InputError, InvariantError
from hyperscale.wire.cluster_secret import Secrets, make_secret
from hyperscale.wire.errors import PeerProtocolError, RefusalReason
from hyperscale.wire.sealing import (
    DATAGRAM_BYTES_MAX,
    DATAGRAM_OVERHEAD_MAX,
    TAG_BYTES,
    WINDOW,
    DatagramSealer,
    FrameOpener,
    FrameSealer,
    ReplayWindow,
    begin_exchange,
    session_keys,
)

OLD, NEW, OTHER = "old-secret-0123456789", "new-secret-0123456789", "other-secret-01234567"
NOW = 1_700_000_000_000


def sealer(
    secret: str | None = NEW, node: str = "a", incarnation: int = NOW, previous: str | None = None
) -> DatagramSealer:
    secrets = None if secret is None else Secrets(secret, previous)
    return DatagramSealer(secrets, node, incarnation, cluster="c", environment="e")


def refusal(receiver: DatagramSealer, datagram: bytes) -> RefusalReason:
    with pytest.raises(PeerProtocolError) as caught:
        receiver.open(datagram)
    return caught.value.reason


class TestSecrets:
    def test_fifteen_characters_are_refused_and_sixteen_are_not(self) -> None:
        with pytest.raises(InputError, match="15 characters, at least 16"):
            Secrets("x" * 15)
        Secrets("abcdefgh12345678")
        with pytest.raises(InputError, match="previous"):
            Secrets(NEW, "short")

    def test_a_secret_is_not_shown(self) -> None:
        assert NEW not in repr(Secrets(NEW))

    def test_made_secrets_are_strong_and_different(self) -> None:
        assert len({make_secret() for _ in range(50)}) == 50
        assert len(make_secret()) >= 43


class TestDatagrams:
    @given(st.binary(max_size=1200), st.text(min_size=1, max_size=16), st.integers(0, 2**64 - 1))
    def test_what_is_sealed_opens(self, plain: bytes, node: str, incarnation: int) -> None:
        if node.encode(errors="replace").decode() != node:
            return  # lone surrogates are no node ids
        datagram = sealer(node=node, incarnation=incarnation).seal(plain)
        assert sealer(node="receiver").open(datagram) == (node, incarnation, plain)
        assert plain == b"" or len(plain) < 8 or plain not in datagram

    def test_the_largest_message_fits(self) -> None:
        big = sealer(node="n" * 64)
        datagram = big.seal(bytes(DATAGRAM_BYTES_MAX - DATAGRAM_OVERHEAD_MAX))
        assert len(datagram) == DATAGRAM_BYTES_MAX
        assert sealer(node="b").open(datagram).node_id == "n" * 64

    def test_another_secret_does_not_open(self) -> None:
        assert refusal(sealer(NEW, "b"), sealer(OTHER).seal(b"x")) is RefusalReason.SECRET

    def test_sealed_and_unsealed_nodes_refuse_each_others_datagrams(self) -> None:
        assert refusal(sealer(NEW, "b"), sealer(None).seal(b"x")) is RefusalReason.UNSEALED
        assert refusal(sealer(None, "b"), sealer(NEW).seal(b"x")) is RefusalReason.SEALED

    def test_without_secrets_replayed_datagrams_are_refused(self) -> None:
        receiver = sealer(None, "b")
        datagram = sealer(None).seal(b"x")
        assert receiver.open(datagram).plain == b"x"
        assert refusal(receiver, datagram) is RefusalReason.REPLAYED

    def test_a_rotation_accepts_both_secrets_and_then_only_the_new(self) -> None:
        during, after = sealer(NEW, "b", previous=OLD), sealer(NEW, "b")
        assert during.open(sealer(OLD).seal(b"old")).plain == b"old"
        assert during.open(sealer(NEW, "c").seal(b"new")).plain == b"new"
        assert refusal(after, sealer(OLD).seal(b"old")) is RefusalReason.SECRET

    def test_a_running_node_takes_new_secrets_and_refuses_the_old_one(self) -> None:
        speaker, hearer = sealer(OLD, "a"), sealer(OLD, "b")
        first = speaker.seal(b"1")
        hearer.open(first)
        hearer.use(Secrets(NEW, OLD))
        assert refusal(hearer, first) is RefusalReason.REPLAYED
        assert hearer.open(speaker.seal(b"2")).plain == b"2"
        speaker.use(Secrets(NEW, OLD))
        assert hearer.open(speaker.seal(b"3")).plain == b"3"
        hearer.use(Secrets(NEW))
        assert hearer.open(speaker.seal(b"4")).plain == b"4"
        speaker.use(Secrets(OLD))
        assert refusal(hearer, speaker.seal(b"5")) is RefusalReason.SECRET

    def test_a_known_sender_with_a_secret_that_was_removed_is_refused(self) -> None:
        speaker, hearer = sealer(OLD, "a"), sealer(NEW, "b", previous=OLD)
        hearer.open(speaker.seal(b"1"))
        hearer.use(Secrets(NEW))
        assert refusal(hearer, speaker.seal(b"2")) is RefusalReason.SECRET

    def test_a_rotation_in_three_rounds_loses_nothing(self) -> None:
        rounds = [(OLD, None), (OLD, NEW), (NEW, OLD), (NEW, None)]
        for before, behind in itertools.pairwise(rounds):
            for one, two in ((before, behind), (behind, before)):
                speaker = sealer(one[0], "a", previous=one[1])
                hearer = sealer(two[0], "b", previous=two[1])
                assert hearer.open(speaker.seal(b"x")).plain == b"x"

    def test_a_sender_that_changes_its_secret_keeps_its_window(self) -> None:
        receiver = sealer(NEW, "b", previous=OLD)
        first = sealer(OLD).seal(b"1")
        receiver.open(first)
        again = sealer(NEW)
        same_counter, next_counter = again.seal(b"1"), again.seal(b"2")
        assert refusal(receiver, same_counter) is RefusalReason.REPLAYED
        assert receiver.open(next_counter).plain == b"2"
        assert refusal(receiver, first) is RefusalReason.REPLAYED

    def test_datagrams_of_another_cluster_or_environment_are_refused(self) -> None:
        stranger = DatagramSealer(Secrets(NEW), "a", NOW, cluster="c", environment="other")
        assert refusal(sealer(NEW, "b"), stranger.seal(b"x")) is RefusalReason.CLUSTER

    def test_replays_are_refused_and_reordering_is_not(self) -> None:
        sender, receiver = sealer(), sealer(NEW, "b")
        datagrams = [sender.seal(bytes([i])) for i in range(200)]
        order = datagrams[:]
        random.Random(3).shuffle(order)
        assert sorted(receiver.open(each).plain for each in order) == [
            bytes([i]) for i in range(200)
        ]
        for each in datagrams:
            assert refusal(receiver, each) is RefusalReason.REPLAYED

    def test_a_datagram_older_than_the_window_is_refused(self) -> None:
        sender, receiver = sealer(), sealer(NEW, "b")
        first = sender.seal(b"first")
        last = b""
        for _ in range(WINDOW):
            last = sender.seal(b"later")
        receiver.open(last)
        assert refusal(receiver, first) is RefusalReason.REPLAYED

    def test_datagrams_of_an_earlier_incarnation_are_refused(self) -> None:
        receiver = sealer(NEW, "b")
        old, new = sealer(incarnation=NOW), sealer(incarnation=NOW + 1)
        late = old.seal(b"late")
        receiver.open(old.seal(b"x"))
        receiver.open(new.seal(b"y"))
        assert refusal(receiver, late) is RefusalReason.INCARNATION

    def test_a_forged_incarnation_does_not_block_the_true_one(self) -> None:
        receiver, true = sealer(NEW, "b"), sealer()
        receiver.open(true.seal(b"x"))
        assert (
            refusal(receiver, sealer(OTHER, incarnation=NOW + 9).seal(b"!")) is RefusalReason.SECRET
        )
        assert receiver.open(true.seal(b"y")).plain == b"y"

    def test_a_forged_counter_does_not_move_the_window(self) -> None:
        receiver, true = sealer(NEW, "b"), sealer()
        receiver.open(true.seal(b"x"))
        forged = bytearray(true.seal(b"z"))
        at = 2 + 1 + 8 + 4  # version, id length, "a", incarnation, draw
        forged[at : at + 8] = (2**63).to_bytes(8, "big")
        assert refusal(receiver, bytes(forged)) is RefusalReason.SECRET
        assert receiver.open(true.seal(b"y")).plain == b"y"

    def test_a_node_refuses_its_own_datagrams(self) -> None:
        node = sealer()
        assert refusal(node, node.seal(b"x")) is RefusalReason.LOOPED

    def test_every_truncation_is_refused(self) -> None:
        datagram = sealer(node="abc").seal(b"hello")
        for cut in range(len(datagram)):
            reason = refusal(sealer(NEW, "b"), datagram[:cut])
            assert reason in (RefusalReason.TRUNCATED, RefusalReason.SECRET)

    @given(st.data())
    def test_every_altered_byte_is_refused(self, data: st.DataObject) -> None:
        datagram = bytearray(sealer().seal(b"hello"))
        at = data.draw(st.integers(0, len(datagram) - 1))
        datagram[at] ^= data.draw(st.integers(1, 255))
        refusal(sealer(NEW, "b"), bytes(datagram))

    @given(st.binary(max_size=1600))
    def test_random_datagrams_are_refused(self, datagram: bytes) -> None:
        refusal(sealer(NEW, "b"), datagram)

    def test_an_oversized_datagram_is_refused(self) -> None:
        assert refusal(sealer(NEW, "b"), bytes(DATAGRAM_BYTES_MAX + 1)) is RefusalReason.OVERSIZED

    def test_another_version_is_refused(self) -> None:
        datagram = b"\x02" + sealer().seal(b"x")[1:]
        assert refusal(sealer(NEW, "b"), datagram) is RefusalReason.VERSION

    def test_a_node_id_must_fit(self) -> None:
        for node in ("", "x" * 65):
            with pytest.raises(InvariantError):
                sealer(node=node)


class TestReplayWindow:
    @given(st.lists(st.integers(0, 3 * WINDOW), max_size=60))
    def test_the_replay_window_agrees_with_a_set_of_all_counters(self, counters: list[int]) -> None:
        window, seen = ReplayWindow(), set[int]()
        for counter in counters:
            highest = max(seen, default=-1)
            expected = counter not in seen and counter > highest - WINDOW
            assert window.is_fresh(counter) == expected
            if expected:
                window.mark(counter)
                seen.add(counter)


def exchanged(secret: bytes) -> KeyExchange:
    """One side of a completed key exchange."""
    dialer, acceptor = (begin_exchange(secret, is_dialer=each) for each in (True, False))
    acceptor.read(dialer.write())
    dialer.read(acceptor.write())
    return dialer


class TestFrames:
    def pair(self) -> tuple[FrameSealer, FrameOpener]:
        keys = session_keys(exchanged(b"s" * 16), transcript=b"t")
        return FrameSealer(keys.from_dialer), FrameOpener(keys.from_dialer)

    @given(st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=300))))
    def test_frames_open_in_order(self, frames: list[tuple[bytes, bytes]]) -> None:
        seal, opener = self.pair()
        for head, body in frames:
            sealed = seal.seal(head, body)
            assert len(sealed) == len(body) + TAG_BYTES
            assert opener.open(head, sealed) == body

    def test_a_repeated_skipped_reordered_or_altered_frame_does_not_open(self) -> None:
        head = bytes(16)
        for tamper in ("repeat", "skip", "swap", "body", "head"):
            seal, opener = self.pair()
            frames = [seal.seal(head, bytes([i])) for i in range(3)]
            opener.open(head, frames[0])
            bad_head, bad = {
                "repeat": (head, frames[0]),
                "skip": (head, frames[2]),
                "swap": (head, frames[2]),
                "body": (head, bytes([frames[1][0] ^ 1]) + frames[1][1:]),
                "head": (b"\1" + head[1:], frames[1]),
            }[tamper]
            with pytest.raises(PeerProtocolError) as caught:
                opener.open(bad_head, bad)
            assert caught.value.reason is RefusalReason.TAMPERED

    def test_each_direction_and_each_session_has_its_own_key(self) -> None:
        exchanges = [exchanged(secret) for secret in (b"s" * 16, b"s" * 16, b"t" * 16)]
        made = [
            key
            for exchange in exchanges
            for said in (b"1", b"2")
            for key in session_keys(exchange, transcript=said)
        ]
        assert len(set(made)) == len(made)


class TestRestarts:
    def test_nothing_that_the_former_process_saw_can_be_replayed_to_the_next_one(self) -> None:
        speaker, former = sealer(node="a"), sealer(node="b")
        recorded = [speaker.seal(b"x") for _ in range(WINDOW + 10)]
        late = recorded.pop(5)  # never arrives at the former process
        for datagram in recorded:
            former.open(datagram)
        later = DatagramSealer(
            Secrets(NEW), "b", NOW + 1, cluster="c", environment="e", remembered=former.seen()
        )
        for datagram in (*recorded[:3], *recorded[-3:], late):
            assert refusal(later, datagram) is RefusalReason.REPLAYED
        assert refusal(later, sealer(node="a", incarnation=NOW - 1).seal(b"")) is (
            RefusalReason.INCARNATION
        )
        assert later.open(speaker.seal(b"new")).plain == b"new"
        assert later.open(sealer(node="a", incarnation=NOW + 1).seal(b"restarted")).plain
        assert later.open(sealer(node="c").seal(b"unknown")).plain == b"unknown"
