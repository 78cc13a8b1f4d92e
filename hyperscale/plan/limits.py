"""Limits on what may be submitted."""

BUNDLE_BYTES_MAX = 64 * 1024 * 1024  # of the user's code and what it imports, packed
