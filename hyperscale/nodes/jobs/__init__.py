"""A manager's jobs: the cores of `jobs` wired to ledger, workers and clients."""
