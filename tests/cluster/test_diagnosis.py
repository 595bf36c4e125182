"""What logs, status and doctor say of a real cluster: while it works, and with each of its daemons dead."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from node.design.published import read_settings
from node.slurm.hostlist import fold_numbers
from tests.support.checkout import ROOT, Checkout, until
from tests.support.mishaps import end, pids, until_saved

SCHEMA = json.loads((ROOT / "infra" / "schema" / "status.json").read_text())


def logs(checkout: Checkout, *arguments: str, status: int = 0) -> str:
    done = checkout.cluster("logs", *arguments)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def pid_of(checkout: Checkout, *words: str) -> int:
    """Return the cluster's process whose command line has these words in a row."""
    found = pids(checkout, "\0".join(words))
    assert len(found) == 1, f"{found}: {words}"
    return found[0]


def silent(checkout: Checkout) -> str:
    """Return the message of a `status` that fails. A hang would end at the command's own time limit."""
    done = checkout.cluster("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"`./cluster logs --stack {checkout.stack}` shows" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def about_the_cluster(checkout: Checkout) -> dict[str, str]:
    """Return the doctor's findings about the cluster itself: check -> severity."""
    answer = json.loads(checkout.cluster("doctor", "--json").stdout)
    return {f["check"]: f["severity"] for f in answer["findings"] if f["check"].startswith("cluster.")}


def test_logs_and_status_of_a_cluster_that_works(cluster: Checkout, tmp_path: Path) -> None:
    output = tmp_path / "the output.txt"
    batch = cluster.execute(
        "sbatch",
        "--parsable",
        "-N2",
        f"--output={output}",
        "--wrap",
        "srun sh -c 'echo out of $SLURMD_NODENAME'; exit 3",
    ).strip()
    waits = cluster.execute("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true").strip()
    until(lambda: output.exists() and "out of debug-1" in output.read_text(), 120, "the output")

    status = cluster.status()
    jsonschema.validate(status, SCHEMA)
    assert {job["id"]: job["cause"] for job in status["jobs"]}[int(waits)] == "JobHeldUser"
    shown = cluster.cluster("status", check=True).stdout
    assert "JobHeldUser: it is held: scontrol release lets it go" in shown
    assert about_the_cluster(cluster) == {"cluster.state": "fine"}

    asked = ("scontrol", "--oneliner", "show", "job", batch)
    until(lambda: "JobState=FAILED" in cluster.ask(*asked), 120, "the job's end")
    told = until(lambda: text if "exit code 3" in (text := logs(cluster, batch)) else "", 120, "its end")
    for words in (
        "failed on debug-[0-1]",
        f"JobId={batch}",
        f"output: {output}",
        "out of debug-0",
        "out of debug-1",
    ):
        assert words in told
    assert f"job {batch}" in told.split("==> elastic daemon, on this job")[1].splitlines()[1]
    told = logs(cluster, "debug-0")
    for words in ("debug-0 (compute): ready after", "slurmd started", "Node debug-0 now responding"):
        assert words in told
    assert "the elastic daemon serves" in logs(cluster), "those of the controller"
    # These are the commands that a cloud's login machine gets.
    assert "now responding" in cluster.execute("slurm-stacks", "logs", "debug-1")
    told = logs(cluster, "debug-99", status=1)
    assert "Nodes: debug-[0-9] (up so far: debug-[0-1])" in told
    assert f"Jobs: {fold_numbers([int(batch), int(waits)])}." in told
    cluster.execute("scancel", waits)


def test_what_was_put_out_of_service_is_said_and_why_a_job_could_not_start(cluster: Checkout) -> None:
    aside = ("debug-7", "debug-8", "debug-9")

    def off() -> bool:
        """Whether no job of an earlier test holds one of them: Slurm makes only idle nodes FUTURE."""
        nodes = cluster.status()["nodes"]
        return all("POWERED_DOWN" in node["state"] for node in nodes if node["name"] in aside)

    until(off, 180, "the nodes that are put aside are off")
    wants = ("sbatch", "--parsable", "--nodelist=debug-7", "--output=/dev/null", "--wrap", "true")
    place = ("ReservationName=fix", "StartTime=now", "Duration=60", "Flags=MAINT,IGNORE_JOBS", "Users=root")
    cluster.execute("scontrol", "create", *place, "Nodes=debug-7")
    try:
        for node, state in (("debug-8", "FAIL"), ("debug-9", "FUTURE")):
            cluster.execute("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=by hand")
        lost = cluster.execute("sbatch", "--parsable", "--output=/nowhere/x", "--wrap", "true").strip()
        waits = cluster.execute(*wants).strip()
        until(lambda: {job["id"]: job for job in cluster.status()["jobs"]}[int(waits)]["advice"], 120, "why")
        status = cluster.status()
        jsonschema.validate(status, SCHEMA)
        nodes = {node["name"]: node for node in status["nodes"]}
        going = {name for name, node in nodes.items() if "POWERING_DOWN" in node["state"]}
        assert {name for name, node in nodes.items() if not node["usable"]} - going == set(aside)
        assert nodes["debug-9"]["state"] == "MISSING"
        shown = cluster.cluster("status", check=True).stdout
        for line in (
            r"debug-7 +debug +in maintenance, off +– +fix, for maintenance until 2",
            r"debug-8 +debug +drained( \(fail\))? +– +by hand",
            r"debug-9 +debug +missing +– +Slurm does not list it",
            r"fix +debug-7 +maintenance +until 2",
        ):
            assert re.search(f"^{line}", shown, re.MULTILINE), (line, shown)
        assert "fix keeps its nodes for maintenance until 2" in " ".join(shown.split())
        assert about_the_cluster(cluster)["cluster.service"] == "warns"
        cluster.execute("scancel", waits)
    finally:
        cluster.execute("scontrol", "delete", "ReservationName=fix")
        cluster.execute("scontrol", "update", "NodeName=debug-8", "State=IDLE", check=False)
        cluster.execute("scontrol", "reconfigure")
    until(lambda: all(node["usable"] for node in cluster.status()["nodes"]), 120, "all are back")
    why = "Could not open stdout file /nowhere/x: No such file"
    told = until(lambda: text if why in (text := logs(cluster, lost)) else "", 120, "why")
    assert "Slurm 22.05 makes no folder" in told


def test_a_node_that_is_up_stays_out_of_service_while_slurm_takes_it_back_and_powers_it_down(
    cluster: Checkout,
) -> None:
    """Slurm takes a DOWN node back when its slurmd answers, and undrains each node that it powers down."""
    names = ("debug-0", "debug-1", "debug-2")
    line = ("sbatch", "--parsable", "--output=/dev/null")
    job, other = (
        cluster.execute(*line, f"--nodelist={nodes}", "--wrap", "sleep 600").strip()
        for nodes in ("debug-[0-1]", "debug-2")
    )

    def states() -> dict[str, set[str]]:
        return {node["name"]: set(node["state"].split("+")) for node in cluster.status()["nodes"]}

    def update(node: str, state: str) -> None:
        cluster.execute("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=bad fan")

    def drained_when_down() -> bool:
        if "DRAIN" in states()["debug-2"]:
            return True
        update("debug-2", "DOWN")  # Slurm may have taken it back before the daemon looked
        return False

    until(lambda: {job["state"] for job in cluster.status()["jobs"]} == {"RUNNING"}, 120, "the jobs' start")
    try:
        update("debug-0", "DRAIN")
        update("debug-1", "FAIL")
        cluster.execute("scancel", other)
        # The pass that has drained this node has seen the others.
        until(drained_when_down, 60, "the node that is down is drained")
        cluster.execute("scancel", job)
        until(lambda: all({"DRAIN", "POWERED_DOWN"} <= states()[node] for node in names), 120, "they are off")
        nodes = {node["name"]: node for node in cluster.status()["nodes"]}
        assert {node: (nodes[node]["usable"], nodes[node]["reason"]) for node in names} == dict.fromkeys(
            names, (False, "bad fan")
        )
    finally:
        cluster.execute("scontrol", "update", f"NodeName={','.join(names)}", "State=RESUME")
    until(lambda: all(node["usable"] for node in cluster.status()["nodes"]), 120, "all are back")


def test_a_job_may_ask_for_up_to_more_nodes_than_there_are_and_not_for_more(cluster: Checkout) -> None:
    assert "to start at" in cluster.execute("sh", "-ec", "sbatch --test-only -N1-99 --wrap true 2>&1")
    refused = cluster.execute("sh", "-c", "! sbatch --test-only -N99 --wrap true 2>&1")
    assert "Node count" in refused or "More processors" in refused


def test_a_suspended_jobs_time_stands_still(cluster: Checkout) -> None:
    line = ("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600")
    job = cluster.execute(*line).strip()

    def seen() -> dict[str, Any]:
        (found,) = (one for one in cluster.status()["jobs"] if one["id"] == int(job))
        return dict(found)

    until(lambda: seen()["state"] == "RUNNING", 120, "its start")
    cluster.execute("scontrol", "suspend", job)
    before = seen()
    assert before["state"] == "SUSPENDED"
    time.sleep(1.1)
    assert seen()["elapsed_seconds"] == before["elapsed_seconds"]
    cluster.execute("scancel", job)


def test_status_names_jobs_as_slurm_does(cluster: Checkout) -> None:
    line = ("sbatch", "--parsable", "--array=3-9%2", "--output=/dev/null", "--wrap", "sleep 600")

    def running() -> list[str]:
        return sorted(cluster.execute("squeue", "-h", "-tR", "-o", "%K").split())

    def begun() -> str:
        """Return an array whose first tasks run. On a busy machine Slurm may have queued them again."""
        number = cluster.execute(*line).strip()
        until(lambda: len(running()) == 2, 120, "two of its tasks")
        if running() == ["3", "4"]:
            return number
        cluster.execute("scancel", number)
        until(lambda: not cluster.execute("squeue", "-h"), 120, "its end")
        return ""

    array = until(begun, 300, "an array whose first tasks run")
    status = cluster.status()
    jsonschema.validate(status, SCHEMA)
    ours = [
        (job["slurm_id"], job["user"], job["partition"], job["state"], job["elapsed_seconds"] is None)
        for job in status["jobs"]
        if job["slurm_id"].startswith(f"{array}_")
    ]
    squeue = cluster.execute("squeue", "-h", "-o", "%i %u %P %T").splitlines()
    # squeue prints the limit of running tasks within the list of tasks; it is no part of the id.
    told = [
        (*line.replace("%2]", "]").split(), "PENDING" in line)
        for line in squeue
        if line.startswith(f"{array}_")
    ]
    assert sorted(ours) == sorted(told)
    assert {task for task, *_ in ours} == {f"{array}_3", f"{array}_4", f"{array}_[5-9]"}

    def runs_for() -> int:
        return max(job["elapsed_seconds"] or 0 for job in cluster.status()["jobs"])

    until(lambda: runs_for() > 0, 120, "its time goes on")
    shown = cluster.cluster("status", check=True).stdout
    assert re.search(rf"^{array}_3 +wrap +\S+ +debug +running +\d+:\d\d +debug-\d", shown, re.MULTILINE)
    cluster.execute("scancel", array)


def test_a_mistake_in_the_stack_file_hides_nothing_of_the_cluster_that_is_up(cluster: Checkout) -> None:
    file = cluster.folder / f"Pulumi.{cluster.stack}.yaml"
    text = file.read_text()
    file.write_text(re.sub(r"( *)provider: local", r"\1provider: local\n\1nmae: x", text))
    try:
        done = cluster.cluster("status", "--json", check=True)
        jsonschema.validate(json.loads(done.stdout), SCHEMA)
        assert [line for line in done.stderr.splitlines() if "nmae" in line] == [done.stderr.strip()]
        assert cluster.cluster("exec", "--", "echo", "in", check=True).stdout == "in\n"
        assert "Slurm on debug-0" in cluster.cluster("logs", "debug-0", check=True).stdout
        assert json.loads(cluster.cluster("outputs", check=True).stdout)["cluster"]["stack"] == cluster.stack
        assert cluster.cluster("plan").returncode == 2, "what is to be made must be said well"
    finally:
        file.write_text(text)


def test_files_go_both_ways_where_machines_are_processes(cluster: Checkout, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a file").write_text("content\n")
    cluster.cluster("cp", str(tmp_path / "data"), ":inputs", check=True)
    shared = Path(read_settings(cluster.run_directory / "code" / "settings.json").site.shared)
    assert (shared / "inputs" / "a file").read_text() == "content\n"
    cluster.cluster("cp", "login:inputs/a file", str(tmp_path / "back"), check=True)
    assert (tmp_path / "back").read_text() == "content\n"
    refused = cluster.cluster("ssh-config")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "has no SSH server: its machines are processes of this machine" in refused.stderr
    assert "local-machines" in refused.stderr


@pytest.mark.wide
def test_with_each_daemon_dead_there_is_an_answer(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout()
    assert "stack test is not up" in logs(checkout, status=1)
    checkout.cluster("up", check=True)
    job = checkout.execute("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600").strip()

    slurmctld = pid_of(checkout, "slurmctld", "-D")
    os.kill(slurmctld, signal.SIGSTOP)
    try:
        assert "slurmctld does not answer" in silent(checkout)
        told = logs(checkout, job)
        assert "Slurm does not answer" in told
        assert f"JobId={job}" in told
    finally:
        os.kill(slurmctld, signal.SIGCONT)

    elastic = pid_of(checkout, "elastic.daemon")
    os.kill(elastic, signal.SIGSTOP)
    try:
        assert about_the_cluster(checkout) == {"cluster.daemon": "warns"}
        assert "the elastic daemon serves" in logs(checkout)
    finally:
        os.kill(elastic, signal.SIGCONT)

    end(pid_of(checkout, "localcloud.agent"))
    told = checkout.cluster("status", check=True).stdout
    assert "The cloud does not answer" in told
    assert job in told, "what Slurm knows is there"
    assert about_the_cluster(checkout) == {"cluster.agent": "warns"}
    checkout.cluster("up", check=True)

    until_saved(checkout)
    os.kill(pid_of(checkout, "--role", "controller"), signal.SIGKILL)
    until(lambda: "does not run" in checkout.cluster("status").stderr, 120, "the controller's end")
    assert "`./cluster up --stack test` starts it again" in silent(checkout)
    assert about_the_cluster(checkout) == {"cluster.controller": "warns"}
    told = logs(checkout)
    assert "These are the last lines of its log files:" in told
    assert "controller (controller): ready after" in told
    assert f"JobId={job}" in logs(checkout, job)

    checkout.cluster("up", check=True)
    assert int(job) in [known["id"] for known in checkout.status()["jobs"]], "the queue has survived"


@pytest.mark.wide
def test_a_boot_that_fails_is_shown(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(
        """
        config:
          slurm-stacks:cluster:
            provider: local
            partitions:
              - {name: debug, instance_type: local.small, nodes: {max: 2}}
            hooks:
              - {role: controller, source: driver.sh}
        """
    )
    script = checkout.folder / "driver.sh"
    script.write_text("#!/bin/sh\necho no driver for this card; exit 3\n")
    script.chmod(0o755)
    up = checkout.cluster("up")
    assert up.returncode == 1
    assert "no driver for this card" in up.stderr
    assert "is half up" in silent(checkout) or "boot failed at step hooks" in silent(checkout)
    told = logs(checkout)
    assert "  hooks        failed" in told
    assert "no driver for this card" in told.split("==> hook")[1]
    assert about_the_cluster(checkout) == {"cluster.daemon": "warns"}
    script.write_text("#!/bin/sh\n")
    checkout.cluster("up", check=True)
    assert "  hooks        done" in logs(checkout)
