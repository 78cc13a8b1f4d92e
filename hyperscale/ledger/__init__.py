"""The ledger: small Raft groups that keep what the system has acknowledged.

group: a Raft group with its own log and state machine; group 0 manages the topology.
voter, learner: a node that votes in a group, or only receives its log.
key slot: one of 1,024 hash slots of submission keys; each belongs to one group.
migration: key slots under way from one group to another.
heir: the group that answers for a destroyed group.
history: rows about jobs, kept beside the log.

`core` runs all groups of a node (events and effects in `core_events`); `replica` is one group's
state, `records` its log entries; `topology` is the state of group 0 and `topology_policy` decides
about it; `group_maintenance` is what leaders do for their groups; `messages` travel between nodes.
Store, links, tasks and clocks are in `server`; consensus and the store are native.
"""
