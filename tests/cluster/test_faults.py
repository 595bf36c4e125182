"""Every fault of machines and every refusal that the local cloud can simulate, on a real cluster.

docs/internals/reliability.md promises this. Each test ends with an empty queue and without machines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fault_cluster import STACK, cause, done, job, machines, submit, waits_for, without_faults
from tests.support.checkout import Checkout, running, until

# A machine that freezes is given up after this time. The usual minute would only be waited for.
SOON = STACK.replace("resume_timeout: 45", "resume_timeout: 45, slurmd_timeout: 25")
assert SOON != STACK


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with running(tmp_path_factory.mktemp("faults") / "a checkout", SOON) as checkout:
        yield checkout


@pytest.fixture
def cluster(shared: Checkout) -> Iterator[Checkout]:
    with without_faults(shared):
        yield shared


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        # By default test_capacity_drains_cluster.py has a quota of machines, and this list a pool's capacity.
        pytest.param(
            ["quota_nodes=1"], ["-N2"], ["quota", "1 machine would be exceeded"], marks=pytest.mark.wide
        ),
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


# By default test_lost_machines.py kills a machine, and test_taken_while_ending.py has a job of this kind.
@pytest.mark.wide
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
    # The first task goes on until the last one runs again.
    waits = f"until [ $(wc -l <{tmp_path}/1) = 2 ]; do sleep 0.2; done"
    stays = f'[ "$SLURM_ARRAY_TASK_ID" = 0 ] || sleep 600; {waits}'
    script = f"echo >> {tmp_path}/$SLURM_ARRAY_TASK_ID; {again}; {stays}"
    number = submit(cluster, "--array=0-1", "-N1", "--exclusive", script=script)
    until(lambda: len(list(tmp_path.iterdir())) == 2, 120, "both tasks")
    last = cluster.execute("squeue", "--noheader", "--job", f"{number}_1", "--format=%N").strip()
    cluster.chaos("preempt", last, "--notice", "20")
    until(lambda: not cluster.ask("squeue", "--noheader", "--job", number), 150, "both ends")
    assert [len((tmp_path / task).read_text()) for task in "01"] == [1, 2]
