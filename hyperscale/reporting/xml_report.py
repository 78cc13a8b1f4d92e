"""A result as XML: the fields of the JSON as attributes, its lists as elements.

Also the one place that knows which characters XML 1.0 cannot hold.
"""

import re
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree as ET

from msgspec import Struct

from hyperscale.reporting.results import RunResult, StepResult, WorkflowResult

# Everything outside the Char production of XML 1.0, which no escape can carry.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Value = str | int | float | bool | None


def xml_text(text: str) -> str:
    """Return `text` with the characters that XML cannot hold replaced."""
    return _ILLEGAL.sub("\ufffd", text)


def element(parent: ET.Element | None, tag: str, attributes: Mapping[str, Value]) -> ET.Element:
    """Add a child to `parent`. Attributes that are None are left out."""
    shown = {key: _attribute(value) for key, value in attributes.items() if value is not None}
    return ET.Element(tag, shown) if parent is None else ET.SubElement(parent, tag, shown)


def document(root: ET.Element) -> bytes:
    ET.indent(root, space="  ")
    encoded: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return encoded + b"\n"


def encode_xml(result: RunResult) -> bytes:
    root = element(None, "hyperscale", _scalars(result))
    for text in result.warnings:
        element(root, "warning", {}).text = xml_text(text)
    _list(root, "thresholds", "threshold", result.thresholds)
    workflows = element(root, "workflows", {})
    for workflow in result.workflows:
        _workflow(workflows, workflow)
    return document(root)


def _workflow(parent: ET.Element, workflow: WorkflowResult) -> None:
    into = element(parent, "workflow", _scalars(workflow))
    for tag in workflow.tags:
        element(into, "tag", {}).text = xml_text(tag)
    element(into, "latency", _scalars(workflow.latency_ms))
    _list(into, "checks", "check", workflow.checks)
    _list(into, "metrics", "metric", workflow.metrics)
    _list(into, "series", "point", workflow.series)
    steps = element(into, "steps", {})
    for step in workflow.steps:
        _step(steps, step)


def _step(parent: ET.Element, step: StepResult) -> None:
    into = element(parent, "step", _scalars(step))
    element(into, "latency", _scalars(step.latency_ms))
    for phase, percentiles in step.phases_ms.items():
        if percentiles:
            element(into, "phase", {"name": phase, **percentiles})
    for code, count in step.status_codes.items():
        element(into, "status", {"code": code, "count": count})
    for error, count in step.errors.items():
        element(into, "error", {"class": error, "count": count})
    _list(into, "series", "point", step.series)


def _list(parent: ET.Element, name: str, singular: str, items: Iterable[Struct]) -> None:
    into = element(parent, name, {})
    for item in items:
        element(into, singular, _scalars(item))


def _scalars(struct: Struct) -> dict[str, Value]:
    """Return the fields that hold a single value; an enum as its value."""
    found: dict[str, Value] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        value = getattr(value, "value", value)
        if value is None or isinstance(value, str | int | float):
            found[name] = value
    return found


def _attribute(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # ElementTree escapes line breaks in attributes; a reader gets them back.
    return xml_text(str(value))
