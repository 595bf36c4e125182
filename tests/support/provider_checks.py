"""The checks that a cloud's provider makes of a resource's values, as far as its source was read.

`tests/infra/data/provider_facts.yaml` has them with their sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.support.checkout import ROOT

FACTS: dict[str, Any] = yaml.safe_load(
    (ROOT / "tests" / "infra" / "data" / "provider_facts.yaml").read_text()
)


def refused(kind: str, name: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    """What the provider says of a resource's values, in the words of Pulumi's bridge to Terraform.

    Args:
        kind: the type token.
        name: the resource's name.
    """
    for path, rule in FACTS["values"].get(kind, {}).items():
        for value in _at(inputs, path):
            # A plan has a text in angle brackets for what only the cloud will know.
            if isinstance(value, str) and value.startswith("<"):
                continue
            if why := _problem(path, value, rule):
                yield (f"{kind} resource '{name}' has a problem: {why}. Examine values at '{name}.{path}'.")


def _problem(path: str, value: Any, rule: Mapping[str, Any]) -> str | None:
    if "range" in rule:
        least, most = rule["range"]
        inside = least <= int(value) <= most
        return None if inside else f"expected {path} to be in the range ({least} - {most}), got {int(value)}"
    if "words" in rule:
        known = [str(word) for word in rule["words"]]
        text = str(int(value)) if isinstance(value, float) else str(value)
        return None if text in known else f"expected {path} to be one of {known}, got {text}"
    pattern = rule["pattern"]
    return None if re.search(pattern, str(value)) else f"invalid value for {path} ({pattern}), got {value}"


def _at(value: Any, path: str) -> Iterator[Any]:
    """The values at a dotted path, of each element where a list lies on the way."""
    step, _, rest = path.partition(".")
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, Mapping) and one.get(step) is not None:
            found = one[step]
            if rest:
                yield from _at(found, rest)
            else:
                yield from found if isinstance(found, list) else [found]
