"""The table of settings in docs/nodes.md, made from the schema.

python -m tests.config.reference     writes it
"""

import json
from pathlib import Path

from hyperscale.config.schema import ROLE_DEFAULTS, Setting, settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "nodes.md"
BEGIN, END = "<!-- settings -->", "<!-- end of settings -->"


def table() -> str:
    rows = ["| setting | flag | default | meaning |", "|---|---|---|---|"]
    for setting in settings():
        flag = f"`{setting.flag}`"
        rows.append(f"| `{setting.name}` | {flag} | {_default(setting)} | {setting.about} |")
    return "\n".join(rows)


def in_document() -> str:
    text = DOCUMENT.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def _default(setting: Setting) -> str:
    shown = _shown(setting.default)
    others = [
        f"{role} {_shown(defaults[setting.section, setting.key])}"
        for role, defaults in ROLE_DEFAULTS.items()
        if (setting.section, setting.key) in defaults
    ]
    return ", ".join([shown, *others])


def _shown(value: object) -> str:
    return "" if value in ("", ()) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table()}\n{tail}")
