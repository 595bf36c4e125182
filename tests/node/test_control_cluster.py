"""Tests of `Control` with a real slurmctld."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.changes.decision import ClusterControl
from cli.changes.jobs import cancel_line, parse, wait_line
from cli.changes.jobs import number as job_number
from node.design.model import SlurmSettings
from node.elastic.ledger import Ledger
from node.elastic.pending_jobs import unstarted
from node.elastic.requeue import Requeue
from node.elastic.status import status
from node.logs import show
from node.logs.find import Cluster
from node.slurm.control import ALL_JOBS, Control, SlurmDown, SlurmError
from tests.node.slurm_cluster import SlurmCluster, design, needs_slurm, partition
from tests.support.checkout import ROOT
from tests.support.doubles import FakeDriver
from tests.support.hostile import BESIDE, BOMB, FORGED, FORGED_LINES, FORMS, HOSTILE, forged_records, options
from tests.support.wide import wide

pytestmark = [pytest.mark.cluster, needs_slurm]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    slurm = SlurmSettings(suspend_time=600, suspend_timeout=2, resume_timeout=300, slurmd_timeout=60)
    with SlurmCluster(design(partition(nodes=6), partition("gpu", nodes=2, gpus=2), slurm=slurm)) as running:
        yield running


def unfinished(control: Control) -> set[int]:
    return {number for number, job in control.jobs().items() if not job.is_over}


def _submit(cluster: SlurmCluster, *arguments: str) -> int:
    return int(cluster.run("sbatch", "--parsable", *arguments).stdout)


@pytest.fixture(scope="module")
def deleted(cluster: SlurmCluster) -> list[int]:
    """A job, an array and a heterogeneous job whose reservation ends: Slurm sees it in half a minute."""
    at = ("starttime=now", "duration=60", "user=root", "nodes=debug-5", "flags=ignore_jobs")
    cluster.run("scontrol", "create", "reservation", "reservationname=ends", *at)
    in_it, script = ("--reservation=ends", "--begin=now+1hour"), ("--wrap", "sleep 600")
    parts = (*in_it, "-n1", ":", *in_it, "-n1")
    jobs = [_submit(cluster, *options, *script) for options in (in_it, (*in_it, "--array=0-2%2"), parts)]
    cluster.run("scontrol", "update", "reservationname=ends", "endtime=now+1")
    return jobs


@pytest.mark.usefixtures("deleted")
def test_a_node_from_off_to_busy_and_back(cluster: SlurmCluster) -> None:
    control, node = cluster.control, "debug-0"
    assert control.nodes()[node].is_powered_down
    # The name and the comment have text that looks like other fields.
    options = ["--hold", "-w", node, "-J", "a JobState=FAILED b", "--comment", "x|y"]
    job = _submit(cluster, *options, "--wrap", "sleep 600")
    assert control.jobs()[job].is_pending
    assert job not in control.working_jobs()
    control.release(job)
    cluster.wait("the job has the node", lambda: control.nodes()[node].has_job)
    assert job in control.working_jobs(), "its prolog may wait for the node"
    if (coming := control.named_nodes([node]))[node].is_powering_up:
        assert control.named_nodes([node]) is coming or control.nodes()[node].is_up, (
            "sinfo has the same words"
        )
    cluster.wait("the node is up", lambda: control.named_nodes([node])[node].is_up)
    assert control.named_nodes([node, "debug-1"]).keys() == {node, "debug-1"}
    assert control.named_nodes([node, "other-1"]).keys() == control.nodes().keys()
    seen = control.jobs()[job]
    assert (seen.name, seen.comment, seen.nodes, seen.batch_host) == (
        "a JobState=FAILED b",
        "x|y",
        (node,),
        node,
    )
    assert seen.is_active
    assert seen.submit_time is not None
    started = control.nodes()[node].slurmd_start_time
    assert started is not None
    assert abs(started - seen.submit_time) < 600, "times are seconds since 1970 on both"

    control.update_job(job, admin_comment="quota: 0 of 1 nodes\ncame up")
    assert control.jobs()[job].admin_comment == "quota: 0 of 1 nodes came up"

    control.power_down_force([node], "spot: [reclaimed] State=IDLE")
    cluster.wait("the job waits again", lambda: control.jobs()[job].restarts == 1)
    # The job is held, so that it does not start after its delay of half a minute.
    control.update_job(job, hold=True)
    cluster.wait("the node is off", lambda: control.nodes()[node].is_powered_down)
    off = control.nodes()[node]
    assert (off.reason, off.is_down, off.has_job) == ("spot: [reclaimed] State=IDLE", False, False)
    # Slurm 22.05 and 26.05 remove the reason of an idle node with any other update.
    control.avoid([node, "debug-2"])
    assert (control.nodes()[node].reason, control.nodes()["debug-2"].reason) == (off.reason, None)
    assert control.run("scontrol", "show", "node", f"{node},debug-2").count(" Weight=1000 ") == 2
    paused = control.jobs()[job].eligible_time
    control.update_job(job, start_now=True)
    control.release(job)
    now = control.jobs()[job].eligible_time
    assert paused is not None
    assert now is None or now < paused or time.time() >= paused, "it may start at once"
    cluster.wait("it starts", lambda: control.nodes()[node].has_job)
    control.cancel([job, job])
    cluster.wait("it is over", lambda: control.jobs()[job].is_over)
    assert job not in control.working_jobs()
    assert control.jobs()[job].is_over
    with pytest.raises(SlurmError, match="already finished"):
        control.update_job(job, admin_comment="too late")


def test_partitions_close_and_open_again(cluster: SlurmCluster) -> None:
    control = cluster.control
    assert control.open_partitions() == ["debug", "gpu"]
    control.close_partition("debug")
    assert control.open_partitions() == ["gpu"]
    job = _submit(cluster, "--hold", "--wrap", "true")
    assert control.jobs()[job].is_pending, "jobs are still accepted"
    control.cancel([job])
    control.open_partition("debug")
    assert control.open_partitions() == ["debug", "gpu"]


def test_a_job_that_takes_fewer_nodes_than_it_wants_waits_for_the_least(cluster: SlurmCluster) -> None:
    job = _submit(cluster, "--hold", "-N2-4", "--wrap", "true")
    assert cluster.control.jobs()[job].wanted_nodes == 2
    cluster.control.cancel([job])


def test_down_drain_and_resume_of_many(cluster: SlurmCluster) -> None:
    control = cluster.control
    names = ["debug-1", "debug-3", "debug-4"]
    control.update_node(names, state="DOWN", reason="quota: ask for more")
    nodes = control.nodes()
    assert [name for name, node in nodes.items() if node.is_down] == names
    assert {nodes[name].reason for name in names} == {"quota: ask for more"}
    control.update_node(names, state="RESUME")
    assert not any(node.is_down for node in control.nodes().values())
    control.update_node(["debug-5"], state="DRAIN", reason="look at it")
    assert control.nodes()["debug-5"].is_drained
    control.undrain({"debug-5": control.nodes()["debug-5"]})
    after = control.nodes()["debug-5"]
    assert not after.is_drained
    assert "NOT_RESPONDING" not in after.flags, "slurmctld would forget it at its next start"


def test_saves_write_everything_down_and_change_nothing(cluster: SlurmCluster) -> None:
    control, files = cluster.control, ("job_state", "node_state")

    def wait_for(names: tuple[str, ...], since: float) -> None:
        state = Path(cluster.folders.state)
        cluster.wait("a save", lambda: all((state / n).stat().st_mtime > since for n in names), 60)

    job = _submit(cluster, "-w", "debug-2", "--no-requeue", "--wrap", "sleep 600")
    cluster.wait("the job runs", lambda: control.nodes()["debug-2"].is_up, 60)
    # After these calls slurmctld has saved everything.
    for change in (
        lambda: control.update_node(["debug-5"], state="DRAIN", reason="look at it"),
        lambda: control.update_job(job, admin_comment="a note"),
    ):
        before = time.time()
        change()  # type: ignore[no-untyped-call]
        wait_for(("node_state",), before)
    nodes, jobs = control.nodes(), control.jobs()
    for node in ("debug-2", "debug-5"):
        before = time.time()
        control.save_nodes(nodes[node])
        wait_for(("node_state",), before)
    before = time.time()
    control.save_all(jobs[job])
    wait_for(files, before)
    for node in ("debug-2", "debug-5"):
        after = control.nodes()[node]
        assert (after.base, after.flags) == (nodes[node].base, nodes[node].flags)
        assert (after.reason, after.reason_time) == (nodes[node].reason, nodes[node].reason_time)
    seen = control.jobs()[job]
    assert (seen.requeue, seen.restarts, seen.admin_comment) == (False, 0, "a note")
    control.undrain({"debug-5": nodes["debug-5"]})
    control.cancel([job])
    cluster.wait("it is over", lambda: control.jobs()[job].is_over, 60)
    with pytest.raises(SlurmError):
        control.save_all(jobs[job])


def test_a_refusal_for_one_node_does_not_stop_the_others(cluster: SlurmCluster) -> None:
    control = cluster.control
    control.update_node(["debug-4"], state="DOWN", reason="x")
    with pytest.raises(SlurmError, match="Invalid node state"):
        control.update_node(["debug-3", "debug-4"], state="RESUME")
    assert not control.nodes()["debug-4"].is_down


def test_what_slurm_refuses(cluster: SlurmCluster) -> None:
    control = cluster.control
    with pytest.raises(SlurmError, match="Invalid node name"):
        control.update_node(["nobody-1"], state="DOWN", reason="x")
    with pytest.raises(SlurmError, match="Invalid job id"):
        control.update_job(999, start_now=True)
    control.cancel([999])


def test_arrays(cluster: SlurmCluster) -> None:
    control = cluster.control
    job = _submit(cluster, "--hold", "--array=1-50%2", "--wrap", "true")
    seen = control.jobs()[job]
    assert (seen.array_job, seen.array_task, seen.reason) == (job, "1-50", "JobHeldUser")
    control.cancel([job])


def test_no_text_of_a_users_is_a_job_a_field_or_a_path(
    cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm takes any byte but NUL in a name or a comment. Nothing here begins to run."""
    control = cluster.control
    victim = _submit(cluster, "--hold", "-J", "victim", "-o", f"{cluster.root}/mine", "--wrap", "true")
    texts = [*(text.replace("1", str(victim), 1) for text in FORGED), "bytes \udcff\udcfe"]
    forged = [
        _submit(cluster, "--hold", f"-J{text}", f"--comment={text}", "--wrap", "true") for text in texts
    ]
    array = _submit(cluster, "--hold", "--array=1-99:2%2", "-J", FORGED[0], "--wrap", "true")
    mine = [victim, *forged, array]
    found = {number: job for number, job in control.jobs().items() if number >= victim}
    assert sorted(found) == mine
    for number, text in zip(forged, texts, strict=True):
        read = text.encode(errors="surrogateescape").decode(errors="replace")
        assert (found[number].name, found[number].comment) == (read, read)

    def run(line: str, seconds: float) -> str:
        done = subprocess.run(
            ["bash", "-c", line], env={**HOSTILE, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
            errors="replace", timeout=seconds, check=True,
        )  # fmt: skip
        return done.stdout

    cluster_control = ClusterControl(run, str(cluster.conf))
    listed = [job for job in cluster_control.jobs() if int(re.split("[_+]", job.id)[0]) >= victim]
    assert [int(job.id.partition("_")[0]) for job in listed] == mine
    assert [job.name for job in listed[:2]] == [
        "victim",
        FORGED[0].replace("\n", "\\n").replace("1", str(victim), 1),
    ]
    assert {(job.partition, job.state, job.nodes) for job in listed} == {("debug", "PENDING", "")}
    assert listed[-1].id.endswith("%2]")

    # The forged StdOut= is not followed. The job's own path is, and is not shown if it leads elsewhere.
    (cluster.root / "mine").symlink_to("/etc/passwd")
    for number in (victim, forged[1]):
        show.run(Cluster(cluster.settings), str(number), lines=9, follow=False)
    output = capsys.readouterr().out
    assert "output: /etc/passwd" not in output
    assert "\x1b" not in output
    if os.getuid():
        assert "root:x:0" not in output

    cluster_control.ask(f"{cancel_line(listed[1:])}; {wait_line(9, listed)}", 60)
    left = {number: job.state for number, job in control.jobs().items() if number in mine}
    assert left.pop(victim) == "PENDING"
    assert set(left.values()) <= {"CANCELLED"}
    control.cancel([victim])


def _values(name: str, victim: int) -> Iterator[str]:
    """Yield hostile values of an option of sbatch, or a key of scontrol."""
    for text in (*forged_records(victim), BOMB):
        yield FORMS.get(name, "{}").format(text)


def _sbatch(name: str, value: str) -> list[str]:
    return [
        "sbatch",
        "--hold",
        "--partition=gpu",
        "--output=/dev/null",
        f"--{name}={value}",
        "--wrap",
        "true",
    ]


def _attached(program: str, name: str, value: str) -> list[str]:
    """A command that waits for its nodes if it is not refused, and is ended by then."""
    end = ["timeout", "1", program, "--hold", "--partition=gpu"]
    return [*end, f"--{name}={value}", "true"]


def _truth(cluster: SlurmCluster) -> set[int]:
    """The jobs that there are, by numbers alone."""
    return set(map(int, cluster.control.run("squeue", "--noheader", *ALL_JOBS, "--format=%A").split()))


def _readings(cluster: SlurmCluster, tmp_path: Path, since: int) -> dict[str, Any]:
    """What each reader of jobs says, apart from what changes by itself.

    Args:
        since: The first job of the test.
    """
    control = cluster.control

    def run(line: str, seconds: float) -> str:
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, errors="replace", check=True
        )
        return done.stdout

    jobs = control.jobs()
    plan = cluster.settings.design
    shown = status(plan, control, FakeDriver(), Ledger(tmp_path / "ledger.json", plan))
    listed = ClusterControl(run, str(cluster.conf)).jobs()
    return {
        "jobs": set(jobs),
        "detailed jobs": set(control.detailed_jobs()),
        "dependencies": set(control.dependencies()),
        "outputs": set(control.outputs(jobs)),
        "unfinished": unfinished(control) == {job["id"] for job in shown["jobs"]},
        # What other tests have left may be arrays, whose tasks the listing has as one.
        "listed": {job_number(job) for job in listed if job_number(job) >= since}
        == {job for job in unfinished(control) if job >= since},
        "users": {job.user for job in jobs.values()} | {job.user for job in listed},
        "tried again": [job.id for job in unstarted(jobs.values(), {})],
        "with nodes": [job.id for job in jobs.values() if job.nodes and job.id >= since],
        "evacuated": Requeue(control).requeueable_jobs(["debug-1"]),
        "states": {job.state for job in jobs.values() if job.id >= since}
        - {"PENDING", "FAILED", "CANCELLED"},
    }


def _bounded(cluster: SlurmCluster) -> None:
    """Run all readings in a process that has little memory."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2)\n"
        "from node.slurm.control import Control\n"
        f"control = Control({str(cluster.conf)!r})\n"
        "control.detailed_jobs(), control.jobs(), control.working_jobs(), control.dependencies()\n"
        "control.outputs(n for n, job in control.jobs().items() if not job.is_over)\n"
        "control.detailed_nodes(), control.reservations()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def _expected(jobs: set[int], user: str) -> dict[str, Any]:
    """What `_readings` are when nothing runs, and these are the jobs."""
    return {
        **dict.fromkeys(("jobs", "detailed jobs", "dependencies", "outputs"), jobs),
        **{key: [] for key in ("tried again", "with nodes", "evacuated")},
        **dict.fromkeys(("unfinished", "listed"), True),
        "users": {user},
        "states": set(),
    }


@pytest.fixture
def victim(cluster: SlurmCluster) -> Iterator[int]:
    """A job that an administrator holds, and which must be the same afterwards."""
    control = cluster.control
    job = _submit(cluster, "--hold", "-p", "debug", "-J", "victim", "-o", "/dev/null", "--wrap", "true")
    control.update_job(job, hold=True)
    before = control.detailed_jobs()[job]
    yield job
    assert control.detailed_jobs()[job] == before
    control.cancel(number for number in _truth(cluster) if number >= job)


def _run_all(cluster: SlurmCluster, commands: Iterable[list[str]]) -> list[subprocess.CompletedProcess[str]]:
    """Run commands, of which Slurm may refuse some. None is killed."""
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda argv: cluster.run(*argv, check=False), commands))
    assert all(ended.returncode >= 0 for ended in done)
    return done


@pytest.mark.parametrize("program", ["sbatch", *wide("srun", "salloc")])
def test_no_option_forges_a_record(cluster: SlurmCluster, tmp_path: Path, victim: int, program: str) -> None:
    """Every option with a value, of every release, with texts that forge records: nothing here begins to run.

    Slurm keeps also a job that it refuses, for five minutes.
    """
    command = _sbatch if program == "sbatch" else partial(_attached, program)
    names = [name for name in options(program) if name not in BESIDE]
    _run_all(cluster, [command(name, value) for name in names for value in _values(name, victim)])
    truth = _truth(cluster)
    assert len(truth) > 20, "Slurm takes a text in many options"
    kept = cluster.control.run("squeue", "--noheader", *ALL_JOBS, "--Format", "name:x,tres-per-node:x")
    assert kept.count("launch failed requeued held") >= 2, "it keeps it in generic resources, too"
    assert _readings(cluster, tmp_path, victim) == _expected(truth, cluster.site.user)
    _bounded(cluster)


def test_no_key_of_scontrol_forges_a_record(cluster: SlurmCluster, tmp_path: Path, victim: int) -> None:
    job = _submit(cluster, "--hold", "-p", "gpu", "-o", "/dev/null", "--wrap", "true")
    keys = [key for key in options("scontrol") if key not in ("JobId", "StepId")]
    update = ["scontrol", "update", f"JobId={job}"]
    done = _run_all(cluster, [[*update, f"{key}={v}"] for key in keys for v in _values(key, victim)])
    assert sum(not ended.returncode for ended in done) > 4, "it takes texts"
    assert _readings(cluster, tmp_path, victim) == _expected(_truth(cluster), cluster.site.user)
    _bounded(cluster)


@pytest.mark.wide
def test_long_texts_of_large_arrays_fill_no_memory(cluster: SlurmCluster, victim: int) -> None:
    """squeue repeats the texts of an array for each of its tasks: here 60 MB."""
    text = "\U0001f600" + "y" * 1000
    array = ["--hold", "--partition=gpu", "--output=/dev/null", "--array=0-9999", "--wrap", "true"]
    for options_ in ([f"-J{text}"], [f"--comment={text}"], [f"-J{text}", f"--comment={text}"]):
        _submit(cluster, *options_, *array)
    _bounded(cluster)
    tasks = [job for job in cluster.control.jobs().values() if job.array_task == "0-9999"]
    assert len(tasks) == 3
    assert {len(job.name) for job in tasks} == {len("wrap"), len(text)}


@pytest.mark.parametrize("what", ["NodeName=debug-5", *wide("PartitionName=gpu", "ReservationName=kept")])
def test_a_text_of_an_administrators_refuses_a_reading_or_changes_nothing(
    cluster: SlurmCluster, what: str
) -> None:
    """Only Slurm's administrators write these. They are separated by spaces and lines."""
    control = cluster.control
    control.undrain({n: node for n, node in control.nodes().items() if node.is_drained})
    create = ["scontrol", "create", "ReservationName=kept", "StartTime=now+1hour", "Duration=60"]
    cluster.run(*create, "Nodes=debug-4", "Users=root")

    def read() -> tuple[dict[str, Any], ...]:
        nodes = {name: (node.base, node.flags, node.cpus) for name, node in control.nodes().items()}
        kept = {one.name: (one.start, one.end, one.nodes) for one in control.reservations()}
        return nodes, control.partition_states(), kept

    before = read()
    refused = 0
    own = what.partition("=")[0]
    # A slurmctld of 24.11 without accounting ends when it looks for a partition's quality of service.
    taken = {"State", "StartTime", "EndTime", "Duration", "Nodes", "NodeCnt", "MinNodes", "QOS", own}
    for key in (key for key in options("scontrol") if key not in taken):
        for text in FORGED_LINES:
            if cluster.run("scontrol", "update", what, f"{key}={text}", check=False).returncode:
                continue
            try:
                # An object that looks like one of its kind may be beside the others.
                assert all(now.items() >= was.items() for now, was in zip(read(), before, strict=True)), key
            except SlurmError as error:
                refused += "occurs twice" in str(error)
            reset = {"NodeAddr": "127.0.0.1", "NodeHostname": "localhost", "Users": "root"}.get(key, "")
            cluster.run("scontrol", "update", what, f"{key}={reset}", check=False)
    cluster.run("scontrol", "delete", "ReservationName=kept")
    control.undrain({"debug-5": control.nodes()["debug-5"]})
    assert refused or own != "NodeName", "a comment of a node may hold what looks like a node"
    assert read()[:2] == before[:2]


def test_a_job_with_any_flag_is_seen_by_all_who_look_at_jobs(
    cluster: SlurmCluster, deleted: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs that squeue leaves out if it is asked for states, and those that complete to run again."""
    control, waiting = cluster.control, deleted

    def begun(*nodes: str) -> list[int]:
        # Two nodes that earlier tests have left up: a job starts there at once.
        jobs = [_submit(cluster, "--mem=10", "-w", node, "--wrap", "sleep 600") for node in nodes]
        cluster.wait("the jobs", lambda: all(control.jobs()[job].state == "RUNNING" for job in jobs))
        return jobs

    special, suspended, signaled, again = begun("debug-0", "debug-0", "debug-2", "debug-2")
    control.run("scontrol", "update", f"JobId={again}", "TimeLimit=60")
    cluster.run("scontrol", "requeuehold", "state=SpecialExit", str(special))
    cluster.run("scontrol", "suspend", str(suspended))
    stopped, ended = begun("debug-0", "debug-0")
    cluster.run("scancel", "--signal=STOP", str(stopped))
    cluster.wait("its stop", lambda: control.jobs()[stopped].state == "STOPPED")
    running = [special, suspended, signaled, again, stopped, ended]
    with cluster.stopped("debug-0"), cluster.stopped("debug-2"):
        cluster.run("scancel", "--signal=STOP", str(signaled))
        cluster.run("scontrol", "requeue", str(again))
        control.cancel([ended])
        states = {
            special: "SPECIAL_EXIT", suspended: "SUSPENDED", stopped: "STOPPED", signaled: "SIGNALING",
            again: "COMPLETING", ended: "COMPLETING",
            **dict.fromkeys((*waiting, waiting[-1] + 1), "RESV_DEL_HOLD"),
        }  # fmt: skip

        def now() -> dict[int, str]:
            return {number: job.state for number, job in control.jobs().items() if number in states}

        cluster.wait("their states", lambda: now() == states)
        seen = control.jobs()
        assert {number for number in states if seen[number].is_pending} == {
            special,
            *waiting,
            waiting[-1] + 1,
        }
        assert states.keys() <= unfinished(control)
        # A job that completes waits for its prolog, so the prolog must not wait for the job's nodes.
        assert control.working_jobs() & states.keys() == {suspended, stopped, signaled}

        def run(line: str, seconds: float) -> str:
            return subprocess.run(
                ["bash", "-c", line], env={}, capture_output=True, text=True, timeout=seconds, check=True
            ).stdout

        cluster_control = ClusterControl(run, str(cluster.conf))
        listed = {job.id: job for job in cluster_control.jobs()}
        spelled = [
            *map(str, running),
            str(waiting[0]),
            f"{waiting[1]}_[0-2%2]",
            *(f"{waiting[2]}+{n}" for n in (0, 1)),
        ]
        assert set(spelled) <= listed.keys()
        assert {job for job in spelled if listed[job].pending} == {str(special), *spelled[len(running) :]}
        assert {job for job in spelled if listed[job].over} == {str(ended)}, "the other one runs again"
        assert {job for job in spelled if listed[job].again} == {str(again)}
        text = cluster_control.ask(wait_line(2, [listed[str(signaled)]]), 60)
        assert signaled in map(job_number, parse(text))

    for job, cause in ((special, "special exit|held state"), (waiting[0], "Reservation ends was deleted")):
        show.run(Cluster(cluster.settings), str(job), lines=9, follow=False)
        told = capsys.readouterr().out
        assert re.search(rf"waits: .*({cause}): it is held: .*`scontrol release {job}`", told), told
    control.release(waiting[0])
    assert (control.jobs()[waiting[0]].state, control.jobs()[waiting[0]].is_held) == ("RESV_DEL_HOLD", False)
    cluster.run("scontrol", "resume", str(suspended))
    control.cancel([*running, *waiting])
    cluster.wait("their end", lambda: not unfinished(control) & states.keys())


def test_no_controller(cluster: SlurmCluster) -> None:
    assert cluster.control.ping()
    lost = cluster.root / "lost.conf"
    with socket.socket() as ours:
        # Nothing listens on the port, and no other program can bind it meanwhile.
        ours.bind(("127.0.0.1", 0))
        its, other = (f"SlurmctldPort={n}" for n in (cluster.site.slurmctld_port, ours.getsockname()[1]))
        lost.write_text(cluster.conf.read_text().replace(its, other))
        control = Control(lost, timeout=5)
        assert not control.ping()
        with pytest.raises(SlurmDown):
            control.nodes()
