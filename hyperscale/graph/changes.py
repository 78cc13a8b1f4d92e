"""Changes of a running load as users write them: checked here, before anything is asked."""

import getpass
import secrets
from typing import TypedDict, Unpack

from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.graph.load_settings import parse_rate
from hyperscale.graph.values import parse_count
from hyperscale.plan.changes import ChangeKind, LoadChange
from hyperscale.plan.shapes import TARGET_MAX


class ScaleTarget(TypedDict, total=False):
    """What a running load is scaled to."""

    vus: object  # a number of users, or
    rate: object  # iterations per second, such as "500/s"
    over: object  # how long it takes to get there, such as "30s"
    workflow: str  # which one, if there are several that do not share a total


def scale_to(*, flags: str = "", **target: Unpack[ScaleTarget]) -> LoadChange:
    """Return the change to a target. Raises InputError.

    `flags` stands before the names in messages: "--" on the command line.
    """
    vus, rate, over = target.get("vus"), target.get("rate"), target.get("over")
    if (vus is None) == (rate is None):
        raise InputError(f"give {flags}vus or {flags}rate, and not both")
    over_s = 0.0
    if over is not None and over not in (0, "0", "0s"):
        if not isinstance(over, str | int | float):
            raise InputError(f"{flags}over: {over!r} is no duration", hint='as "30s"')
        over_s = parse_duration_s(over, where=f"{flags}over")
    return LoadChange(
        id=secrets.token_hex(8),
        kind=ChangeKind.SCALE,
        workflow=target.get("workflow", ""),
        vus=None
        if vus is None
        else parse_count(vus, where=f"{flags}vus", least=0, most=TARGET_MAX),
        rate=None if rate is None else parse_rate(rate, where=f"{flags}rate", least=0.0),
        over_s=over_s,
        by=_user(),
    )


def pause() -> LoadChange:
    """Return the change that lets no iteration begin."""
    return LoadChange(id=secrets.token_hex(8), kind=ChangeKind.PAUSE, by=_user())


def resume() -> LoadChange:
    """Return the change that ends a pause."""
    return LoadChange(id=secrets.token_hex(8), kind=ChangeKind.RESUME, by=_user())


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user id
        return ""
