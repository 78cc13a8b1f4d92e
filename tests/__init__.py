"""Tests mirror the package."""

from hypothesis import settings

# A deadline per example is a timing assert: it fails on a busy machine, and says nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
