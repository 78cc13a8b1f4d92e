"""Limits of pending handshakes: per address, in all, and who makes room."""

from hypothesis import given
from hypothesis import strategies as st

from hyperscale.wire.handshake_door import DoorLimits, HandshakeDoor

LIMITS = DoorLimits(pending_max=8, pending_per_host_max=4, reserved=2, silent_s=2.0)


def crowd(door: HandshakeDoor, *hosts: str, at_s: float = 0.0, first: int = 0) -> None:
    for token, host in enumerate(hosts, first):
        assert door.admits(host)
        door.begin(token, host, at_s)


def test_one_address_does_not_take_every_place() -> None:
    door = HandshakeDoor(LIMITS)
    crowd(door, *["a"] * 4)
    assert not door.admits("a")
    assert door.admits("b")


def test_places_are_kept_for_addresses_that_authenticated_before() -> None:
    door = HandshakeDoor(LIMITS)
    crowd(door, "friend")
    door.end(0, is_authenticated=True)
    crowd(door, *"aaabbb", first=1)
    assert not door.admits("stranger")
    assert door.admits("friend")


def test_the_oldest_silent_handshakes_make_room_only_under_pressure() -> None:
    door = HandshakeDoor(LIMITS)
    crowd(door, *"aabb")
    assert door.overdue(100.0) == []  # half of the places are free
    crowd(door, "c", "d", at_s=1.0, first=4)
    assert door.overdue(1.9) == []
    assert door.overdue(2.0) == [0, 1]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.floats(0, 5)), max_size=60))
def test_no_schedule_breaks_a_limit_or_forgets_a_handshake(
    knocks: list[tuple[str, bool, float]],
) -> None:
    door, now_s, open_tokens = HandshakeDoor(LIMITS), 0.0, {}
    for token, (host, is_authenticated, wait_s) in enumerate(knocks):
        now_s += wait_s
        for dropped in door.overdue(now_s):
            assert now_s - open_tokens.pop(dropped)[1] >= LIMITS.silent_s
            door.end(dropped, is_authenticated=False)
        if door.admits(host):
            door.begin(token, host, now_s)
            open_tokens[token] = (host, now_s)
            if is_authenticated:
                del open_tokens[token]
                door.end(token, is_authenticated=True)
        hosts = [each for each, _ in open_tokens.values()]
        assert door.pending == len(hosts) <= LIMITS.pending_max
        assert all(hosts.count(each) <= LIMITS.pending_per_host_max for each in hosts)
