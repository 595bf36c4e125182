"""Modules of the training environment: a test fails there without them, and is skipped elsewhere."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap.vm.training import COMPLETE

REASON = "needs the training environment (workload/envs/cpu)"


def in_training_environment() -> bool:
    """Return whether this interpreter is the one of `operations.local.benchmark`."""
    return (Path(sys.prefix) / COMPLETE).exists()


def training_module(name: str) -> Any:
    """Import a module of the training environment. In other environments a missing module skips the test.

    Raises:
        ImportError: the training environment lacks it.
    """
    if in_training_environment():
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=REASON)
