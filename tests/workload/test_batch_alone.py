"""The container's entry point on one machine without Batch, as its page tries it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from workload.batch.program import exported

PAGE = (ROOT / "docs" / "reference" / "batch_container.md").read_text()
PUBLISHED = (
    "-x HOROVOD_HIERARCHICAL_ALLREDUCE=1 -x HOROVOD_FUSION_THRESHOLD=16777216 -x NCCL_MIN_NRINGS=8 "
    "-x NCCL_LAUNCH_MODE=PARALLEL"
)


def entry(folder: Path, *program: str, **more: str) -> subprocess.CompletedProcess[str]:
    names = ("PYTHONPATH", "PYTHONSAFEPATH")
    env = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-m", "workload.batch.entry", *program],
        cwd=ROOT,
        env={**env, "JOB_DIR": str(folder), "SCRATCH_DIR": str(folder), **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_program_finds_our_package_wherever_it_starts(tmp_path: Path) -> None:
    """The page's second program is `python3 -m workload.resnet.train`, and programs start in SCRATCH_DIR."""
    (program,) = re.findall(r"`python3 -m (workload\.resnet\.train) --network tiny", PAGE)
    show = (
        "import json, os, importlib.util as u; "
        f"print(json.dumps([bool(u.find_spec('{program}')), os.getcwd()]))"
    )
    done = entry(tmp_path, sys.executable, "-c", show)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == [True, str(tmp_path)]


def test_the_users_own_paths_come_first(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("print('of mine')\n")
    done = entry(tmp_path, sys.executable, "-m", "mine", PYTHONPATH=str(tmp_path / "own"))
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "of mine")


def test_the_published_mpi_parameters_have_their_effect_without_mpirun(tmp_path: Path) -> None:
    show = "import os; print(os.environ['NCCL_MIN_NRINGS'], os.environ['NCCL_LAUNCH_MODE'])"
    done = entry(tmp_path, sys.executable, "-c", show, EXTRA_MPI_PARAMS=PUBLISHED)
    assert done.stdout.splitlines()[0] == "8 PARALLEL"
    assert "EXTRA_MPI_PARAMS" not in done.stderr
    done = entry(tmp_path, "true", EXTRA_MPI_PARAMS="-x A=1 -bind-to socket")
    assert "EXTRA_MPI_PARAMS: without mpirun these have no effect: -bind-to socket" in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "unused"),
    [
        (["-x", "A=1=2", "-x", "PATH"], {"A": "1=2"}, []),
        (["-mca", "pml", "ob1", "-x", "B="], {"B": ""}, ["-mca", "pml", "ob1"]),
        (["-x"], {}, []),
        ([], {}, []),
    ],
)
def test_variables_and_the_rest(words: list[str], variables: dict[str, str], unused: list[str]) -> None:
    assert exported(words) == (variables, unused)
