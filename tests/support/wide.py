"""Parameters that only `./cluster test --all` tries, where others of the same list show the same."""

from __future__ import annotations

from typing import Any

import pytest


def wide(*values: Any) -> list[Any]:
    """Return parameters with the marker `wide`; a tuple is the values of several arguments."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.wide)
        for value in values
    ]
