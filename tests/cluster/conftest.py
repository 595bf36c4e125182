"""Clusters for the tests of this folder: real slurmctld, slurmd and munge, as `./cluster up` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from operations.local import system_packages
from tests.support.checkout import SMALL, Checkout, running

# pytest explains failed asserts of these shared modules too, as it does for test files.
pytest.register_assert_rewrite("tests.cluster.cloud_machines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = system_packages.missing()
    for item in items:
        if "tests/cluster" in str(item.path):
            item.add_marker(pytest.mark.cluster)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"packages are missing: {', '.join(missing)}"))


@pytest.fixture
def make_checkout(tmp_path: Path) -> Iterator[Callable[..., Checkout]]:
    """Makes checkouts that are taken down at the end. Anything that is left over is a failure."""
    made: list[Checkout] = []

    def make(stack_file: str = SMALL, name: str = "a checkout") -> Checkout:
        made.append(Checkout(tmp_path / name, stack_file))
        return made[-1]

    yield make
    left = [line for checkout in made for line in checkout.close()]
    assert left == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """One cluster for a module's tests."""
    with running(tmp_path_factory.mktemp("cluster") / "a checkout", SMALL) as checkout:
        yield checkout
