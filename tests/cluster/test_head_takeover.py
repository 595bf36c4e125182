"""A controller that is lost with its root disk: another one takes over its disk, its queue and its jobs."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

from localcloud import volumes
from localcloud.containers import disk_folder
from localcloud.machines import CONTROLLER
from node.bootstrap.vm.state_guard import LOST_SECONDS
from tests.support import lost_head, shared_accounts
from tests.support.checkout import Checkout, until
from tests.support.kept_cluster import WAITS, home, recorded, run_of, states, submit, up
from tests.support.mishaps import Command, end, until_saved

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
_END = "\n      slurm-stacks:benchmark"
SHARED = STACK.replace(_END, f"{shared_accounts.STACK}{_END}")
TASK = """\
echo $SLURM_ARRAY_TASK_ID >>tasks
[ $SLURM_ARRAY_TASK_ID -lt 3 ] || until [ -e go-on ]; do sleep 0.2; done
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    with up(tmp_path_factory, SHARED) as checkout:
        yield checkout


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
    cluster.execute("scontrol", "create", "partitionname=mine", "nodes=debug-5", "maxtime=60")
    cluster.execute("scontrol", "update", "partitionname=debug", "gracetime=7")
    queued += [
        submit(cluster, "--hold", "--partition=mine", script="true"),
        submit(cluster, f"--dependency=afterok:{wide[0]}", script="true"),
    ]
    at = ("starttime=now+2days", "duration=60", "user=root", "nodes=debug-5", "flags=ignore_jobs")
    cluster.execute("scontrol", "create", "reservation", "reservationname=mine", *at)
    cluster.execute("scontrol", "update", "nodename=debug-5", "state=drain", "reason=by hand")
    queued.append(shared_accounts.submit(cluster, "ada", "--account=research", "--qos=urgent"))
    shared_accounts.holds(cluster)
    shared = shared_accounts.known(cluster)
    keys = run_of(cluster).report("controller")["host_keys"]
    assert keys
    until(lambda: recorded(cluster, wide[0]) == [("RUNNING", "0:0")], 120, "the records")
    until_saved(cluster)

    lost_head.lose(run_of(cluster))
    lost = time.monotonic()
    # This job ends while nobody schedules: its nodes report that later.
    (home(cluster) / "go-b").touch()
    output = cluster.cluster("up", check=True).stderr
    away = time.monotonic() - lost
    print(f"{away:.1f} s without a scheduler")
    assert away <= 60, output

    assert "another-image" in cluster.execute("ls", "/etc"), "it is another machine"
    assert run_of(cluster).report("controller")["host_keys"] == keys
    now = states(cluster)
    assert {job: now[job] for job in running if job != wide[1]} == dict.fromkeys(
        [wide[0], single, f"{array}_3"], "RUNNING"
    )
    assert {job: now[job] for job in queued} == dict.fromkeys(queued, "PENDING")
    assert "JobHeldUser" in cluster.execute("squeue", "--noheader", "--format=%r", f"--jobs={queued[3]}")
    assert "ReservationName=mine" in cluster.execute("scontrol", "show", "reservation")
    assert "MaxTime=01:00:00" in cluster.execute("scontrol", "show", "partition", "mine")
    assert "GraceTime=7" in cluster.execute("scontrol", "show", "partition", "debug")
    assert "by hand" in cluster.execute("sinfo", "--noheader", "--list-reasons")
    until(lambda: recorded(cluster, wide[1]) == [("FAILED", "7:0")], 120, "the end that nobody heard")
    assert shared_accounts.known(cluster) == shared
    asked = ("squeue", "--noheader", "--format=%u %a %q", f"--jobs={queued[-1]}")
    assert cluster.execute(*asked).split() == ["ada", "research", "urgent"]
    shared_accounts.holds(cluster)

    for name in ("a", "c", "on"):
        (home(cluster) / f"go-{name}").touch()
    cluster.execute("scontrol", "update", "nodename=debug-5", "state=resume")
    cluster.execute("scontrol", "delete", "reservation=mine")
    cluster.execute("scontrol", "release", f"{queued[3]},{queued[-1]}")
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
    old = lost_head.controller(run_of(cluster))
    assert lost_head.daemons(old) == [*lost_head.DAEMONS]
    lost_head.take_the_disk_away(old)
    until(lambda: not lost_head.daemons(old), 120, "the end of the daemons")
    assert lost_head.controller(run_of(cluster))["id"] == old["id"], "the machine is there"
    output = cluster.cluster("up", check=True).stderr
    assert "the controller has lost the disk with Slurm's state" in output
    assert lost_head.controller(run_of(cluster))["id"] != old["id"]
    assert states(cluster)[held] == "PENDING"
    cluster.execute("scancel", held)


def test_a_takeover_that_dies_in_the_middle_is_continued(cluster: Checkout) -> None:
    held = submit(cluster, "--hold", script="true")
    until_saved(cluster)
    for step in ("disks", "slurm"):
        lost_head.lose(run_of(cluster))
        command = Command(cluster, "up")
        command.until_said(f"controller: {step}")
        # The machine that it started boots on. The first one is lost in its boot, the second one is found.
        command.end(group=True)
    cluster.cluster("up", check=True)
    assert states(cluster)[held] == "PENDING"
    cluster.execute("scancel", held)


@pytest.mark.parametrize("frozen", [False, True], ids=["cut off", "frozen"])
def test_a_controller_that_comes_back_behind_its_successor_is_no_second_one(
    cluster: Checkout, frozen: bool
) -> None:
    run, script = run_of(cluster), "frozen" if frozen else "cut"
    job = submit(cluster, "-N2", script=WAITS.format(name=script, status=3))
    until(lambda: states(cluster).get(job) == "RUNNING", 240, "the job", 0.5)
    held = submit(cluster, "--hold", script="true")
    until(lambda: recorded(cluster, held) == [("PENDING", "0:0")], 120, "its record", 0.5)
    until_saved(cluster)
    old, begun = lost_head.controller(run), len((run.cloud / "agent.log").read_text())
    run.call("fault", 20.0, action="freeze" if frozen else "cut", node=CONTROLLER)
    since = time.monotonic()
    # Nobody can have the disk meanwhile: the cloud attaches it to one machine.
    lost_head.launch_beside(run, old)
    said = run.cloud / "agent.log"
    until(lambda: "one machine has it at a time" in said.read_text()[begun:], 120, "the refusal", 0.5)
    until(lambda: [record["id"] for record in lost_head.controllers(run)] == [old["id"]], 60, "its end", 0.5)

    lost_head.detach_by_force(run, old)
    lost_head.launch_beside(run, old)
    until(lambda: run.report(CONTROLLER).get("state") in ("ready", "failed"), 240, "the successor", 0.5)
    assert run.report(CONTROLLER)["state"] == "ready", run.report(CONTROLLER)
    _, new = lost_head.controllers(run)
    until(lambda: lost_head.execute(new, "scontrol", "ping"), 60, "its slurmctld", 0.5)
    assert lost_head.daemons(new) == [*lost_head.DAEMONS]

    if frozen:
        # Longer than the guard waits for a disk: it then kills the daemons before it asks the disk.
        time.sleep(max(0.0, since + LOST_SECONDS + 5 - time.monotonic()))
    lost_head.come_back(run, old)
    until(lambda: not lost_head.daemons(old), 120, "the end of the old one's daemons", 0.5)
    for name in ("slurmctld", "slurmdbd", "elastic"):
        lost_head.execute(old, "systemctl", "start", f"slurm-stacks-{name}")
    time.sleep(5)
    assert lost_head.daemons(old) == [], "they do not start"
    assert lost_head.daemons(new) == [*lost_head.DAEMONS]
    log = disk_folder(run.path, f"former-{old['id']}") / "log" / "state.log"
    assert "this machine does not hold the disk with Slurm's state any more" in log.read_text()
    lost_head.end_former(run, old)

    now = states(cluster)
    assert (now[job], now[held]) == ("RUNNING", "PENDING")
    (home(cluster) / f"go-{script}").touch()
    until(lambda: recorded(cluster, job) == [("FAILED", "3:0")], 240, "the job's end", 0.5)
    assert (home(cluster) / script).read_text().split() == ["began", "ended"], "it ran once"
    cluster.execute("scancel", held)
    cluster.cluster("up", check=True)


def test_ten_power_cuts_in_a_write_lose_nothing_that_was_saved(cluster: Checkout) -> None:
    def waits(job: str) -> bool:
        return recorded(cluster, job) == [("PENDING", "0:0")]

    saved: list[str] = []
    for _ in range(10):
        saved += [submit(cluster, "--hold", script="true") for _ in range(3)]
        until_saved(cluster)
        # The disk stops in the middle of what slurmctld and MariaDB are writing.
        submit(cluster, "--array=0-50", "--hold", script="true")
        old = lost_head.controller(run_of(cluster))
        lost_head.take_the_disk_away(old)
        end(old["process"]["pid"])
        cluster.cluster("up", check=True)
        now = states(cluster)
        assert {job: now.get(job) for job in saved} == dict.fromkeys(saved, "PENDING")
        # slurmctld sends again what the database may have lost, and not at once.
        until(functools.partial(waits, saved[-1]), 120, "the record", 0.5)


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
        output = cluster.cluster("up", check=True).stderr
        assert "/state is new: applied to the running cluster" in output
        assert len(volumes.attached(cluster.run_directory)) == 1
        assert (states(cluster)[job], states(cluster)[held]) == ("RUNNING", "PENDING")
        lost_head.lose(run_of(cluster))
        cluster.cluster("up", check=True)
        assert (states(cluster)[job], states(cluster)[held]) == ("RUNNING", "PENDING")
        known = cluster.execute("sacct", "-nPX", "--format=JobID").split()
        assert job in known, "accounting, which is on by default, has moved to the disk, too"
        (home(cluster) / "go-a").touch()
        until(lambda: states(cluster).get(job) == "COMPLETED", 240, "the job")
        # The way back would delete the disk.
        cluster.write_stack(before)
        refused = cluster.cluster("up")
        assert refused.returncode == 3
        assert "/state is removed: its contents are lost" in refused.stderr
