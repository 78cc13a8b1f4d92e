"""Datacenters as the gates commit them."""

from hyperscale.gates.datacenters.registry import (
    DatacenterState,
    entries_of,
    moved,
    name_problem,
    region_warning,
    registered,
)
from hyperscale.ledger.topology import REGISTRY_BYTES_MAX, RegistryChanged, Topology


def commit(topology: Topology, name: str, *managers: str) -> bool:
    """Register a datacenter; return True if that changed anything."""
    change = registered(topology.registry, name, managers)
    if change is None:
        return False
    return not topology.decide(RegistryChanged(name, change.before, change.after)).refused


def move(topology: Topology, name: str, state: DatacenterState) -> None:
    change = moved(topology.registry, name, state)
    assert change is not None
    assert not topology.decide(RegistryChanged(name, change.before, change.after)).refused


def test_a_registration_is_committed_once_and_again_when_managers_change() -> None:
    topology = Topology()
    assert commit(topology, "east", "10.0.0.2:9000", "10.0.0.1:9000")
    assert not commit(topology, "east", "10.0.0.1:9000", "10.0.0.2:9000")
    assert commit(topology, "east", "10.0.0.1:9000")
    assert entries_of(topology.registry)["east"].managers == ("10.0.0.1:9000",)


def test_a_registration_does_not_undo_what_an_operator_decided() -> None:
    topology = Topology()
    commit(topology, "east", "a:1")
    move(topology, "east", DatacenterState.DRAINED)
    commit(topology, "east", "a:1", "b:1")
    assert entries_of(topology.registry)["east"].state is DatacenterState.DRAINED
    move(topology, "east", DatacenterState.REMOVED)
    assert not commit(topology, "east", "c:1")
    assert entries_of(topology.registry)["east"].state is DatacenterState.REMOVED


def test_of_two_changes_made_from_the_same_state_the_second_is_refused() -> None:
    topology = Topology()
    commit(topology, "east", "a:1")
    late = registered(topology.registry, "east", ("b:1",))
    move(topology, "east", DatacenterState.REMOVED)
    assert late is not None
    assert topology.decide(RegistryChanged("east", late.before, late.after)).refused
    assert entries_of(topology.registry)["east"].state is DatacenterState.REMOVED


def test_the_registry_is_part_of_snapshots_and_bounded() -> None:
    topology, other = Topology(), Topology()
    commit(topology, "east", "a:1")
    other.restore(topology.snapshot())
    assert entries_of(other.registry) == entries_of(topology.registry)
    large = RegistryChanged("west", None, b"x" * (REGISTRY_BYTES_MAX + 1))
    assert topology.decide(large).refused


def test_a_name_with_a_slash_or_control_characters_is_refused() -> None:
    assert name_problem("eu-west-1") is None
    for name in ("", "a/b", "a\nb", "x" * 65):
        assert name_problem(name), name


def test_a_region_with_a_majority_of_three_or_more_gates_is_named_in_a_warning() -> None:
    assert region_warning(["eu", "eu"]) == ""
    assert region_warning(["eu", "us", "asia"]) == ""
    assert region_warning(["eu", "eu", "us", "us"]) == ""
    assert "2 of 3 gates are in region eu" in region_warning(["eu", "us", "eu"])
