"""Pulumi's names for resources, in the form that the real engine gives them."""

from __future__ import annotations

STACK_TYPE = "pulumi:pulumi:Stack"


def make(stack: str, project: str, parent: str, type_: str, name: str) -> str:
    """`urn:pulumi:<stack>::<project>::<parent types>$<type>::<name>`; the stack itself is no parent type."""
    parents = parent.split("::")[2] if parent else ""
    qualified = f"{parents}${type_}" if parents and parents != STACK_TYPE else type_
    return f"urn:pulumi:{stack}::{project}::{qualified}::{name}"
