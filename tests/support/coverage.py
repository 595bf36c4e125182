"""Settings for SlipCover, which measures the branch coverage of the tests."""

from __future__ import annotations

import sys

NEVER = 2_000_000_000
"""How often a line may run before SlipCover removes its probe. pyproject.toml has the same number."""


def keep_probes() -> None:
    """Let SlipCover never remove its probes from code that runs, in a worker of pytest-xdist.

    Before Python 3.12 it looks for that code in the frames of all threads. If the garbage collector runs
    meanwhile, a finalizer waits for anything, and another thread starts a thread, then CPython 3.11 waits for
    itself for ever (python/cpython#106883). The tests have many threads, and a run stood still in this way.
    Probes that stay cost no time that can be measured. SlipCover passes `threshold` of pyproject.toml to
    every process but these workers.
    """
    plugin = sys.modules.get("slipcover.pytest_plugin")
    if (measuring := getattr(plugin, "_slipcover_instance", None)) is not None:
        measuring.d_miss_threshold = NEVER
