"""A manager's jobs: the cores of `jobs` wired to ledger, workers and clients.

`driver` runs the job leaders and the allocator; `desk` answers clients; `bundles` keeps what
user code travels in, `output` what it printed; `duty` is all of it as a part of the node.
"""
