"""The ledger on a node: store, links, tasks and clocks around the cores of `hyperscale.ledger`.

`ledger_join` joins a node to a ledger; `ledger_driver` runs the core; `ledger` commits commands and
makes reads fresh; `maintenance_driver` carries out the maintenance of groups; `transfers` bring
followers what they lack; `peer_requests` and `operator_requests` answer other nodes and operators.
"""
