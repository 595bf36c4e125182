"""Jobs and programs that are interrupted, and a cloud that is slow or away, on a real cluster.

docs/internals/reliability.md promises this. Each test ends with an empty queue and without machines.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.slurm.control import SlurmError
from tests.cluster.fault_cluster import STACK, done, job, machines, submit, without_faults
from tests.support.checkout import Checkout, running, until
from tests.support.mishaps import pids


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with running(tmp_path_factory.mktemp("faults") / "a checkout", STACK) as checkout:
        yield checkout


@pytest.fixture
def cluster(shared: Checkout) -> Iterator[Checkout]:
    with without_faults(shared):
        yield shared


def test_a_slow_cloud_that_lists_late_is_only_slow(cluster: Checkout) -> None:
    cluster.chaos("set", "api_latency=1", "list_lag=8")
    jobs = [submit(cluster, "-N2", script="srun sleep 3") for _ in range(2)]
    done(cluster, *jobs, seconds=120)
    assert [job(cluster, number)["Restarts"] for number in jobs] == ["0", "0"], "none was taken for lost"


@pytest.mark.parametrize("seconds", [20, pytest.param(60, marks=pytest.mark.wide)])
def test_the_cloud_is_away_for_a_while(cluster: Checkout, seconds: int) -> None:
    agent = int((cluster.run_directory / "cloud" / "agent.lock").read_text())
    long = submit(cluster, "-N1", script=f"sleep {seconds / 2}")
    until(lambda: job(cluster, long)["JobState"] == "RUNNING", 120, "the first job")
    os.kill(agent, signal.SIGSTOP)
    try:
        late, ends = submit(cluster, "-N2"), time.monotonic() + seconds
        done(cluster, long)
        # All of this happened without the cloud: running jobs continued.
        time.sleep(max(0.0, ends - time.monotonic()))
    finally:
        os.kill(agent, signal.SIGCONT)
    done(cluster, late, seconds=120)


def test_two_jobs_race_for_the_last_machine(cluster: Checkout) -> None:
    cluster.chaos("set", "quota_nodes=1")
    both = [submit(cluster, "-N1", "--exclusive", script="sleep 2") for _ in range(2)]
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, len(machines(cluster)))
        return not cluster.ask("squeue", "--noheader", "--format=%i", "--jobs", ",".join(both))

    until(over, 150, "both ends")
    ran = sorted((job(cluster, number) for number in both), key=lambda fields: fields["StartTime"])
    assert [fields["JobState"] for fields in ran] == ["COMPLETED", "COMPLETED"]
    assert ran[0]["EndTime"] <= ran[1]["StartTime"], "one after the other"
    assert most <= 1


def test_a_job_that_is_cancelled_while_its_machines_boot(cluster: Checkout) -> None:
    cluster.chaos("set", "boot_delay=6")
    number = submit(cluster, "-N3")
    until(lambda: len(machines(cluster)) == 3, 120, "its machines")
    cluster.execute("scancel", number)
    until(lambda: machines(cluster) == [], 120, "the machines' end")


@pytest.mark.wide
@pytest.mark.parametrize("tasks", [40, 200])
def test_a_large_array(cluster: Checkout, tmp_path: Path, tasks: int) -> None:
    number = submit(cluster, f"--array=1-{tasks}", script=f"echo >> {tmp_path}/$SLURM_ARRAY_TASK_ID")
    until(lambda: len(list(tmp_path.iterdir())) == tasks, 240, "all tasks")
    assert {len(file.read_text()) for file in tmp_path.iterdir()} == {1}, "each ran once"
    until(lambda: not cluster.ask("squeue", "--noheader", "--job", number), 120, "an empty queue")


def test_a_job_larger_than_the_partition_says_so(cluster: Checkout) -> None:
    with pytest.raises(SlurmError, match="submission failed"):
        cluster.ask("sbatch", "--output=/dev/null", "-N9", "--wrap", "true")
    assert machines(cluster) == []


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("kill -9 $$", id="before it asks"),
        # By default the program that asks nobody has its nodes, too.
        pytest.param('"$0.whole" "$@" & sleep 0.3; kill -9 $$', id="after it asked", marks=pytest.mark.wide),
    ],
)
def test_the_resume_program_is_killed(cluster: Checkout, stage: str) -> None:
    """The program is killed once, at this stage. Afterwards it works again."""
    program = (cluster.run_directory / "code" / "current" / "bin" / "resume").resolve()
    whole = program.with_name("resume.whole")
    program.rename(whole)
    program.write_text(f'#!/bin/sh\nmv "$0" "$0.used"; ln -s resume.whole "$0"\n{stage}\n')
    program.chmod(0o755)
    try:
        number = submit(cluster, "-N2")
        done(cluster, number, seconds=120)
        assert program.with_name("resume.used").exists(), "the broken one was called"
    finally:
        whole.replace(program)
        program.with_name("resume.used").unlink(missing_ok=True)


def test_slurmctld_dies_in_mid_job_and_in_mid_launch(cluster: Checkout, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    first = submit(cluster, "-N1", script=f"while [ -e {hold} ]; do sleep 0.1; done")
    until(lambda: job(cluster, first)["JobState"] == "RUNNING", 120, "the first job")
    cluster.chaos("set", "boot_delay=9")
    second, submitted = submit(cluster, "-N2", "--exclusive"), time.time()
    until(lambda: len(machines(cluster)) == 3, 120, "the second's launch")
    # Slurm saves its queue some seconds later; killing it loses what it has not saved.
    queue = cluster.run_directory / "state" / "job_state"
    until(lambda: queue.stat().st_mtime > submitted, 120, "the queue on the disk")
    kill_daemon(cluster, "slurmctld")
    done(cluster, second, seconds=150)
    hold.unlink()
    done(cluster, first)
    assert job(cluster, first)["Restarts"] == "0"


def kill_daemon(checkout: Checkout, word: str) -> None:
    (pid,) = pids(checkout, f"/{word}\0")
    os.kill(pid, signal.SIGKILL)
