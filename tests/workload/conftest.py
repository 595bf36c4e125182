"""Runs the workload's pure tests anywhere, and the others in the training environment."""

import importlib.util
import os

import pytest

from tests.support.training_modules import REASON, in_training_environment

# As workload.train does, and before any test imports TensorFlow.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if in_training_environment() or importlib.util.find_spec("tensorflow") is not None:
        return
    skip = pytest.mark.skip(reason=REASON)
    for item in items:
        if item.get_closest_marker("tensorflow"):
            item.add_marker(skip)
