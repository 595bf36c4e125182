"""Machines that are process trees: which processes belong to a machine whose init has died."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud import hosts_namespace, machines
from localcloud.machines import Boot, ProcessRuntime, pids_of_cluster
from node.bootstrap.job_leftovers import STEPDS
from node.system.processes import descendants, with_environment
from operations.local import namespaces
from tests.support.checkout import ROOT, until

CLEAR = """
import sys
from pathlib import Path
from localcloud.machines import Boot, ProcessRuntime
run = Path(sys.argv[1])
ProcessRuntime(run, sys.executable).clear(Boot("m-1", "compute", "debug-0"))
"""


@pytest.fixture(params=STEPDS)
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A slurmstepd without the machine's variables above a job with Slurm's; it reports how the job ended."""
    stepd = tmp_path / request.param
    shutil.copy2(os.path.realpath("/bin/sh"), stepd)
    marks = f"SLURM_CONF={tmp_path}/etc/slurm.conf SLURMD_NODENAME=debug-0"
    child = subprocess.Popen(
        [stepd, "-c", f"env {marks} sh -c 'sleep 300; exit 0'; echo $? > {tmp_path}/told"],
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    # The shell of the job and its `sleep`.
    until(lambda: len(descendants(child.pid)) == 2, 60, "the job")
    yield child
    for pid in [*descendants(child.pid), child.pid]:
        with contextlib.suppress(ProcessLookupError):  # one may end because the other has ended
            if child.poll() is None:
                os.kill(pid, 9)
    child.wait()


def test_a_job_ends_together_with_the_slurmstepd_that_would_tell_of_it(
    step: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Otherwise slurmctld would be told of a failed job, and would not queue it again."""
    # The node's name does not tell: clusters of other tests have a debug-0, too.
    job = ("SLURM_CONF", f"{tmp_path}/etc/slurm.conf")
    assert with_environment(*job)
    subprocess.run(
        [sys.executable, "-c", CLEAR, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    step.wait(60)
    assert with_environment(*job) == []
    assert not (tmp_path / "told").exists()


@pytest.mark.skipif(shutil.which("slurmstepd") is None, reason="Slurm is not installed")
def test_the_installed_slurmstepd_is_known_by_its_programs_name() -> None:
    assert Path(os.path.realpath(shutil.which("slurmstepd") or "")).name in STEPDS


def test_orphans_of_a_machine_end_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the batch script's slurmstepd saw the end of a step's, it would report a failed job."""
    ended: list[list[int]] = []
    monkeypatch.setattr(machines, "children", lambda _parent: [2**22 + 1, 2**22 + 2])
    monkeypatch.setattr(machines, "with_descendants", lambda roots: [*roots, 2**22 + 3])
    monkeypatch.setattr(machines, "kill_together", ended.append)
    (tmp_path / "cloud").mkdir()
    ProcessRuntime(tmp_path, sys.executable).reap()
    assert ended == [[2**22 + 1, 2**22 + 2, 2**22 + 3]]


def test_orphans_are_looked_for_from_the_end_of_an_init_until_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look reads every process of this host, and the agent asks twice a second."""
    orphans: list[list[int]] = [[], [2**22 + 1], [2**22 + 2], []]
    looks: list[list[int]] = []

    def look(_parent: int) -> list[int]:
        looks.append(orphans[len(looks)])
        return looks[-1]

    monkeypatch.setattr(machines, "children", look)
    (tmp_path / "cloud").mkdir()
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "loader.py").write_text("import signal\nsignal.pause()\n")
    runtime = ProcessRuntime(tmp_path, sys.executable)
    runtime.reap()
    process = runtime.start(Boot("m-1", "controller", "controller"))
    for _ in range(3):
        runtime.reap()
    assert len(looks) == 1, "an earlier agent's orphans"
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not process.alive(), 60, "the init's end")
    for _ in range(6):
        runtime.reap()
    assert looks == orphans


@pytest.mark.skipif(
    namespaces.unsupported_reason("127.9.64.0") is not None or not hosts_namespace.SLURM.is_dir(),
    reason="no namespaces with a /etc/slurm of their own here",
)
def test_a_client_that_waits_for_a_job_is_found_although_it_lost_slurm_conf(tmp_path: Path) -> None:
    """A launcher has removed it from the environment; without a cluster the client would wait for ever."""
    for run in ("mine", "other"):
        for folder in ("cloud", "etc"):
            (tmp_path / run / folder).mkdir(parents=True)
        (tmp_path / run / "cloud" / "hosts").touch()
        (tmp_path / run / "etc" / "slurm.conf").touch()
    srun = tmp_path / "srun"
    shutil.copy2(os.path.realpath("/bin/sleep"), srun)
    view = [sys.executable, "-I", "-S", hosts_namespace.__file__]
    started = [
        subprocess.Popen(
            [*view, str(tmp_path / run / "cloud"), "controller", "--exec", str(program), "300"],
            env={"PATH": os.environ["PATH"]},
        )
        for run, program in (("mine", srun), ("other", srun), ("mine", "sleep"))
    ]
    try:
        until(lambda: pids_of_cluster(tmp_path / "other") == [started[1].pid], 60, "the other cluster's")
        until(lambda: pids_of_cluster(tmp_path / "mine") == [started[0].pid], 60, "the cluster's own")
    finally:
        for child in started:
            child.kill()
            child.wait()
