"""For all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

# Asserted there, too: a failure shows the values.
pytest.register_assert_rewrite("tests.support")
# Behind that line.
from tests.support import signals  # noqa: E402

pytest_plugins = ["tests.support.accounts"]
# What a script that starts us in the background, or `nohup`, has ignored, our children would ignore, too.
signals.reset()
# moto's own images, hundreds of them, are of no use here and made anew for every test of a cloud.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage is of what the tests run each time, not of what random examples happen to reach.

    Nor would anybody wait for it: tracing thousands of examples takes as long as the examples.
    """
    for item in items:
        if isinstance(item, pytest.Function) and hypothesis.is_hypothesis_test(item.obj):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """No test leaves Ctrl-C ignored or blocked: programs that later tests start would inherit that."""
    yield
    changed = signals.changed()
    signals.reset()
    assert not changed, f"the test leaves signals changed: {changed}"
