"""Runs on one machine."""

from hyperscale.runner.local import LocalRunner

__all__ = ["LocalRunner"]
