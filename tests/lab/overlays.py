"""Copies of the package that are one version newer or older, for nodes of mixed versions.

An overlay is a directory with the whole package and small patches of its sources; a node runs it
with `PYTHONPATH`. The native module is the same.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import hyperscale

_PACKAGE = Path(hyperscale.__file__).parent
Patches = Mapping[str, tuple[tuple[str, str], ...]]

_VERSION = 'VERSION: Final = installed_version("hyperscale")'
_FEATURES = "FEATURES: Final[Mapping[str, Version]] = {}"

NEWER: Patches = {
    "wire/versions.py": (
        (_VERSION, 'VERSION: Final = "0.2.0"'),
        (
            _FEATURES,
            "FEATURES: Final[Mapping[str, Version]] = "
            '{"JobNoted": Version(0, 2), "Checkpointed.noted": Version(0, 2)}',
        ),
    ),
    # A new kind of event, and a new field of an old one.
    "jobs/committed/events.py": (
        (
            "    job: str\n    parts: list[Checkpoint]\n",
            "    job: str\n    parts: list[Checkpoint]\n    noted: int = 0\n",
        ),
        (
            "JobEvent = (\n",
            'class JobNoted(Struct, tag="noted", frozen=True, kw_only=True):\n'
            '    """A note about a job."""\n\n    job: str\n    note: str\n\n\n'
            "JobEvent = (\n    JobNoted\n    | ",
        ),
    ),
    # New fields of committed records: what the event and the field leave.
    "jobs/committed/state.py": (
        (
            "    reported: Reported | None = None  # after its end",
            '    note: str = ""\n    noted: int = 0\n'
            "    reported: Reported | None = None  # after its end",
        ),
    ),
    "jobs/committed/transitions.py": (
        ("    Checkpointed,\n", "    Checkpointed,\n    JobNoted,\n"),
        (
            "    workflows = job.workflows\n    stale: Checkpoint",
            "    job.noted = event.noted\n    workflows = job.workflows\n    stale: Checkpoint",
        ),
        (
            "TRANSITIONS: dict[",
            "def noted(job: Job, event: JobNoted, now_ms: int) -> bool:\n"
            "    job.note = event.note\n    return True\n\n\nTRANSITIONS: dict[",
        ),
        (
            "    WorkflowDispatched: workflow_dispatched,\n",
            "    WorkflowDispatched: workflow_dispatched,\n    JobNoted: noted,\n",
        ),
    ),
    "jobs/leader/checkpoints.py": (
        ("import Checkpoint, Checkpointed\n", "import Checkpoint, Checkpointed, JobNoted\n"),
        (
            "        state.propose(Checkpointed(job=job.id, parts=some))\n",
            "        state.propose(Checkpointed(job=job.id, parts=some, noted=7))\n"
            '        state.propose(JobNoted(job=job.id, note=f"at {state.now_s}"))\n',
        ),
    ),
    # New fields of messages, of the records of the log and of snapshots.
    "jobs/messages.py": (
        (
            "    saturated: list[AttemptId] = field(default_factory=list)  # their cores",
            '    zone: str = "east"\n'
            "    saturated: list[AttemptId] = field(default_factory=list)  # their cores",
        ),
    ),
    "nodes/messages.py": (
        (
            '    datacenter: str = ""\n',
            '    datacenter: str = ""\n    zone: int = 7\n',
        ),
    ),
    "ledger/messages.py": (
        (
            '    """The cluster version that the proposer knew."""\n',
            '    """The cluster version that the proposer knew."""\n    zone: str = "east"\n',
        ),
    ),
    "ledger/records.py": (
        (
            "\n\nclass KeySlotsReleased(",
            '    zone: str = "east"\n\n\nclass KeySlotsReleased(',
        ),
    ),
    "ledger/replica.py": (("    time_ms: int = 0\n", "    time_ms: int = 0\n    zone: int = 0\n"),),
}
"""Version 0.2 of this package."""

OLDER: Patches = {
    "wire/versions.py": ((_VERSION, 'VERSION: Final = "0.0.9"'),),
    # A message without its last field.
    "ledger/server/operator_messages.py": (
        (
            '    workers: dict[str, Version] = {}\n    """The versions of the living workers."""\n',
            "",
        ),
    ),
    "ledger/server/operator_requests.py": (
        ("            workers=ledger.peers.worker_versions(),\n", ""),
    ),
}
"""Version 0.0 of this package."""

UNGATED: Patches = {
    **NEWER,
    "wire/versions.py": (
        *NEWER["wire/versions.py"],
        (
            ".admit(value) if above else value\n",
            ".admit(value) if above and False else value\n",
        ),
    ),
}
"""Version 0.2 with the gate taken out: it commits what older nodes do not know."""


def make_overlay(directory: Path, patches: Patches) -> Path:
    """Write a patched copy of the package below `directory`; return what `PYTHONPATH` needs."""
    copy = directory / "hyperscale"
    shutil.copytree(
        _PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"), symlinks=True
    )
    for native in _PACKAGE.glob("*.so"):
        (copy / native.name).symlink_to(native)
    for name, replacements in patches.items():
        path = copy / name
        text = path.read_text()
        for old, new in replacements:
            assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
            text = text.replace(old, new)
        path.write_text(text)
    return directory
