"""Backups of a real cluster, by hand and by schedule, and the way back into a new one of the same name."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.backup import archive
from operations.local import machine_access
from tests.support import shared_accounts
from tests.support.checkout import Checkout, until
from tests.support.kept_cluster import WAITS, home, recorded, run_of, states, submit, up
from tests.support.mishaps import Command

# The first test makes the machines' image where there is none.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.wide]

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{isolation: container}}
        controller: {{backup: {{bucket: {folder}, every_hours: 1, keep: 2}}}}
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{min: 1, max: 6}}, exclusive: true}}
        slurm: {{suspend_time: 600, accounting: true}}{sharing}
      slurm-stacks:benchmark: {{enabled: false}}
"""
TASK = """\
echo $SLURM_ARRAY_TASK_ID >>tasks
[ $SLURM_ARRAY_TASK_ID -lt 2 ] || until [ -e go-on ]; do sleep 0.2; done
"""
DONE = [("COMPLETED", "0:0")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scheduled backups."""
    made = tmp_path_factory.mktemp("backups")
    made.chmod(0o700)
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Checkout]:
    """One checkout, whose cluster is brought up and taken down by the tests, in their order."""
    with up(tmp_path_factory, STACK.format(folder=folder, sharing=shared_accounts.STACK)) as checkout:
        yield checkout


def host_keys(cluster: Checkout) -> object:
    return run_of(cluster).report("controller")["host_keys"]


def test_a_new_cluster_of_the_same_name_goes_on_where_the_backup_was_taken(
    cluster: Checkout, folder: Path, tmp_path: Path
) -> None:
    ended = [submit(cluster, script="true"), submit(cluster, script="exit 3")]
    lost = submit(cluster, "--no-requeue", script=WAITS.format(name="lost", status=0))
    again = submit(cluster, "-N2", script=WAITS.format(name="again", status=7))
    array = submit(cluster, "--array=0-3%1", script=TASK)
    for job, found in zip(ended, [DONE, [("FAILED", "3:0")]], strict=True):
        until(lambda job=job, found=found: recorded(cluster, job)[-1:] == found, 240, f"job {job}", 0.5)  # type: ignore[misc]
    running = [lost, again, f"{array}_2"]
    until(lambda: all(states(cluster).get(job) == "RUNNING" for job in running), 240, "the jobs", 0.5)
    cluster.execute("scontrol", "create", "partitionname=mine", "nodes=debug-5", "maxtime=60")
    cluster.execute("scontrol", "update", "partitionname=debug", "gracetime=7")
    held = submit(cluster, "--hold", "--partition=mine", "--comment=one of mine", script="true")
    after = submit(cluster, f"--dependency=afterany:{again}", script="true")
    at = ("starttime=now+2days", "duration=60", "user=root", "nodes=debug-5", "flags=ignore_jobs")
    cluster.execute("scontrol", "create", "reservation", "reservationname=mine", *at)
    # Jobs that wait to be released: one after its reservation, the other after its run.
    ends = ("starttime=now", "duration=60", "user=root", "nodes=debug-5", "flags=ignore_jobs")
    cluster.execute("scontrol", "create", "reservation", "reservationname=ends", *ends)
    deleted = submit(cluster, "--reservation=ends", "--begin=now+1hour", script="true")
    cluster.execute("scontrol", "update", "reservationname=ends", "endtime=now+1")
    special = submit(cluster, script="sleep 600")
    until(lambda: states(cluster).get(special) == "RUNNING", 240, "the job", 0.5)
    cluster.execute("scontrol", "requeuehold", "state=SpecialExit", special)
    flags = {deleted: "RESV_DEL_HOLD", special: "SPECIAL_EXIT"}
    until(lambda: flags.items() <= states(cluster).items(), 120, "their holds", 0.5)
    cluster.execute("sacctmgr", "--immediate", "add", "account", "physics")
    hers = shared_accounts.submit(cluster, "ada", "--account=research", "--qos=urgent")
    shared_accounts.holds(cluster)
    shared = shared_accounts.known(cluster)
    keys = host_keys(cluster)

    # By the timer, which looks a minute after the boot.
    until(lambda: list(folder.glob("*.backup.tar")), 240, "a scheduled backup", 0.5)
    assert cluster.status()["backup"]["bucket"] == str(folder)
    file = tmp_path / "mine.backup.tar"
    began = time.monotonic()
    told = json.loads(cluster.cluster("backup", str(file), "--json", check=True).stdout)
    print(f"{time.monotonic() - began:.1f} s for a backup of {told['backup']['size']} bytes")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert archive.read(file).as_json() == told["backup"]
    assert told["backup"]["jobs"] == 9
    assert [states(cluster)[job] for job in running] == 3 * ["RUNNING"], "they went on"
    assert "exists" in cluster.cluster("backup", str(file)).stderr

    # Old ones go.
    for _ in range(2):
        time.sleep(1.1)  # the names have the second
        answer = json.loads(cluster.cluster("backup", "--bucket", "--json", check=True).stdout)
    names = cluster.cluster("backup", "--list", check=True).stdout.split()
    assert len(names) == 2
    assert names[0] == answer["name"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    status = cluster.status()["backup"]
    assert (status["last"]["name"], status["failure"], status["late"]) == (names[0], None, False)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())

    cluster.cluster("down", "--yes", check=True)
    cluster.cluster("up", check=True)
    assert states(cluster) == {}
    # A node that is up has the name of one that had a job.
    until(lambda: cluster.status()["machines"]["running"] == 1, 120, "the static node")
    assert host_keys(cluster) != keys
    began = time.monotonic()
    told = json.loads(cluster.cluster("restore", "--bucket", "--json", check=True).stdout)
    print(f"{time.monotonic() - began:.1f} s for a restore")
    assert told["backup"]["sha256"] == answer["backup"]["sha256"]
    assert host_keys(cluster) == keys
    for job, found in zip(ended, [DONE, [("FAILED", "3:0")]], strict=True):
        assert recorded(cluster, job)[-1:] == found, "a node that did not boot adds a row before"
    assert any(line.startswith("physics|") for line in shared)
    assert shared_accounts.known(cluster) == shared
    asked = ("squeue", "--noheader", "--format=%u %a %q", f"--jobs={hers}")
    assert cluster.execute(*asked).split() == ["ada", "research", "urgent"]
    shared_accounts.holds(cluster)
    assert "ReservationName=mine" in cluster.execute("scontrol", "show", "reservation")
    assert "MaxTime=01:00:00" in cluster.execute("scontrol", "show", "partition", "mine")
    assert "GraceTime=7" in cluster.execute("scontrol", "show", "partition", "debug")
    now = states(cluster)
    assert (now[held], now[after]) == ("PENDING", "PENDING")
    assert flags.items() <= now.items()
    assert {int(job) for job in flags} <= {job["id"] for job in cluster.status()["jobs"]}
    assert "one of mine" in cluster.execute("squeue", "--noheader", "--format=%k", f"--jobs={held}")
    assert now.get(lost) in ("NODE_FAIL", None), "Slurm ends what may not run again"
    until(lambda: recorded(cluster, lost)[-1][0] == "NODE_FAIL", 120, "the record of the lost job", 0.5)
    bill = json.loads(cluster.cluster("cost", "--by", "job", "--json", check=True).stdout)
    assert {row["name"]: row["node_hours"] for row in bill["rows"]}[lost] > 0, "its machine is in the backup"
    assert any("of a restored backup" in note for note in bill["notes"])

    new = submit(cluster, script="true")
    assert int(new) > int(after)
    for name in ("again", "on"):
        (home(cluster) / f"go-{name}").touch()
    cluster.execute("scontrol", "release", f"{held},{deleted},{hers}")
    cluster.execute("scancel", special)
    cluster.execute("scontrol", "update", f"jobid={deleted}", "starttime=now")
    for job in (new, held, after, deleted, hers):
        until(lambda job=job: recorded(cluster, job)[-1:] == DONE, 240, f"job {job}", 0.5)  # type: ignore[misc]
    until(lambda: recorded(cluster, again)[-1] == ("FAILED", "7:0"), 240, "the job that ran", 0.5)
    until(
        lambda: [row for row in recorded(cluster, array) if row == DONE[0]] == 4 * DONE, 240, "the array", 0.5
    )
    assert sorted((home(cluster) / "tasks").read_text().split()) == ["2", "3"], "the first two had run"
    # A node may be on its way up or down just now; none is out of service.
    nodes = cluster.execute("sinfo", "--noheader", "--Node", "--format=%T").split()
    assert [state for state in nodes if state.startswith(("down", "drain", "fail", "unknown"))] == []


def test_a_cluster_that_has_had_jobs_is_refused_and_a_restore_that_dies_is_continued(
    cluster: Checkout, folder: Path
) -> None:
    file = str(max(folder.glob("*.backup.tar")))
    before = states(cluster)
    refused = cluster.cluster("restore", file, "--json")
    assert refused.returncode == 3
    assert json.loads(refused.stdout)["error"]["code"] == "restore.not-empty"
    assert states(cluster) == before, "nothing was changed"

    command = Command(cluster, "restore", file, "--replace")
    command.until_said("the controller boots with it")
    command.end(group=True)
    cluster.cluster("up", check=True)
    run = run_of(cluster)
    spool = Path(f"/proc/{machine_access.controller(run)}/root/var/spool/slurmctld")
    until(lambda: not (spool / ".restore").exists(), 120, "the end of the restore", 0.5)
    assert "one of mine" in cluster.execute("squeue", "--noheader", "--states=PENDING", "--format=%k")
