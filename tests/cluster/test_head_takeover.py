"""A controller that is lost with its root disk: another one takes over its disk, its queue and its jobs."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localcloud import nspawn, volumes
from localcloud.containers import BootPlan, disk_folder, leftovers, state_image
from localcloud.machines import CONTROLLER
from node import rpc
from node.processes import ProcessId
from operations.local import containers, machine_access
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout, until
from tests.support.containers import cluster_image
from tests.support.mishaps import Command, end, until_saved
from tests.support.private_mounts import EXT4_SHUTDOWN, WITHOUT_LOG

# The first test makes the machines' image where there is none.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.wide]

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {isolation: container}
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 6}, default: true, exclusive: true}
        slurm: {suspend_time: 600, accounting: true}
      slurm-stacks:benchmark: {enabled: false}
"""
WAITS = (
    "echo began >>{name}; while [ ! -e go-{name} ]; do sleep 0.2; done; echo ended >>{name}; exit {status}"
)
TASK = """\
echo $SLURM_ARRAY_TASK_ID >>tasks
[ $SLURM_ARRAY_TASK_ID -lt 3 ] || until [ -e go-on ]; do sleep 0.2; done
"""


@contextmanager
def up(tmp_path_factory: pytest.TempPathFactory, stack: str) -> Iterator[Checkout]:
    """A cluster of that stack, which leaves nothing behind."""
    cluster_image(stack)
    checkout = Checkout(tmp_path_factory.mktemp("takeover") / "a checkout", stack)
    checkout.env["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks").mkdir()
    (Path(checkout.env["XDG_CACHE_HOME"]) / "slurm-stacks" / "images").symlink_to(containers.image_folder())
    try:
        checkout.cluster("up", check=True)
        yield checkout
    finally:
        left = checkout.close()
    assert left == []
    assert leftovers(checkout.run_directory) == []
    assert volumes.attached(checkout.run_directory) == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with up(tmp_path_factory, STACK) as checkout:
        yield checkout


def states(cluster: Checkout) -> dict[str, str]:
    """Return the state of each job that has not been forgotten, by its id as squeue writes it."""
    lines = cluster.execute("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def recorded(cluster: Checkout, job: str) -> list[tuple[str, str]]:
    """Return the states and exit codes of a job, or of each task of an array, according to sacct."""
    text = cluster.execute("sacct", "-X", "-n", "-P", "-D", "-j", job, "--format=State,ExitCode")
    return [(state, code) for state, code in (line.split("|") for line in text.splitlines())]


def submit(cluster: Checkout, *options: str, script: str) -> str:
    return cluster.execute("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", script).strip()


def home(cluster: Checkout) -> Path:
    return cluster.run_directory / "shared" / "root"


def controller(cluster: Checkout) -> dict[str, Any]:
    """Return the local cloud's record of the controller."""
    machines = rpc.call(str(RunDirectory(cluster.run_directory).agent_socket), "inspect", 10.0)["machines"]
    (record,) = [one for one in machines if one["tags"]["role"] == CONTROLLER]
    return dict(record)


def daemons(cluster: Checkout) -> list[str]:
    """Return which of the daemons that write to the controller's disk run."""
    names = ("slurmctld", "slurmdbd", "mariadbd")
    machine = ProcessId(**controller(cluster)["process"])
    return [name for name in names if nspawn.execute(machine, "pgrep", "--exact", name).status == 0]


def take_the_disk_away(cluster: Checkout) -> None:
    """Let the controller's disk answer no more. What was not written through to it is lost."""
    pid = machine_access.controller(RunDirectory(cluster.run_directory))
    handle = os.open(f"/proc/{pid}/root/state", os.O_RDONLY)
    try:
        fcntl.ioctl(handle, EXT4_SHUTDOWN, WITHOUT_LOG)
    finally:
        os.close(handle)


def lose_the_controller(cluster: Checkout) -> None:
    """End the controller at once, and delete its root disk. Its successor has another image."""
    run = RunDirectory(cluster.run_directory)
    end(controller(cluster)["process"]["pid"])
    until(lambda: volumes.attached(state_image(run.path)) == [], 60, "the disk, which nobody has")
    folder = disk_folder(run.path, "controller")
    for part in folder.iterdir():
        if part.name != "log":
            shutil.rmtree(part)
    layer = run.path / "cloud" / f"layer-{time.monotonic_ns()}"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc" / "another-image").touch()
    plan = BootPlan.read(run.path)
    dataclasses.replace(plan, layers=(str(layer), *plan.layers)).write(run.path)


def test_jobs_queue_and_history_outlive_the_controller(cluster: Checkout) -> None:
    wide = [
        submit(cluster, "-N2", "--job-name=a", script=WAITS.format(name="a", status=0)),
        submit(cluster, "-N2", "--job-name=b", script=WAITS.format(name="b", status=7)),
    ]
    single = submit(cluster, "-N1", "--job-name=c", script=WAITS.format(name="c", status=0))
    array = submit(cluster, "--array=0-5%1", script=TASK)
    running = [*wide, single, f"{array}_3"]
    until(lambda: all(states(cluster).get(job) == "RUNNING" for job in running), 240, "the jobs")
    queued = [submit(cluster, "-N6", script="true") for _ in range(3)]
    queued += [
        submit(cluster, "--hold", script="true"),
        submit(cluster, f"--dependency=afterok:{wide[0]}", script="true"),
    ]
    at = ("starttime=now+2days", "duration=60", "user=root", "nodes=debug-5", "flags=ignore_jobs")
    cluster.execute("scontrol", "create", "reservation", "reservationname=mine", *at)
    cluster.execute("scontrol", "update", "nodename=debug-5", "state=drain", "reason=by hand")
    keys = RunDirectory(cluster.run_directory).report("controller")["host_keys"]
    assert keys
    until(lambda: recorded(cluster, wide[0]) == [("RUNNING", "0:0")], 120, "the records")
    until_saved(cluster)

    lose_the_controller(cluster)
    lost = time.monotonic()
    # This job ends while nobody schedules: its nodes report that later.
    (home(cluster) / "go-b").touch()
    told = cluster.cluster("up", check=True).stderr
    away = time.monotonic() - lost
    print(f"{away:.1f} s without a scheduler")
    assert away <= 60, told

    assert "another-image" in cluster.execute("ls", "/etc"), "it is another machine"
    assert RunDirectory(cluster.run_directory).report("controller")["host_keys"] == keys
    now = states(cluster)
    assert {job: now[job] for job in running if job != wide[1]} == dict.fromkeys(
        [wide[0], single, f"{array}_3"], "RUNNING"
    )
    assert {job: now[job] for job in queued} == dict.fromkeys(queued, "PENDING")
    assert "JobHeldUser" in cluster.execute("squeue", "--noheader", "--format=%r", f"--jobs={queued[3]}")
    assert "ReservationName=mine" in cluster.execute("scontrol", "show", "reservation")
    assert "by hand" in cluster.execute("sinfo", "--noheader", "--list-reasons")
    until(lambda: recorded(cluster, wide[1]) == [("FAILED", "7:0")], 120, "the end that nobody heard")

    for name in ("a", "c", "on"):
        (home(cluster) / f"go-{name}").touch()
    cluster.execute("scontrol", "update", "nodename=debug-5", "state=resume")
    cluster.execute("scontrol", "delete", "reservation=mine")
    cluster.execute("scontrol", "release", queued[3])
    done = [("COMPLETED", "0:0")]
    for job in (wide[0], single, *queued):
        until(lambda job=job: recorded(cluster, job) == done, 240, f"job {job}")  # type: ignore[misc]
    until(lambda: recorded(cluster, array) == 6 * done, 240, "the array")
    assert sorted((home(cluster) / "tasks").read_text().split()) == list("012345"), "each task ran once"
    for name in ("a", "b", "c"):
        assert (home(cluster) / name).read_text().split() == ["began", "ended"], "it ran once"


def test_a_controller_that_loses_its_disk_stops_and_another_one_takes_over(cluster: Checkout) -> None:
    held = submit(cluster, "--hold", script="true")
    until_saved(cluster)
    assert daemons(cluster) == ["slurmctld", "slurmdbd", "mariadbd"]
    before = controller(cluster)["id"]
    take_the_disk_away(cluster)
    until(lambda: not daemons(cluster), 120, "the end of the daemons")
    assert controller(cluster)["id"] == before, "the machine is there"
    told = cluster.cluster("up", check=True).stderr
    assert "the controller has lost the disk with Slurm's state" in told
    assert controller(cluster)["id"] != before
    assert states(cluster)[held] == "PENDING"
    cluster.execute("scancel", held)


def test_a_takeover_that_dies_in_the_middle_is_continued(cluster: Checkout) -> None:
    held = submit(cluster, "--hold", script="true")
    until_saved(cluster)
    for step in ("disks", "slurm"):
        lose_the_controller(cluster)
        command = Command(cluster, "up")
        command.until_said(f"controller: {step}")
        # The machine that it started boots on. The first one is lost in its boot, the second one is found.
        command.end(group=True)
    cluster.cluster("up", check=True)
    assert states(cluster)[held] == "PENDING"
    cluster.execute("scancel", held)


def test_ten_power_cuts_in_a_write_lose_nothing_that_was_saved(cluster: Checkout) -> None:
    saved: list[str] = []
    for _ in range(10):
        saved += [submit(cluster, "--hold", script="true") for _ in range(3)]
        until_saved(cluster)
        # The disk stops in the middle of what slurmctld and MariaDB are writing.
        submit(cluster, "--array=0-50", "--hold", script="true")
        take_the_disk_away(cluster)
        end(controller(cluster)["process"]["pid"])
        cluster.cluster("up", check=True)
        now = states(cluster)
        assert {job: now.get(job) for job in saved} == dict.fromkeys(saved, "PENDING")
        assert recorded(cluster, saved[-1]) == [("PENDING", "0:0")]


def test_a_cluster_that_is_up_gets_the_disk_and_keeps_its_queue(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before = STACK.replace(", accounting: true", "")
    assert before != STACK
    with up(tmp_path_factory, before) as cluster:
        job = submit(cluster, "-N1", script=WAITS.format(name="a", status=0))
        until(lambda: states(cluster).get(job) == "RUNNING", 240, "the job")
        held = submit(cluster, "--hold", script="true")
        until_saved(cluster)
        assert volumes.attached(cluster.run_directory) == []
        cluster.write_stack(
            before.replace("        slurm:", "        controller: {state: kept}\n        slurm:")
        )
        told = cluster.cluster("up", check=True).stderr
        assert "/state is new: applied to the running cluster" in told
        assert len(volumes.attached(cluster.run_directory)) == 1
        assert (states(cluster)[job], states(cluster)[held]) == ("RUNNING", "PENDING")
        lose_the_controller(cluster)
        cluster.cluster("up", check=True)
        assert (states(cluster)[job], states(cluster)[held]) == ("RUNNING", "PENDING")
        (home(cluster) / "go-a").touch()
        until(lambda: states(cluster).get(job) == "COMPLETED", 240, "the job")
        # The way back would delete the disk.
        cluster.write_stack(before)
        refused = cluster.cluster("up")
        assert refused.returncode == 3
        assert "/state is removed: its contents are lost" in refused.stderr
