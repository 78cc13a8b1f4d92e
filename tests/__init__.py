"""Tests mirror the package."""

from hypothesis import settings

# A deadline per example is a timing assert: it fails on a busy machine, and says nothing.
# The same code gets the same examples, so `make test` says the same twice; `make soak` draws
# new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("wide", deadline=None, max_examples=1_000)
settings.load_profile("repeatable")
