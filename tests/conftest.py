"""Settings and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# The modules of two clouds' SDKs and all collected tests live as long as the run. The garbage collector would
# examine these millions of objects during the imports and at each later full collection, and find nothing.
# That is half of the CPU time of pytest's own collection.
gc.disable()
# pytest rewrites the asserts of these modules too, so that a failure shows the values.
pytest.register_assert_rewrite("tests.support")
# These imports must come after that line.
from tests.support import coverage, other_slurm, signals  # noqa: E402

pytest_plugins = ["tests.support.accounts", "tests.support.left_clusters"]
# This comes before any import of the code that is measured, and so before the next line.
coverage.keep_probes()
from tests.support import caller, sentences  # noqa: E402

# Our children would inherit the signals that `nohup`, or a script that starts us in the background, ignores.
signals.reset()
# A worker of pytest-xdist has what is left of it, and what plugins have added.
if "PYTEST_XDIST_WORKER" not in os.environ:
    caller.forget(os.environ)
    sys.dont_write_bytecode = False
# This comes before any process that a test starts.
other_slurm.enter()
# moto would make its hundreds of images anew for every test of a cloud, and no test needs them.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
# google-auth looks for a metadata server at 169.254.169.254, an address that no test on this machine may ask.
# It reads this when it is imported, so a fixture would come too late for some.
os.environ["NO_GCE_CHECK"] = "true"
# Where `tmp_path` is: nodes of process clusters have a /tmp of their own, and tests read what jobs write.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")


def _fsync(fd: Any) -> None:
    """Replace fsync by nothing: no test cuts the power, and real clusters keep disks busy."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = _fsync
# The time to make an example depends on the machine, so it has no limit.
hypothesis.settings.register_profile(
    "slow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# CI tries the same examples each time (Hypothesis' own profile); all other runs try new ones.
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-snapshots", action="store_true", help="write files of expected text anew")


def pytest_configure(config: pytest.Config) -> None:
    sentences.UPDATE = config.getoption("--update-snapshots")


def pytest_collection_finish() -> None:
    gc.freeze()
    # Tests import more of the SDKs. With the usual thresholds of 700, 10 and 10 the collector would take a
    # fifth of the CPU time of a cloud's tests.
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    if (resource := sys.modules.get("pulumi.runtime.resource")) is not None:
        from pulumi.runtime.proto import source_pb2

        # For every resource the SDK looks up where in the code it is declared: it reads the source of each
        # frame of the whole call stack, which takes a fifth of a plan's time here. No test needs this.
        vars(resource)["_get_stack_trace"] = source_pb2.StackTrace


@pytest.fixture(scope="session", autouse=True)
def _own_pytests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Separate the pytests that tests start from this one.

    They must not measure coverage: they would write to our files, and remove them. They have a folder for
    temporary files of their own: each run of pytest removes the folders of all but the last three runs, and
    what a failed test of ours has left is needed to find out why.
    """
    # Without workers this is the first folder, and where it is decides where all are.
    folder = tmp_path_factory.mktemp("pytests")
    ours = ("SLIPCOVER_", "PYTEST_DEBUG_TEMPROOT")
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(ours)}
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    yield
    os.environ.update(hidden)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Check that no test leaves Ctrl-C ignored or blocked: programs of later tests would inherit that."""
    yield
    changed = signals.changed()
    signals.reset()
    assert not changed, f"the test leaves signals changed: {changed}"
