"""Decides calls by IAM policies: it knows as much of their language as the cluster's policies use.

Anything else in a document is an error, so that no condition is ignored.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

Context = Mapping[str, str]
"""Condition key of a call -> value, such as `aws:RequestTag/…`."""


def allowed(document: Mapping[str, Any], action: str, resource: str, context: Context | None = None) -> bool:
    """Return whether a policy allows an action on one resource. A launch in EC2 asks for each resource."""
    effects = [
        statement["Effect"]
        for statement in document["Statement"]
        if _matches(statement["Action"], action)
        and _matches(statement["Resource"], resource)
        and _conditions(statement.get("Condition", {}), context or {})
    ]
    assert set(effects) <= {"Allow", "Deny"}
    return "Allow" in effects and "Deny" not in effects


def _matches(patterns: str | list[str], value: str) -> bool:
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in _several(patterns))


def _conditions(conditions: Mapping[str, Mapping[str, Any]], context: Context) -> bool:
    known = {"StringEquals", "StringLike", "ArnLike", "Bool"}
    assert set(conditions) <= known, set(conditions) - known
    return all(
        key in context and _fits(operator, wanted, context[key])
        for operator, keys in conditions.items()
        for key, wanted in keys.items()
    )


def _fits(operator: str, wanted: str | list[str], value: str) -> bool:
    return _matches(wanted, value) if operator.endswith("Like") else value in _several(wanted)


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
