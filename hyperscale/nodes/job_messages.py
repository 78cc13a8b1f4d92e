"""Jobs on the wire: numbers and priorities of what managers and workers say to each other.

Kinds 400-449. The structs are `jobs.commands`; here they only become messages. A command is a
call and answered at once; what a worker says by itself is one-way and repeated by the rules of
`jobs.agent`, but for `Progress`, whose answer carries the backpressure, and for `WorkerCores`
while nobody has them.
"""

from msgspec import Struct

from hyperscale.jobs import commands
from hyperscale.wire.registry import Priority, SizeClass, message
from hyperscale.wire.roles import NODES, Role

_MANAGERS = frozenset({Role.MANAGER})
_WORKERS = frozenset({Role.WORKER})
_OPERATED = frozenset({Role.MANAGER, Role.OPERATOR})


@message(kind=440, priority=Priority.HIGH, size=SizeClass.SMALL, senders=NODES)
class FetchBlob(Struct, frozen=True):
    """Send me the bytes with this SHA-256. Answered in parts, by `wire.messages.Chunk`s."""

    sha256: str


@message(kind=441, priority=Priority.HIGH, size=SizeClass.SMALL, senders=_OPERATED)
class DrainWorker(Struct, frozen=True):
    """Take no new work; finish what you have. -> WorkerDrains"""


@message(kind=442, priority=Priority.HIGH, size=SizeClass.SMALL, senders=_WORKERS)
class WorkerDrains(Struct, frozen=True):
    runs: int
    """How many runs are still here, results that wait for an acknowledgement included."""


@message(kind=443, priority=Priority.NORMAL, size=SizeClass.SMALL, senders=_MANAGERS)
class CoresTaken(Struct, frozen=True):
    """The answer to `WorkerCores`, which asks for one until an allocator has said yes."""

    is_known: bool
    """Whether this manager grants cores now, and those of the worker are among them."""


_MESSAGES: tuple[tuple[int, Priority, SizeClass, frozenset[Role], type[Struct]], ...] = (
    # Leader to worker.
    (400, Priority.HIGH, SizeClass.LARGE, _MANAGERS, commands.PreparePart),
    (401, Priority.CRITICAL, SizeClass.SMALL, _MANAGERS, commands.StartPart),
    (402, Priority.CRITICAL, SizeClass.SMALL, _MANAGERS, commands.StopPart),
    (403, Priority.CRITICAL, SizeClass.MEDIUM, _MANAGERS, commands.RenewLeases),
    (404, Priority.HIGH, SizeClass.SMALL, _MANAGERS, commands.WhoRuns),
    (405, Priority.CRITICAL, SizeClass.SMALL, _MANAGERS, commands.ResultAck),
    # Worker to leader.
    (410, Priority.HIGH, SizeClass.SMALL, _WORKERS, commands.PartAnswer),
    (411, Priority.CRITICAL, SizeClass.MEDIUM, _WORKERS, commands.LeasesRenewed),
    (412, Priority.HIGH, SizeClass.LARGE, _WORKERS, commands.RunsHere),
    (413, Priority.HIGH, SizeClass.SMALL, _WORKERS, commands.PartReady),
    (414, Priority.CRITICAL, SizeClass.MEDIUM, _WORKERS, commands.PartRefused),
    (415, Priority.NORMAL, SizeClass.LARGE, _WORKERS, commands.Progress),
    (416, Priority.NORMAL, SizeClass.SMALL, _MANAGERS, commands.ProgressTaken),
    (417, Priority.CRITICAL, SizeClass.LARGE, _WORKERS, commands.PartFinished),
    # Not LOW: that is turned away as soon as a manager is late, and output is told once.
    (418, Priority.NORMAL, SizeClass.MEDIUM, _WORKERS, commands.PartOutput),
    # Leader, worker and allocator.
    (420, Priority.HIGH, SizeClass.SMALL, _MANAGERS, commands.AskCores),
    (421, Priority.HIGH, SizeClass.MEDIUM, _MANAGERS, commands.CoresAnswer),
    (422, Priority.HIGH, SizeClass.SMALL, _MANAGERS, commands.ReleaseCores),
    (423, Priority.NORMAL, SizeClass.MEDIUM, _WORKERS, commands.WorkerCores),
)

for _kind, _priority, _size, _senders, _struct in _MESSAGES:
    message(kind=_kind, priority=_priority, size=_size, senders=_senders)(_struct)
