"""Tests of what conftest.py gives to every test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.checkout import ROOT

PROBE = """
import os
from pathlib import Path

def test_places(tmp_path: Path) -> None:
    place = Path(os.environ["EXPECTED"])
    assert tmp_path.is_relative_to(place), "of this run"
    assert Path(os.environ["PYTEST_DEBUG_TEMPROOT"]).is_relative_to(place), "of the pytests that it starts"
    assert Path(os.environ["PYTEST_DEBUG_TEMPROOT"]) != place
"""


def test_temporary_files_are_where_nodes_see_them_also_without_workers(tmp_path: Path) -> None:
    """A node has a /tmp of its own, so tests could not read there what a job has written."""
    (tmp_path / "test_places.py").write_text(PROBE)
    (tmp_path / "pytest.ini").touch()
    place = tmp_path / "root"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DEBUG_TEMPROOT": str(place),
            "EXPECTED": str(place),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
