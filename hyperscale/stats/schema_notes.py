"""Descriptions of result fields, from which the JSON Schema of results is generated."""

from typing import Any

from msgspec import Meta


def about(description: str, **schema: Any) -> Meta:
    """Describe a field. `schema` adds to its JSON Schema and is not enforced on reading."""
    return Meta(description=description, extra_json_schema=schema or None)


def not_negative(description: str) -> Meta:
    return about(description, minimum=0)
