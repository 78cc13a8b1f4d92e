"""How large what is submitted may be, wherever that is looked at."""

BUNDLE_BYTES_MAX = 64 * 1024 * 1024
"""Of the user's code and what it imports, packed."""
