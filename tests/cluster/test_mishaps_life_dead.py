"""Daemons that are dead or hang: `down` ends all the same, and `up` starts them again."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable

import pytest

from node.system.processes import ProcessId, having
from tests.support.checkout import Checkout, until
from tests.support.mishaps import end, kill_all, pids, until_saved

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 2}, default: true}
        slurm: {suspend_time: 30}
"""
AGENT, ELASTIC, SLURMCTLD, MUNGED = (
    "localcloud.agent",
    "elastic.daemon",
    "/usr/sbin/slurmctld\0",
    "/usr/sbin/munged",
)
INIT = "--role\0controller"


def signalled(number: signal.Signals, *programs: str) -> Callable[[Checkout], None]:
    def do(checkout: Checkout) -> None:
        found = [pid for program in programs for pid in pids(checkout, program)]
        assert len(found) >= len(programs)
        for pid in found:
            os.kill(pid, number)

    return do


def half_deleted(checkout: Checkout) -> None:
    for name in ("code", "etc", "bucket", "state", "cloud"):
        # The folder goes at one moment, because daemons go on writing into a folder while it is emptied.
        gone = (checkout.run_directory / name).rename(checkout.run_directory / f"gone-{name}")
        shutil.rmtree(gone, ignore_errors=True)


@pytest.fixture
def checkout(make_checkout: Callable[..., Checkout]) -> Checkout:
    """A cluster with a job on a node."""
    made = make_checkout(STACK)
    made.cluster("up", check=True)
    made.execute("sbatch", "--output=/dev/null", "--wrap", "setsid sleep 300 & sleep 300")
    until(lambda: pids(made, "sleep\x00300"), 120, "the job")
    return made


@pytest.mark.parametrize(
    ("mishap", "word"),
    [
        pytest.param(signalled(signal.SIGKILL, SLURMCTLD, MUNGED, ELASTIC), "", marks=pytest.mark.wide),
        # By default the next test ends with the same.
        pytest.param(kill_all, "its machines end with it", marks=pytest.mark.wide),
        pytest.param(half_deleted, "", marks=pytest.mark.wide),
    ],
    ids=["daemons killed", "all killed", "half deleted"],
)
def test_down_comes_to_its_end(checkout: Checkout, mishap: Callable[[Checkout], None], word: str) -> None:
    mishap(checkout)
    goes_down(checkout, word)


def goes_down(checkout: Checkout, word: str) -> None:
    # `down` takes a limited time: the daemons' grace is some seconds.
    down = checkout.cluster("down", timeout=120)
    assert down.returncode == 0, down.stderr
    assert word in down.stderr
    assert "Traceback" not in down.stderr
    assert checkout.processes() == []
    assert not checkout.run_directory.exists()


def test_up_starts_what_has_died_and_keeps_the_queue_and_down_ends_what_is_dead(checkout: Checkout) -> None:
    checkout.execute("sbatch", "--hold", "--output=/dev/null", "--wrap", "true")
    until_saved(checkout)
    queue = checkout.execute("squeue", "--noheader", "--format=%i")
    end(pids(checkout, AGENT)[0])
    up = checkout.cluster("up", check=True)
    assert "the local cloud's agent has ended: it is started again" in up.stderr
    assert len(pids(checkout, AGENT)) == 1
    for program in (INIT, AGENT):
        end(pids(checkout, program)[0])
    gone = checkout.cluster("exec", "--", "squeue")
    assert gone.returncode == 1
    assert gone.stderr.startswith("the controller of stack test does not run")
    assert gone.stderr.count("\n") == 3, "the cause, what to do, and the code"
    assert "./cluster up --stack test" in gone.stderr
    up = checkout.cluster("up", check=True)
    assert "the controller has ended: it is started again, with its queue" in up.stderr
    assert checkout.execute("squeue", "--noheader", "--format=%i") == queue
    assert "created" not in up.stderr
    shutil.rmtree(checkout.run_directory / "bucket")
    up = checkout.cluster("up")
    assert up.returncode == 1
    assert f"{checkout.run_directory}/bucket/current.json" in up.stderr
    assert "`./cluster down --stack test` and then `./cluster up --stack test`" in up.stderr
    kill_all(checkout)
    goes_down(checkout, "its machines end with it")


@pytest.mark.wide
def test_a_job_ends_with_its_machine_whoever_started_that(checkout: Checkout) -> None:
    """A restarted agent is not an ancestor of the machines that it finds, nor of their jobs."""
    end(pids(checkout, AGENT)[0])
    checkout.cluster("up", check=True)
    conf = f"SLURM_CONF={checkout.run_directory}/etc/slurm.conf".encode()
    marks = {conf, b"SLURMD_NODENAME=debug-0"}
    jobs = [ProcessId.of(pid) for pid in having(lambda _, environment: marks <= set(environment))]
    assert len(jobs) >= 2
    content = json.loads((checkout.run_directory / "cloud" / "machines.json").read_text())
    (machine,) = [m for m in content["machines"] if m["node"] == "debug-0" and m["state"] == "running"]
    end(machine["process"]["pid"])
    until(lambda: not any(job and job.alive() for job in jobs), 120, "the job's processes")
