"""What people read about workflows that share cores: more workflows run together than cores are
there for them."""

from collections.abc import Mapping

_NAMES_SHOWN_MAX = 6


def cores_text(cores: int, shared_cores: int) -> str:
    """Return `2 cores`, or `2 shared cores` for a workflow that shares them with others."""
    count = shared_cores or cores
    return f"{count} {'shared ' if shared_cores else ''}core{'' if count == 1 else 's'}"


def sharing_note(shared_cores: Mapping[str, int]) -> str:
    """Return the sentence about a run whose workflows share cores; empty if none does.

    `shared_cores`: how many cores each workflow shares with others, 0 if none.
    """
    names = [name for name, cores in shared_cores.items() if cores]
    if len(names) < 2:
        return ""
    shown = names[:_NAMES_SHOWN_MAX]
    if len(names) > len(shown):
        listed = f"{', '.join(shown)} and {len(names) - len(shown)} more"
    else:
        listed = f"{', '.join(shown[:-1])} and {shown[-1]}"
    cores = cores_text(max(shared_cores.values()), 0)
    return (
        f"{len(names)} workflows on {cores}: {listed} run together and share the CPU; where it is "
        "fully used, latencies include the wait for a core"
    )
