"""`LocalRunner` under the name published tests import it by."""

from hyperscale.runner import LocalRunner

__all__ = ["LocalRunner"]
