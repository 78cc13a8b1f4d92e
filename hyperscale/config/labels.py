"""Labels of workers, as people write them: `zone=a`.

Every worker also has the labels of `BUILT_IN`, which describe its machine; it cannot set them.
"""

import re
from collections.abc import Iterable, Mapping

from hyperscale.errors import InputError

BUILT_IN = {
    "arch": "processor architecture: amd64, arm64 or as the system names it",
    "os": "operating system: linux",
    "python": "version of Python: 3.11",
    "host": "name of the machine",
    "worker": "name of the worker",
    "datacenter": "datacenter of the worker",
    "failure_domain": "node.failure_domain of the worker, or its name",
}
"""Labels that a worker finds out by itself, and what each says."""

LABELS_MAX = 32
TEXT_MAX = 64
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_HINT = "as zone=a: letters, digits and . _ : / - in both, at most 64 of them"


def label_value(name: str, value: str) -> str:
    """Return the value by which labels are compared: an architecture has two common names."""
    return _ARCHITECTURES.get(value, value) if name == "arch" else value


def checked_label(name: object, value: object, *, where: str) -> tuple[str, str]:
    """Return a label's name and value; raise InputError if one of them is not well formed."""
    for text in (name, value):
        if not isinstance(text, str) or not _TEXT.fullmatch(text):
            raise InputError(f"{where}: {text!r} is no name and no value of a label", hint=_HINT)
    return str(name), label_value(str(name), str(value))


def split_label(text: str, *, where: str) -> tuple[str, str]:
    """Split `zone=a` into name and value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"{where}: {text!r} has no '='", hint=_HINT)
    return checked_label(name, value, where=where)


def parse_labels(texts: Iterable[str], *, where: str) -> dict[str, str]:
    """Return the labels that a worker is given, by name."""
    labels: dict[str, str] = {}
    for text in texts:
        name, value = split_label(text, where=where)
        if name in BUILT_IN:
            raise InputError(
                f"{where}: a worker finds its {name!r} out by itself", hint="use another name"
            )
        if labels.setdefault(name, value) != value:
            raise InputError(
                f"{where}: {name!r} is both {labels[name]!r} and {value!r}",
                hint="a worker has one value of a label",
            )
    if len(labels) > LABELS_MAX:
        raise InputError(f"{where}: {len(labels)} labels, more than {LABELS_MAX}")
    return labels


def label_texts(labels: Mapping[str, object]) -> tuple[str, ...]:
    """Return the labels of a table as `zone=a`."""
    return tuple(f"{name}={value}" for name, value in labels.items())
