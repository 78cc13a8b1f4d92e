"""The JSON Schema of a result, generated from the types in `results`.

    python -m hyperscale.reporting.schema

writes it to `schema.json` beside this module. Run it after every change of those types.
"""

import inspect
import json
import re
from pathlib import Path

import msgspec

from hyperscale.plan.rows import LostRows
from hyperscale.reporting import results
from hyperscale.reporting.results import SCHEMA_VERSION, RunResult

PATH = Path(__file__).with_name("schema.json")

# Fields that were added after the first release of schema 1: older documents lack them.
_COUNTED = {"none", "requests_per_second", "cut_ms", "censored_from_ms"}
_OPTIONAL = {
    "RunResult": {"job_id", "datacenters", "attempts", "segments", "gaps", "usage", "aborted_by"}
    | {"params", "run_id", "datacenter_results", "start_skew_ms"},
    "WorkflowResult": {
        "attempts",
        "workers",
        "shared_cores",
        "loop_held",
        "held_seconds",
        "raised",
        "allow_failures",
        "reasons",
        "began_seconds",
    }
    | _COUNTED,
    "StepResult": {"held_seconds", "held_max_ms", "failures"} | _COUNTED,
    "SeriesResult": {"p90_ms", "p95_ms", "vus", "sent"},
    "SegmentResult": {"began_seconds", "elapsed_seconds"},
    "GapResult": {"rows"},
    "UsageResult": {"saturated"},
}


def encode_schema() -> str:
    """Return the schema of what `encode_json` writes, as the text of `schema.json`."""
    _, components = msgspec.json.schema_components([RunResult], ref_template="#/$defs/{name}")
    for name, component in components.items():
        component.pop("title", None)
        component["description"] = " ".join(component["description"].split())
        if component.get("type") == "object":
            # Every field is written, whether or not it has its default value.
            optional = _OPTIONAL.get(name, set())
            described = _descriptions(
                LostRows if name == LostRows.__name__ else getattr(results, name)
            )
            properties = component["properties"]
            component["required"] = [field for field in properties if field not in optional]
            for field, given in properties.items():
                given.pop("default", None)
                properties[field] = {"description": described[field], **given}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Hyperscale run result, schema {SCHEMA_VERSION}",
        **components.pop("RunResult"),
        "$defs": components,
    }
    return json.dumps(schema, indent=2) + "\n"


def _descriptions(result_type: type) -> dict[str, str]:
    """Return the comment beside or above each field of a result type."""
    described: dict[str, str] = {}
    above: list[str] = []
    for line in map(str.strip, inspect.getsource(result_type).splitlines()):
        if line.startswith("# "):
            above.append(line[2:])
        elif field := re.match(r"(\w+): [^#]*(?:# (.+))?$", line):
            described[field[1]] = " ".join([*above, *filter(None, [field[2]])])
            above = []
    return described


if __name__ == "__main__":
    PATH.write_text(encode_schema(), encoding="utf-8")
