"""Runs the workload's pure tests anywhere, and the others in the training environment."""

import importlib.util
import os
from pathlib import Path

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


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data, which the first training makes for all."""
    return tmp_path_factory.mktemp("cache")
