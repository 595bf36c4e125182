"""Accounting on the local stack: what `sacct` shows, killed daemons, and turning it on and off."""

from __future__ import annotations

import csv
import getpass
import json
import math
import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from node.design.published import read_settings
from node.design.sites import LocalSite
from node.system.processes import ProcessId
from operations.local import system_packages
from tests.cluster.test_nodes_by_name import listens
from tests.support.checkout import Checkout, running, until
from tests.support.mishaps import pids

pytestmark = pytest.mark.skipif(
    bool(system_packages.missing(system_packages.ACCOUNTING)),
    reason=f"packages are missing: {', '.join(system_packages.missing(system_packages.ACCOUNTING))}",
)
STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        partitions:
          - {name: debug, instance_type: local.small, nodes: {max: 3}, default: true}
          - name: gpu
            instance_type: local.medium
            accelerator: {type: v100, count: 1}
            nodes: {max: 1}
            local: {price_hour: 3600}
        local: {price_hour: 720}
        slurm: {suspend_time: 300, accounting: true}
      slurm-stacks:benchmark: {enabled: false}
"""
DAEMONS = {"mariadb": "/usr/sbin/mariadbd\0", "slurmdbd": "/usr/sbin/slurmdbd\0"}
FUNCTION = """
import pathlib, submitit, time

def area(width, height):
    return width * height, submitit.JobEnvironment().job_id

executor = submitit.AutoExecutor(folder={folder!r})
assert executor.cluster == "slurm"
executor.update_parameters(timeout_min=5, slurm_partition="debug")
job = executor.submit(area, 6, 7)
result, end = job.result(), time.monotonic() + 120
# slurmctld tells the records a moment later, and submitit remembers what it was told.
while (state := job.watcher.get_state(job.job_id, mode="force")) == "UNKNOWN" and time.monotonic() < end:
    time.sleep(0.5)
print(*result, job.job_id, state)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """One cluster for all tests of this file, which run in order. Its `down` leaves nothing."""
    with running(tmp_path_factory.mktemp("accounting") / "a checkout", STACK) as checkout:
        yield checkout


def submit(checkout: Checkout, *options: str) -> str:
    return checkout.ask("sbatch", "--parsable", "--output=/dev/null", *options).strip()


def records(checkout: Checkout, job: str, columns: str, *options: str) -> list[list[str]]:
    """Return a job's rows in the database, each as a list of columns."""
    text = checkout.ask("sacct", "-nP", "-j", job, f"--format={columns}", *options)
    return [line.split("|") for line in text.splitlines()]


def until_state(checkout: Checkout, job: str, state: str) -> None:
    until(lambda: records(checkout, job, "State", "-X") == [[state]], 120, f"{state} of job {job}")


def _ended(process: ProcessId) -> bool:
    return not process.alive()


def daemon(checkout: Checkout, name: str) -> int:
    found: int = until(lambda: pids(checkout, DAEMONS[name]), 60, name)[0]
    return found


def test_the_database_daemon_is_reached_from_this_host_only(cluster: Checkout) -> None:
    site = read_settings(cluster.run_directory / "code" / "settings.json").site
    if not (isinstance(site.cloud, LocalSite) and site.cloud.loopback_only):
        pytest.skip("no namespaces here")
    assert listens(site.slurmdbd_port) == {"127.0.0.1"}
    # It calls slurmctld back, which listens there, too.
    shown = cluster.ask("sacctmgr", "-nP", "show", "cluster", "format=controlhost,controlport")
    assert shown == f"127.0.0.1|{site.slurmctld_port}\n"


def bill(cluster: Checkout, by: str, *options: str) -> dict[str, Any]:
    bill: dict[str, Any] = json.loads(
        cluster.cluster("cost", f"--by={by}", "--json", *options, check=True).stdout
    )
    return bill


def test_a_bill_of_a_day_adds_up_to_what_status_shows(cluster: Checkout, tmp_path: Path) -> None:
    """Two accounts, two kinds of node, a boot that fails, and a node that two jobs share."""
    for account in ("physics", "chemistry"):
        cluster.ask("sacctmgr", "-i", "add", "account", account)
        cluster.ask("sacctmgr", "-i", "add", "user", getpass.getuser(), f"account={account}")
    cluster.chaos("set", "never_register=1")
    gpu = submit(cluster, "-Aphysics", "--partition=gpu", "--gres=gpu:1", "--wrap", "sleep 2")
    until(lambda: cluster.status()["machines"]["running"], 120, "the machine that never registers")
    cluster.chaos("clear")
    cluster.chaos("kill", "gpu-0")
    until_state(cluster, gpu, "COMPLETED")
    gate = tmp_path / "gate"
    gate.mkdir()
    together = (
        f"touch '{gate}'/$SLURM_JOB_ID; until [ $(ls '{gate}' | wc -l) = 2 ]; do sleep 0.1; done; sleep 2"
    )
    shared = [
        submit(cluster, f"-A{account}", "-pgpu", "-n1", "--mem=100", "--wrap", together)
        for account in ("physics", "chemistry")
    ]
    debug = submit(cluster, "-Aphysics", "--wrap", "sleep 1")
    for job in (*shared, debug):
        until_state(cluster, job, "COMPLETED")
    before = cluster.status()["cost"]
    found = {by: bill(cluster, by) for by in ("account", "user", "partition", "job")}
    after = cluster.status()["cost"]
    for made in found.values():
        total, rows = made["total"], made["rows"]
        assert before["usd"] * 0.995 <= total["usd"] <= after["usd"] * 1.005
        assert before["node_hours"] * 0.995 <= total["node_hours"] <= after["node_hours"] * 1.005
        assert sum(row["usd"] for row in rows) == pytest.approx(total["usd"], abs=1e-4)
        assert {row["kind"] for row in rows} == {"jobs", "idle", "failed boots"}, "and all is recorded"
    usd = {by: {(r["kind"], r["name"]): r["usd"] for r in made["rows"]} for by, made in found.items()}
    one, other = (usd["job"]["jobs", job] for job in shared)
    # A dollar a second, of which each has half.
    seconds = [int(records(cluster, job, "ElapsedRaw", "-X")[0][0]) for job in shared]
    assert [one, other] == pytest.approx([elapsed / 2 for elapsed in seconds])
    alone = sum(usd["job"]["jobs", job] for job in (gpu, debug))
    assert usd["account"]["jobs", "physics"] == pytest.approx(one + alone, abs=1e-4)
    assert usd["account"]["jobs", "chemistry"] == pytest.approx(other, abs=1e-4)
    assert set(usd["user"]) >= {("jobs", getpass.getuser()), ("idle", ""), ("failed boots", "")}
    assert set(usd["partition"]) >= {("failed boots", "gpu"), ("jobs", "gpu"), ("jobs", "debug")}
    assert ("failed boots", "debug") not in usd["partition"]

    text = cluster.cluster("cost", "--by", "account", "--since", "1h", "--csv", check=True).stdout
    table = list(csv.DictReader(text.splitlines()))
    assert sum(float(row["usd"]) for row in table) >= after["usd"] * 0.995
    shown = cluster.cluster("cost", "--by=account", check=True).stdout
    assert "boots that failed" in shown
    assert "Sum: " in shown
    assert bill(cluster, "user", "--until", "2020-01-01")["rows"] == []


def test_sacct_shows_what_ran_and_where(cluster: Checkout) -> None:
    one = submit(cluster, "--wrap", "true")
    bad = submit(cluster, "--wrap", "exit 3")
    many = submit(cluster, "--array=1-3", "--wrap", "true")
    gpu = submit(cluster, "--partition=gpu", "--gres=gpu:1", "--wrap", "true")
    for job, state in ((one, "COMPLETED"), (bad, "FAILED"), (gpu, "COMPLETED")):
        until_state(cluster, job, state)
    until(
        lambda: (
            sorted(records(cluster, many, "JobID,State", "-X"))
            == [[f"{many}_{task}", "COMPLETED"] for task in (1, 2, 3)]
        ),
        120,
        "the array",
    )
    shown = cluster.execute(
        "sacct", "-j", f"{one},{bad}", "-X", "-nP", "--format=JobID,State,ExitCode,NodeList"
    )
    first, second = sorted(line.split("|") for line in shown.splitlines())
    assert first[:3] == [one, "COMPLETED", "0:0"]
    assert second[:3] == [bad, "FAILED", "3:0"]
    assert {first[3], second[3]} <= {"debug-0", "debug-1", "debug-2"}
    assert [row[0] for row in records(cluster, one, "JobID,Elapsed")] == [one, f"{one}.batch"]
    (tres,) = records(cluster, gpu, "AllocTRES", "-X")
    assert "gres/gpu=1" in tres[0].split(",")


def refused(checkout: Checkout, *options: str) -> str:
    done = checkout.cluster("exec", "--", "sbatch", "--output=/dev/null", *options, "--wrap", "true")
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_what_an_administrator_limits_is_limited(cluster: Checkout) -> None:
    """The owner of process machines has an account without typing anything, and so do limits."""
    shown = cluster.ask("scontrol", "show", "config")
    assert re.search(r"^AccountingStorageEnforce *= associations,limits,qos$", shown, re.MULTILINE)
    assert "Invalid account" in refused(cluster, "--account=nosuch")
    assert "Invalid qos" in refused(cluster, "--qos=nosuch")
    name = pwd.getpwuid(os.getuid()).pw_name

    def limit(*limits: str) -> None:
        cluster.ask("sacctmgr", "--immediate", "modify", "user", name, "set", *limits)

    try:
        limit("maxjobs=1", "maxsubmitjobs=2")
        jobs = [submit(cluster, "--wrap", "sleep 60") for _ in range(2)]
        assert "Job violates accounting/QOS policy" in refused(cluster)
        until(lambda: reason(cluster, jobs[1]) == "AssocMaxJobsLimit", 60, "the limit")
        shown = cluster.cluster("status", check=True).stdout
        assert "AssocMaxJobsLimit: a limit of Slurm's accounting" in shown
        cluster.ask("scancel", *jobs)
        limit("maxjobs=-1", "maxsubmitjobs=-1", "maxtres=gres/gpu:v100=0")
        typed = submit(cluster, "--partition=gpu", "--gres=gpu:v100:1", "--wrap", "true")
        until(lambda: reason(cluster, typed) == "AssocMaxGRESPerJob", 60, "the limit")
        limit("maxtres=gres/gpu:v100=-1")
        until_state(cluster, typed, "COMPLETED")
    finally:
        limit("maxjobs=-1", "maxsubmitjobs=-1", "maxtres=gres/gpu:v100=-1")


def reason(checkout: Checkout, job: str) -> str:
    return checkout.ask("squeue", "--noheader", f"--jobs={job}", "--format=%r").strip()


def test_a_requeued_job_has_a_record_of_each_run(cluster: Checkout) -> None:
    job = submit(cluster, "--wrap", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
    until_state(cluster, job, "RUNNING")
    cluster.ask("scontrol", "requeue", job)
    until(lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%T").split() == ["PENDING"], 120, "the queue")

    asked = -math.inf
    seen: list[str] = []

    def started() -> bool:
        nonlocal asked
        text = cluster.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r").strip()
        if seen[-1:] != [text]:
            seen.append(text)
        # Slurm delays a requeued job, and may report the delay only after the job is in the queue again.
        if text == "PENDING BeginTime" and time.monotonic() - asked > 30:
            asked = time.monotonic()
            cluster.ask("scontrol", "update", f"jobid={job}", "starttime=now")
        return text.partition(" ")[0] in ("RUNNING", "COMPLETING", "COMPLETED")

    try:
        until(started, 240, "the second run")
    finally:
        print(seen)
    until_state(cluster, job, "COMPLETED")
    assert records(cluster, job, "State", "-X", "-D") == [["REQUEUED"], ["COMPLETED"]]


def test_an_unchanged_submitit_job_runs(cluster: Checkout, tmp_path: Path) -> None:
    """submitit asks only sacct for a job's state, and would wait forever without records."""
    script = tmp_path / "job.py"
    script.write_text(FUNCTION.format(folder=str(tmp_path / "jobs")))
    area, inside, job, state = cluster.execute(sys.executable, str(script)).split()
    assert (area, inside) == ("42", job)
    # The state comes from the records; without any it is UNKNOWN.
    assert state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED")
    until_state(cluster, job, "COMPLETED")


# By default test_elastic_life.py has the second `up` of a cluster with the other daemons.
@pytest.mark.wide
def test_a_second_up_changes_nothing(cluster: Checkout) -> None:
    before = {name: daemon(cluster, name) for name in DAEMONS}
    assert "nothing to do" in cluster.cluster("up", check=True).stderr
    assert {name: daemon(cluster, name) for name in DAEMONS} == before


@pytest.mark.parametrize(
    "killed", [pytest.param(["mariadb"], marks=pytest.mark.wide), ["mariadb", "slurmdbd"]], ids="+".join
)
def test_killed_daemons_come_back_with_all_records(cluster: Checkout, killed: list[str]) -> None:
    known = cluster.ask("sacct", "-nPX", "--format=JobID").split()
    dead = [ProcessId.of(daemon(cluster, name)) for name in killed]
    for process in dead:
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    job = submit(cluster, "--wrap", "true")
    for process, name in zip(dead, killed, strict=True):
        assert process is not None
        until(partial(_ended, process), 60, f"the end of {name}")
        assert daemon(cluster, name) != process.pid

    def told() -> bool:
        # sacct fails until slurmdbd is back.
        told = cluster.execute("sacct", "-nPX", "--format=JobID,State", check=False)
        return f"{job}|COMPLETED" in told.split()

    until(told, 120, "the job's record")
    assert set(known) <= set(cluster.ask("sacct", "-nPX", "--format=JobID").split())


@pytest.mark.wide
def test_accounting_is_turned_off_and_on_while_jobs_run_and_wait(cluster: Checkout) -> None:
    hold = cluster.folder.parent / "hold"
    hold.touch()
    order = cluster.folder.parent / "order"
    busy = submit(
        cluster, "--partition=gpu", "--exclusive", "--wrap", f"while [ -e '{hold}' ]; do sleep 0.1; done"
    )
    until(lambda: "R" in cluster.ask("squeue", "-h", "-j", busy, "-o", "%t").split(), 120, "the job")
    known = cluster.ask("sacct", "-nPX", "--format=JobID").split()

    def wait_behind(word: str) -> None:
        submit(cluster, "--partition=gpu", "--exclusive", "--wrap", f"echo {word} >>'{order}'")

    wait_behind("first")
    cluster.write_stack(STACK.replace("accounting: true", "accounting: false"))
    assert "jobs go on" in cluster.cluster("up", check=True).stderr
    assert [pids(cluster, text) for text in DAEMONS.values()] == [[], []]
    log = (cluster.run_directory / "log" / "mariadb.log").read_text()
    assert log.rstrip().endswith("Shutdown complete"), "its files are whole"
    assert "disabled" in cluster.cluster("exec", "--", "sacct").stderr
    wait_behind("second")

    cluster.write_stack(STACK)
    cluster.cluster("up", check=True)
    assert set(known) <= set(cluster.ask("sacct", "-nPX", "--format=JobID").split()), "the history stays"
    wait_behind("third")
    assert cluster.ask("squeue", "-h", "-j", busy, "-o", "%t %r").split() == ["R", "None"]
    hold.unlink()
    until_state(cluster, busy, "COMPLETED")
    until(lambda: order.exists() and len(order.read_text().split()) == 3, 120, "those that waited")
    assert order.read_text().split() == ["first", "second", "third"]
