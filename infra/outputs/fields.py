"""The fields of the `cluster` output as a list, and the two files that are made from it.

They are the JSON Schema (`infra/schema/outputs.json`) and the table of fields in docs/reference/outputs.md,
which `tools/generate.py` writes. A test compares the list with the frozen copy of v1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.outputs import contract

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "infra" / "schema" / "outputs.json"
BEGIN, END = "<!-- fields: written by python -m tools.generate -->", "<!-- end of fields -->"

_UNDERSTOOD = {"$defs", "$ref", "$schema", "anyOf", "const", "default", "description", "enum", "items"}
_UNDERSTOOD |= {"minimum", "properties", "required", "title", "type"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a JSON Schema.

    Attributes:
        path: The path from the top, e.g. `partitions[].accelerator.type`.
        type: E.g. `string`, `integer >= 1`, `object[]`, `"a" | "b"`, `object | null`, `string | missing`.
    """

    path: str
    type: str
    description: str


def fields(schema: dict[str, Any]) -> list[Field]:
    """Return every field of an object's schema, each after the object that it is part of.

    Raises:
        ValueError: The schema has a keyword that this function does not know.
    """
    return list(_walk(schema, schema.get("$defs", {}), ""))


def schema_text() -> str:
    """Return the JSON Schema as it is checked in."""
    return json.dumps(contract.schema(), indent=2, ensure_ascii=False) + "\n"


def table() -> str:
    """Return the fields as a Markdown table."""
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field in fields(contract.schema()):
        kind = field.type.replace("|", "\\|")
        rows.append(f"| `{field.path}` | {kind} | {field.description} |")
    return "\n".join(rows)


def page(text: str) -> str:
    """Return the text of a page, with a new table between its two marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


def _walk(node: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[Field]:
    for name, value in node.get("properties", {}).items():
        inner = _resolve(value, definitions)
        kind = _type(inner, definitions)
        if name not in node.get("required", ()):
            kind += " | missing"
        path = f"{prefix}{name}"
        yield Field(path, kind, value.get("description", inner.get("description", "")))
        for branch in inner.get("anyOf", [inner]):
            option = _resolve(branch, definitions)
            yield from _walk(option, definitions, f"{path}.")
            yield from _walk(_resolve(option.get("items", {}), definitions), definitions, f"{path}[].")


def _type(node: dict[str, Any], definitions: dict[str, Any]) -> str:
    if strange := node.keys() - _UNDERSTOOD:
        raise ValueError(f"{', '.join(sorted(strange))}: not understood in a JSON Schema; extend {__name__}")
    if "anyOf" in node:
        return " | ".join(_type(_resolve(branch, definitions), definitions) for branch in node["anyOf"])
    if "enum" in node or "const" in node:
        return " | ".join(json.dumps(value) for value in node.get("enum", [node.get("const")]))
    if node["type"] == "array":
        item = _type(_resolve(node["items"], definitions), definitions)
        return f"({item})[]" if " | " in item else f"{item}[]"
    return str(node["type"]) + (f" >= {node['minimum']}" if "minimum" in node else "")


def _resolve(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    definition: dict[str, Any] = definitions[node["$ref"].removeprefix("#/$defs/")]
    return definition
