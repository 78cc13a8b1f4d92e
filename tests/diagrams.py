"""State diagrams of the documentation, drawn from the transition tables of the code.

A document marks the place of a diagram with `<!-- diagram: NAME -->` and `<!-- /diagram -->`.
`python -m tests.diagrams` draws every diagram again; a test compares them.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hyperscale.execution.pooled_executor import EXECUTOR_MOVES, ExecutorPhase
from hyperscale.execution.slot import SLOT_MOVES, SlotPhase
from hyperscale.jobs.agent.attempts import ATTEMPT_MOVES, AttemptState
from hyperscale.jobs.committed.events import JobStatus
from hyperscale.jobs.committed.state import JOB_MOVES, WORKFLOW_MOVES, WorkflowStatus
from hyperscale.jobs.leader import attempts as leader_attempts
from hyperscale.jobs.leader.worker_liveness import WORKER_MOVES, WorkerState
from hyperscale.ledger.group_maintenance import UPKEEP_MOVES, UpkeepState
from hyperscale.ledger.topology import NODE_MOVES, NodeState
from hyperscale.runner.local_workflow import RUN_MOVES, WorkflowPhase

DOCUMENTS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(
    r"(?P<start><!-- diagram: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end><!-- /diagram -->)",
    re.DOTALL,
)


@dataclass(frozen=True)
class StateDiagram:
    """A transition table and the states in which its machine may begin."""

    moves: Mapping[Enum, Collection[Enum]]
    initial: tuple[Enum, ...]

    def mermaid(self) -> str:
        """Return the diagram in the language of Mermaid."""
        lines = [f"[*] --> {state.value}" for state in self.initial]
        for state in sorted(self.moves, key=_place):
            following = self.moves[state]
            causes = following if isinstance(following, Mapping) else {}
            for other in sorted(following, key=_place):
                cause = f": {causes[other]}" if other in causes else ""
                lines.append(f"{state.value} --> {other.value}{cause}")
            if not following:
                lines.append(f"{state.value} --> [*]")
        return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in lines)])


def _place(state: Enum) -> int:
    """The place of a state in its enum: sets have no order of their own."""
    return list(type(state)).index(state)


DIAGRAMS = {
    "job": StateDiagram(JOB_MOVES, initial=(JobStatus.SUBMITTED,)),
    "workflow": StateDiagram(WORKFLOW_MOVES, initial=(WorkflowStatus.PENDING,)),
    "attempt-of-leader": StateDiagram(
        leader_attempts.ATTEMPT_MOVES, initial=(leader_attempts.AttemptPhase.DISPATCHED,)
    ),
    "worker-liveness": StateDiagram(
        WORKER_MOVES, initial=(WorkerState.UP, WorkerState.SILENT, WorkerState.DOUBTFUL)
    ),
    "attempt-on-worker": StateDiagram(
        ATTEMPT_MOVES, initial=(AttemptState.WAITING, AttemptState.PREPARING)
    ),
    "executor": StateDiagram(EXECUTOR_MOVES, initial=(ExecutorPhase.GONE,)),
    "slot": StateDiagram(SLOT_MOVES, initial=(SlotPhase.PREPARED,)),
    "local-workflow": StateDiagram(RUN_MOVES, initial=(WorkflowPhase.WAITING,)),
    "manager-in-ledger": StateDiagram(NODE_MOVES, initial=(NodeState.PENDING, NodeState.ACTIVE)),
    "group-upkeep": StateDiagram(UPKEEP_MOVES, initial=(UpkeepState.IDLE,)),
}


def redraw(text: str) -> str:
    """Return a document with every diagram drawn from its table."""

    def block(match: re.Match[str]) -> str:
        drawn = DIAGRAMS[match["name"]].mermaid()
        return f"{match['start']}```mermaid\n{drawn}\n```\n{match['end']}"

    return _BLOCK.sub(block, text)


def names_in(text: str) -> list[str]:
    """Return the names of the diagrams in a document."""
    return [match["name"] for match in _BLOCK.finditer(text)]


if __name__ == "__main__":
    for document in sorted(DOCUMENTS.glob("*.md")):
        document.write_text(redraw(document.read_text()))
