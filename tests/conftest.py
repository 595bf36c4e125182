"""For all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# The modules of two clouds' SDKs and all collected tests live as long as the run. While they come, and at
# each full collection later, the garbage collector would look at millions of objects and find nothing: half
# of the CPU time of pytest's own collection, and a second here and there.
gc.disable()
# Asserted there, too: a failure shows the values.
pytest.register_assert_rewrite("tests.support")
# Behind that line.
from tests.support import signals  # noqa: E402

pytest_plugins = ["tests.support.accounts"]
# What a script that starts us in the background, or `nohup`, has ignored, our children would ignore, too.
signals.reset()
# moto's own images, hundreds of them, are of no use here and made anew for every test of a cloud.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
# google-auth looks for a metadata server at 169.254.169.254, an address that no test on this machine may ask.
# It reads this when it is imported, so a fixture would come too late for some.
os.environ["NO_GCE_CHECK"] = "true"


def _fsync(fd: Any) -> None:
    """Write nothing to the disk: no test pulls the plug, and real clusters keep disks busy."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = _fsync
# How output looks is not for whoever runs the tests to say.
for name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm"
# How long an example takes to make is the machine's affair.
hypothesis.settings.register_profile(
    "slow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# CI tries the same examples each time (Hypothesis' own profile); everybody else tries new ones.
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "slow")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_coverage() -> Iterator[None]:
    """A pytest that a test starts measures no coverage: it would write to our files, and remove them."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("SLIPCOVER_")}
    yield
    os.environ.update(hidden)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """No test leaves Ctrl-C ignored or blocked: programs that later tests start would inherit that."""
    yield
    changed = signals.changed()
    signals.reset()
    assert not changed, f"the test leaves signals changed: {changed}"
