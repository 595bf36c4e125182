"""Writes a configuration as a stack file with comments, which are the schema's own descriptions."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from infra.config.load import CLUSTER
from infra.config.schema import FILE
from infra.config.stack_file import Loader

WIDTH = 110
LONGEST_COMMENT = 190
"""Characters of a description in a comment; whole sentences are left out after them."""
LABELS = {"aws": "AWS", "gcp": "Google Cloud", "local": "this machine"}
_PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*")
_AMBIGUOUS = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|\.nan|\.inf")


def stack_file_text(config: Mapping[str, Any], stack: str) -> str:
    """Return the text of a stack file.

    Args:
        config: What belongs under `config:`, without mistakes.
        stack: The stack's name.
    """
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    writer = _Writer(schema["$defs"])
    provider = config[CLUSTER]["provider"]
    lines = [
        f"# yaml-language-server: $schema={FILE.parents[1].name}/{FILE.parent.name}/{FILE.name}",
        f"# A cluster on {LABELS[provider]}. `./cluster plan --stack {stack}` shows what it makes and costs.",
        "config:",
    ]
    properties = schema["properties"]["config"]["properties"]
    for key, value in config.items():
        lines += writer.entry(key, value, properties.get(key, {}), "  ", "  ")
        if key == CLUSTER:
            lines += writer.unused(value, properties[key], "    ")
    return "\n".join(lines) + "\n"


class _Writer:
    """Writes sections in the order of the schema. A description is written once."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._written: set[str] = set()

    def entry(self, key: str, value: Any, rule: Mapping[str, Any], first: str, indent: str) -> Iterator[str]:
        """Yield the lines of a key and its value.

        Args:
            key: The key.
            value: Its value.
            rule: The schema of the value.
            first: What stands before the key: spaces, and `- ` for the first key of a list's item.
            indent: The spaces before the section's other keys.
        """
        block = _is_block(value)
        line = f"{first}{_scalar(key)}:" if block else f"{first}{_scalar(key)}: {_flow(value)}"
        comment = self._comment(rule)
        if comment and len(line) + len(comment) + 3 <= WIDTH:
            line += f" # {comment}"
        elif comment:
            start = " " * (len(first) - len(first.lstrip())) + "# "
            yield from textwrap.wrap(
                comment, WIDTH - 10, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
            )
        yield line
        if block and isinstance(value, Mapping):
            yield from self._section(value, rule, f"{indent}  ", f"{indent}  ")
        elif block:
            for item in value:
                yield from self._section(item, rule.get("items", rule), f"{indent}  - ", f"{indent}    ")

    def unused(self, section: Mapping[str, Any], rule: Mapping[str, Any], indent: str) -> list[str]:
        """Return comments about the keys that a section could have besides its own."""
        others = {"aws", "gcp", "local", "batch", "scheduler"} - {section["provider"]}
        if section["provider"] == "aws":
            others -= {"batch", "scheduler"}
        keys = {
            key: self._comment(inner)
            for key, inner in self._properties(rule).items()
            if key not in section and key not in others and not inner.get("deprecated")
        }
        return [f"{indent}# More keys, all with defaults (infra/schema/stack.json):"] + [
            f"{indent}#   {key}: {comment}" for key, comment in keys.items()
        ]

    def _section(
        self, section: Mapping[str, Any], rule: Mapping[str, Any], first: str, indent: str
    ) -> Iterator[str]:
        properties = self._properties(rule)
        order = list(properties)
        for key in sorted(section, key=lambda key: order.index(key) if key in properties else len(order)):
            yield from self.entry(key, section[key], properties.get(key, {}), first, indent)
            first = indent

    def _properties(self, rule: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keys of a section: directly, in a list, or as one of its alternatives."""
        for alternative in (rule, rule.get("items", {}), *rule.get("anyOf", ())):
            if "$ref" in alternative:
                return dict(self._definitions[alternative["$ref"].rpartition("/")[2]]["properties"])
        return {}

    def _comment(self, rule: Mapping[str, Any]) -> str:
        """Return the first sentences of a description; empty if it was written before."""
        description = str(rule.get("description", ""))
        if description in self._written:
            return ""
        self._written.add(description)
        first, *others = re.split(r"(?<=\.)\s+(?=[A-Z])", description)
        for sentence in others:
            if len(first) + len(sentence) > LONGEST_COMMENT:
                break
            first += f" {sentence}"
        return first


def _is_block(value: Any) -> bool:
    """Return whether a value needs lines of its own: a section, or a list of sections."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_scalar(key)}: {_flow(inner)}' for key, inner in value.items())}}}"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """Return a scalar as YAML 1.1 and 1.2 both read it. Every JSON text is YAML, too."""
    if isinstance(value, str) and not _AMBIGUOUS.fullmatch(value):
        plain = value.replace(":", "") if re.fullmatch(r"[a-z-]+:[a-z]+", value) else value
        if _PLAIN.fullmatch(plain) and yaml.load(value, Loader=Loader) == value:
            return value
    return json.dumps(value, ensure_ascii=False)
