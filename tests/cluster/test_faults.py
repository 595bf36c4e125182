"""Every fault that the local cloud can simulate, and every kind of interruption, on a real cluster.

docs/reliability.md promises this. Each test ends with an empty queue and without machines.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import Checkout, running, until
from tests.support.mishaps import pids

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 8}, default: true}
          - {name: gpu, instance_type: local.medium, accelerator: {type: v100, count: 2}, nodes: {max: 4}}
        slurm: {suspend_time: 2, suspend_timeout: 2, resume_timeout: 45}
"""
START_SECONDS = 90.0
"""The limit from a fault's end to a job's end. On an idle host 10 s and the boot are promised."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with running(tmp_path_factory.mktemp("faults") / "a checkout", STACK) as checkout:
        yield checkout


@pytest.fixture
def cluster(shared: Checkout) -> Iterator[Checkout]:
    """A cluster without jobs, machines or faults, before and after."""
    yield shared
    shared.execute("scancel", "--user", os.environ.get("USER", "root"), "--quiet")
    shared.chaos("clear")
    until(lambda: states(shared) == {"idle~"}, 120, "zero nodes")
    until(lambda: machines(shared) == [], 120, "zero machines")


def states(checkout: Checkout) -> set[str]:
    return set(checkout.ask("sinfo", "--noheader", "--Node", "--format=%T").split())


def machines(checkout: Checkout) -> list[dict[str, Any]]:
    """Living compute machines, from the cloud's own records."""
    records = json.loads((checkout.run_directory / "cloud" / "machines.json").read_text())["machines"]
    return [r for r in records if r["tags"]["role"] == "compute" and r["state"] in ("pending", "running")]


def submit(checkout: Checkout, *options: str, script: str = "true") -> str:
    return checkout.execute("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def job(checkout: Checkout, number: str) -> dict[str, str]:
    text = checkout.ask("scontrol", "--oneliner", "show", "job", number)
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def done(checkout: Checkout, *numbers: str, seconds: float = START_SECONDS) -> None:
    for number in numbers:
        until(lambda n=number: job(checkout, n)["JobState"] == "COMPLETED", seconds, f"job {number}")  # type: ignore[misc]


def cause(checkout: Checkout, number: str) -> str:
    """Return why a job waits, as `./cluster status` says it."""
    found = [j for j in checkout.status()["jobs"] if str(j["id"]) == number]
    return str(found[0]["cause"]) if found and found[0]["state"] == "PENDING" else ""


def waits_for(checkout: Checkout, number: str, *words: str, seconds: float = 120) -> None:
    """Wait until the job is pending, with these words as its cause in the status and on the job."""

    def told() -> bool:
        if not all(word in cause(checkout, number) for word in words):
            return False
        comment = checkout.ask("scontrol", "--oneliner", "show", "job", number)
        return words[0] in comment.partition("AdminComment=")[2]

    until(told, seconds, f"job {number} to wait because of {words}")


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        (["quota_nodes=1"], ["-N2"], ["quota", "1 machine would be exceeded"]),
        pytest.param(
            ["quota_gpus=1"],
            ["-N1", "-p", "gpu", "--gres=gpu:2"],
            ["quota", "1 GPU would be exceeded"],
            marks=pytest.mark.wide,
        ),
        (["capacity.debug=1"], ["-N2"], ["capacity", "debug"]),
        pytest.param(["api_error=placement"], ["-N2"], ["placement"], marks=pytest.mark.wide),
        pytest.param(["api_error=permission"], ["-N1"], ["permission"], marks=pytest.mark.wide),
        (["api_error=throttled"], ["-N1"], ["throttled"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and "=" in value[0] else "",
)
def test_an_obstacle_is_the_cause_and_the_job_starts_when_it_ends(
    cluster: Checkout, settings: list[str], options: list[str], words: list[str]
) -> None:
    cluster.chaos("set", *settings)
    waiting = submit(cluster, *options)
    waits_for(cluster, waiting, *words)
    # The job goes on waiting: no machine comes for it, and Slurm does not keep on trying.
    for _ in range(8):
        assert job(cluster, waiting)["JobState"] == "PENDING"
        time.sleep(0.5)
    cluster.chaos("clear")
    began = time.monotonic()
    done(cluster, waiting)
    print(f"{settings[0]}: done {time.monotonic() - began:.1f} s after the obstacle's end")


def test_a_request_that_is_wrong_stays_wrong_until_the_stack_is_mended(cluster: Checkout) -> None:
    cluster.chaos("set", "api_error=config")
    waiting = submit(cluster, "-N1")
    waits_for(cluster, waiting, "config")
    assert "stack file" in cause(cluster, waiting)


def test_machines_that_boot_slowly_are_waited_for(cluster: Checkout) -> None:
    cluster.chaos("set", "boot_delay=3", "boot_spread=3")
    began = time.monotonic()
    slow = submit(cluster, "-N3")
    done(cluster, slow)
    assert time.monotonic() - began > 3
    assert job(cluster, slow)["Restarts"] == "0"


def test_machines_that_never_register_are_given_back_and_others_tried(cluster: Checkout) -> None:
    cluster.chaos("set", "never_register=1")
    waiting = submit(cluster, "-N1")
    until(lambda: machines(cluster), 120, "the machine")
    waits_for(cluster, waiting, "bootstrap", seconds=150)
    cluster.chaos("clear")
    # The pool may be in its back-off, because only another launch can show whether machines register now.
    done(cluster, waiting, seconds=150)


def test_a_slow_cloud_that_lists_late_is_only_slow(cluster: Checkout) -> None:
    cluster.chaos("set", "api_latency=1", "list_lag=8")
    jobs = [submit(cluster, "-N2", script="srun sleep 3") for _ in range(2)]
    done(cluster, *jobs, seconds=120)
    assert [job(cluster, number)["Restarts"] for number in jobs] == ["0", "0"], "none was taken for lost"


def test_a_machine_that_is_killed_is_replaced_and_its_job_runs_again(cluster: Checkout) -> None:
    """An exclusive job on nodes without GPUs, beside some with, is a case that Slurm itself gets wrong."""
    number = submit(cluster, "-N1", "--exclusive", script='[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 600')
    until(lambda: job(cluster, number)["JobState"] == "RUNNING", 120, "the job")
    cluster.chaos("kill", job(cluster, number)["NodeList"])
    began = time.monotonic()
    done(cluster, number, seconds=150)
    print(f"killed: done again after {time.monotonic() - began:.1f} s")
    assert job(cluster, number)["Restarts"] == "1"


def test_a_machine_that_freezes_is_replaced_and_its_job_runs_again(cluster: Checkout) -> None:
    number = submit(cluster, "-N1", script='[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || sleep 600')
    until(lambda: job(cluster, number)["JobState"] == "RUNNING", 120, "the job")
    cluster.chaos("freeze", job(cluster, number)["NodeList"])
    began = time.monotonic()
    done(cluster, number, seconds=180)
    print(f"frozen: done again after {time.monotonic() - began:.1f} s")


def test_a_machine_that_is_taken_back_lets_its_job_save_its_work(cluster: Checkout, tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    # The loop keeps the shell running if the sleep gets its SIGTERM before the shell does.
    stays = f"trap 'touch {saved}; exit 0' TERM; touch {ready}; while :; do sleep 600 & wait; done"
    number = submit(cluster, "-N1", script=f"[ -e {saved} ] && exit 0; {stays}")
    until(ready.exists, 120, "the job")
    node = job(cluster, number)["NodeList"]
    cluster.chaos("preempt", node, "--notice", "40")
    until(saved.exists, 120, "SIGTERM to the job")
    began = time.monotonic()
    done(cluster, number, seconds=120)
    print(f"preempted: done again {time.monotonic() - began:.1f} s after it had saved")
    assert job(cluster, number)["Restarts"] == "1"
    until(lambda: node not in [m["node"] for m in machines(cluster)], 120, "the end of the machine")


def test_the_other_tasks_of_an_array_are_left_alone(cluster: Checkout, tmp_path: Path) -> None:
    """The last task has the id of the whole array, so an action on it could hit all tasks."""
    again = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0'
    script = f"echo >> {tmp_path}/$SLURM_ARRAY_TASK_ID; {again}; sleep $((20 + 600 * SLURM_ARRAY_TASK_ID))"
    number = submit(cluster, "--array=0-1", "-N1", "--exclusive", script=script)
    until(lambda: len(list(tmp_path.iterdir())) == 2, 120, "both tasks")
    last = cluster.execute("squeue", "--noheader", "--job", f"{number}_1", "--format=%N").strip()
    cluster.chaos("preempt", last, "--notice", "20")
    until(lambda: not cluster.ask("squeue", "--noheader", "--job", number), 150, "both ends")
    assert [len((tmp_path / task).read_text()) for task in "01"] == [1, 2]


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
    told = cluster.cluster("exec", "--", "sbatch", "--output=/dev/null", "-N9", "--wrap", "true")
    assert told.returncode != 0
    assert "submission failed" in told.stderr
    assert machines(cluster) == []


STAGES = {
    "before it asks": "kill -9 $$",
    "after it asked": '"$0.whole" "$@" & sleep 0.3; kill -9 $$',
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
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
