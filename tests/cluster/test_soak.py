"""Two minutes of random jobs, faults and killed daemons; the long soak is tests/bench/soak.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.soak.faults import KINDS
from tests.support.soak.harness import Options, soak

SECONDS = 120.0
SEED = 5


@pytest.mark.timeout(900)
def test_two_minutes_of_every_fault_lose_no_job_and_leave_nothing(tmp_path: Path) -> None:
    result = soak(Options(SECONDS, SEED, logs=tmp_path / "logs"))
    assert result.findings == [], f"seed {SEED}, logs in {result.logs}"
    assert result.jobs["completed"] >= 10
    assert set(result.faults) == set(KINDS)
