"""The reporters of one manager or gate, as its configuration names them."""

import os
from collections.abc import Sequence
from pathlib import Path

from hyperscale.reporting.config_file import AnyReporter, load_reporters, read_tables
from hyperscale.wire.roles import Role


class NodeReporters:
    """Reporters and credentials, from the file that `reporting.config` names."""

    def __init__(self, file: str, role: Role) -> None:
        """Raises InputError if the file is wrong. An empty path: the node has no reporters."""
        self._file = Path(file) if file else None
        self._role = role.value
        if self._file is not None:
            self.load(())

    def load(self, names: Sequence[str]) -> tuple[AnyReporter, ...]:
        """Return the reporters of these names, all without any. The file is read anew, so that
        credentials can be replaced while the node runs."""
        if self._file is None:
            return ()
        return load_reporters(names, self._file, os.environ, flag="--report")

    def problem(self, names: Sequence[str]) -> str | None:
        """Return why the results of a job cannot be sent from here; None if they can."""
        role = self._role
        if self._file is None:
            return f"this {role} has no reporters: set reporting.config on every {role}"
        tables = read_tables(self._file, "reporters")
        if not tables:
            return f"the {role}s' configuration has no reporters"
        unknown = [name for name in names if name not in tables]
        if unknown:
            return f"the {role}s have no reporter {unknown[0]!r}; they have {', '.join(tables)}"
        return None
