"""What is still to be told: order, room, repetition, replacement."""

from hyperscale.membership.gossip import ITEMS_MAX, GossipQueue
from hyperscale.membership.messages import ClaimedState, MemberUpdate


def alive(node: str, refutation: int = 0) -> MemberUpdate:
    return MemberUpdate(node, 1, ClaimedState.ALIVE, refutation, address="10.0.0.1:9000")


def suspect(node: str, by: str) -> MemberUpdate:
    return MemberUpdate(node, 1, ClaimedState.SUSPECT, 0, by)


def told(queue: GossipQueue, **kwargs: int) -> list[tuple[str, str]]:
    news = queue.take(kwargs.get("room", 10_000), limit=kwargs.get("limit", 100))
    return [(each.node, each.claim.name) for each in news]


def test_every_update_is_sent_if_all_fit() -> None:
    queue = GossipQueue()
    queue.put(alive("a"))
    queue.put(suspect("b", "c"))
    assert told(queue) == [("a", "ALIVE"), ("b", "SUSPECT")]


def test_the_least_sent_update_goes_first_and_deaths_before_suspicions_before_joins() -> None:
    queue = GossipQueue()
    queue.put(alive("old"))
    assert told(queue) == [("old", "ALIVE")]
    queue.put(alive("new"))
    queue.put(suspect("silent", "by"))
    queue.put(MemberUpdate("dead", 1, ClaimedState.REFUSED))
    queue.put(alive("back", 1), urgent=True)
    one = len(queue.items) and max(item.size for item in queue.items.values())
    order = [told(queue, room=one)[0][0] for _ in range(4)]
    assert order == ["dead", "back", "silent", "new"]
    assert told(queue, room=one)[0][0] != "new"


def test_an_update_sent_often_enough_is_dropped() -> None:
    queue = GossipQueue()
    queue.put(alive("a"))
    for _ in range(3):
        assert queue.take(1_000, limit=10, copies=3)
    assert queue.take(1_000, limit=10, copies=3)  # the tenth, eleventh and twelfth telling
    assert not queue.take(1_000, limit=10, copies=3)
    assert len(queue) == 0


def test_a_newer_update_about_a_node_replaces_the_older() -> None:
    queue = GossipQueue()
    queue.put(suspect("a", "x"))
    queue.put(suspect("a", "y"))
    assert len(queue) == 2
    queue.put(alive("a", 1))
    assert told(queue) == [("a", "ALIVE")]
    assert queue.has_claim_about("a")


def test_the_same_suspicion_is_queued_once() -> None:
    queue = GossipQueue()
    for _ in range(5):
        queue.put(suspect("a", "x"))
    assert len(queue) == 1


def test_an_update_that_does_not_fit_waits_and_smaller_ones_go_first() -> None:
    queue = GossipQueue()
    queue.put(alive("x" * 60))
    queue.put(MemberUpdate("y", 1, ClaimedState.LEFT))
    small = min(item.size for item in queue.items.values())
    assert told(queue, room=small) == [("y", "LEFT")]
    assert len(queue) == 2


def test_updates_never_exceed_the_room_in_a_datagram() -> None:
    queue = GossipQueue()
    for n in range(200):
        queue.put(alive(f"node-{n}"))
    for room in (0, 10, 100, 500, 900):
        sizes = {item.update.node: item.size for item in queue.items.values()}
        news = queue.take(room, limit=1_000)
        assert sum(sizes[each.node] for each in news) <= room


def test_a_full_queue_drops_the_most_sent_update() -> None:
    queue = GossipQueue()
    queue.put(alive("told"))
    queue.take(10_000, limit=100)
    for n in range(ITEMS_MAX):
        queue.put(alive(f"n{n}"))
    assert len(queue) == ITEMS_MAX
    assert not queue.has_claim_about("told")
