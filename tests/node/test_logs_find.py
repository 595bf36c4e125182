"""Tests of finding logs, with and without an answer of Slurm, and of messages on unknown names."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from node import command_line
from node.bootstrap.vm.clouds import local
from node.logs import find, job_facts, job_output, slurmd_lines
from node.logs.filters import about_jobs, about_node
from node.logs.find import Cluster, UnknownNameError
from node.logs.sources import Source
from node.slurm.control import SlurmDown
from node.slurm.fields import OUTPUT
from node.slurm.states import JobState, NodeState
from node.system.codec import to_json
from tests.support.doubles import design, job, node, settings

SILENT = "Unable to contact slurm controller"


class Slurm:
    """A fake Slurm, which is silent unless the test sets its answers."""

    def __init__(self) -> None:
        self.queue: dict[int, JobState] = {}
        self.state: dict[str, NodeState] = {}
        self.written: dict[int, dict[str, str]] = {}
        self.silent = False

    def _answer(self, what: Any) -> Any:
        if self.silent:
            raise SlurmDown(["scontrol"], 1, SILENT)
        return what

    def jobs(self) -> dict[int, JobState]:
        return dict(self._answer(self.queue))

    def nodes(self) -> dict[str, NodeState]:
        return dict(self._answer(self.state))

    def outputs(self, jobs: list[int]) -> dict[int, dict[str, str]]:
        return dict(self._answer({number: self.written[number] for number in jobs if number in self.written}))


def writes(out: Path | str, err: Path | str | None = None, **changes: str) -> dict[str, str]:
    """What squeue tells of a batch job of this user's."""
    fields = dict.fromkeys(OUTPUT, "N/A") | {"batchflag": "1", "userid": str(os.getuid())}
    return fields | {"stdout": str(out), "stderr": str(out if err is None else err)} | changes


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(find, "Control", lambda *_: made)
    return made


@pytest.fixture
def cluster(tmp_path: Path, slurm: Slurm) -> Cluster:
    """A cluster whose controller has booted, and with one node that was up."""
    made = Cluster(settings(tmp_path))
    for folder in (made.log, tmp_path / "lib" / "boot", tmp_path / "etc"):
        folder.mkdir(parents=True)
    (tmp_path / "etc" / "slurm.conf").touch()
    (tmp_path / "agent.log").write_text("the agent serves\n")
    for name, text in {
        "boot-controller.log": "waiting for munged\n",
        "munged.out": "munged: Notice: Starting\n",
        "elastic.log": "t the elastic daemon serves t\nt resume debug-[0-1]\n"
        "t launched debug-[0-1] in one call, job 7\nt job 17: not ours\n",
        "slurmctld.log": "started\nAllocate JobId=7 NodeList=debug-[0-1]\nNode debug-10 now responding\n"
        "Allocate JobId=8_3(17) NodeList=debug-2\n",
        "slurmctld.out": "slurmctld: started\nslurmctld ended with status 9; it is started again\n",
        "boot-debug-1.log": "",
        "hook-0-debug-1.log": "installing\n",
        "slurmd-debug-1.out": "slurmd: fatal: no such port\nslurmd: hello\n",
        "slurmd-debug-1.log": "slurmd started\n",
    }.items():
        (made.log / name).write_text(text)
    report = {
        "host": "controller",
        "role": "controller",
        "state": "ready",
        "started": 1.0,
        "ended": 2.0,
        "steps": [],
    }
    for host in ("controller", "debug-1"):
        made.report(host).write_text(json.dumps({**report, "host": host}))
    return made


def shown(sources: list[Source]) -> dict[str, list[str]]:
    """Title -> lines, for logs with a heading."""
    found = {source.heading.partition(":")[0]: source.last(40) for source in sources}
    return {title: lines for title, lines in found.items() if lines}


# --- controller and nodes --------------------------------------------------------------------------------


def test_the_controllers_logs(cluster: Cluster) -> None:
    found = shown(cluster.sources("controller"))
    assert list(found) == [
        "boot report", "local cloud", "boot", "munged", "elastic daemon", "slurmctld's end", "slurmctld",
    ]  # fmt: skip
    assert found["local cloud"] == ["the agent serves"]
    assert found["slurmctld's end"] == ["slurmctld ended with status 9; it is started again"], "no line twice"
    assert found["slurmctld"][0] == "started"


def test_a_controller_that_never_came_so_far(tmp_path: Path, slurm: Slurm) -> None:
    found = shown(Cluster(settings(tmp_path)).sources("controller"))
    assert found["boot report"] == ["(not there: the controller has not started yet)"]
    assert found["slurmctld"] == ["(not there: the controller's boot has not come that far)"]


def test_a_nodes_logs(cluster: Cluster, slurm: Slurm) -> None:
    slurm.state = {"debug-1": node("debug-1", "DOWN", "CLOUD", "DRAIN", reason="looking at it")}
    found = shown(cluster.sources("debug-1"))
    assert list(found) == [
        "Slurm on debug-1", "boot report", "hook", "slurmd's end", "slurmd",
        "elastic daemon, on this node", "slurmctld, on this node",
    ]  # fmt: skip
    assert found["Slurm on debug-1"] == ["down+cloud+drain", "reason: looking at it"]
    assert found["slurmd's end"] == ["slurmd: fatal: no such port"]
    assert found["slurmctld, on this node"] == ["Allocate JobId=7 NodeList=debug-[0-1]"]
    assert found["elastic daemon, on this node"] == [
        "t resume debug-[0-1]", "t launched debug-[0-1] in one call, job 7",
    ]  # fmt: skip


def test_a_nodes_last_changes_say_why_it_went(cluster: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    why = "slurm-stacks preempted: the machine is gone\x1b[2J"
    changes = [
        {"at": 1764342130, "state": "IDLE+CLOUD", "machine": "running", "reason": None},
        {"at": 1764342190, "state": "IDLE+CLOUD+POWERING_DOWN", "machine": "gone", "reason": why},
        {"at": 1764342195, "state": "IDLE+CLOUD+POWERED_DOWN", "machine": "none", "reason": why},
    ]
    title = "debug-1's last changes of state"
    assert title not in shown(cluster.sources("debug-1")), "there is no record yet"
    file = Path(str(cluster.folders.elastic)) / "history.jsonl"
    file.parent.mkdir()
    file.write_text(
        "".join(json.dumps({"node": "debug-1", **change}) + "\n" for change in changes) + '{"node"'
    )
    assert shown(cluster.sources("debug-1"))[title] == [
        "2025-11-28T15:02:10Z  idle+cloud, machine running",
        "2025-11-28T15:03:10Z  idle+cloud+powering_down, machine gone  "
        r"slurm-stacks preempted: the machine is gone\x1b[2J",
        "2025-11-28T15:03:15Z  idle+cloud+powered_down, machine none",
    ]
    assert title not in shown(cluster.sources("debug-4"))
    file.unlink()
    file.mkdir()
    assert title not in shown(cluster.sources("debug-1")), "what cannot be read hides no other log"


@pytest.mark.parametrize(
    ("asked", "earlier"), [("1970-01-01T00:00:01Z", False), ("2026-11-24T22:27:57Z", True)]
)
def test_an_earlier_machines_boot_report_is_not_taken_for_the_present_ones(
    cluster: Cluster, asked: str, earlier: bool
) -> None:
    """The present machine may never have come so far that it could write one."""
    log = f"1970-01-01T00:00:00Z resume debug-[0-3]\n{asked} resume debug-[1-2]\n{asked} resume debug-3\n"
    (cluster.log / "elastic.log").write_text(log)
    lines = shown(cluster.sources("debug-1"))["boot report"]
    text = f"(an earlier machine's: no machine has written one since Slurm asked for the node at {asked})"
    assert (lines[0] == text) is earlier
    assert "debug-1 (controller): ready after 1.0 s, begun 1970-01-01T00:00:01Z" in lines


def test_a_node_that_was_never_up_and_one_that_slurm_does_not_know(cluster: Cluster, slurm: Slurm) -> None:
    found = shown(cluster.sources("debug-4"))
    assert found["boot report"] == ["(not there: no machine has started for this node yet)"]
    assert found["Slurm on debug-4"] == ["(Slurm does not know this node: the stack file no longer has it)"]
    slurm.silent = True
    assert SILENT in shown(cluster.sources("debug-4"))["Slurm on debug-4"][0]
    (cluster.log / "boot-old-3.log").write_text("left from a larger cluster\n")
    assert shown(cluster.sources("old-3"))["boot"] == ["left from a larger cluster"]


def test_nodes_on_machines_of_their_own_keep_their_logs_but_the_boot_report(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "BUCKET", str(tmp_path))
    own = settings(tmp_path, dataclasses.replace(design(), isolation="container"))
    report = {
        "state": "ready",
        "started": 0.0,
        "ended": 9.0,
        "role": "compute",
        "host": "debug-1",
        "steps": [],
    }
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "debug-1.json").write_text(json.dumps(report))
    found = shown(Cluster(own).sources("debug-1"))
    assert found["boot report"] == ["debug-1 (compute): ready after 9.0 s, begun 1970-01-01T00:00:00Z"]
    assert "srun --nodelist=debug-1 tail" in found["debug-1's own logs"][0]
    (tmp_path / "boot" / "controller.json").touch()
    with pytest.raises(UnknownNameError, match=r"\(up so far: debug-1\)"):
        Cluster(own).sources("debug-77")


# --- jobs ------------------------------------------------------------------------------------------------


def test_a_job_that_runs(cluster: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    slurm.queue = {7: job(7, nodes=("debug-0", "debug-1"), restarts=2), 17: job(17)}
    out, err = tmp_path / "an out put.txt", tmp_path / "err.txt"
    slurm.written[7] = writes(out, err)
    out.write_text("epoch 1\n")
    found = shown(cluster.sources("7"))
    assert found["job 7"] == [
        "keras-job: running on debug-[0-1], partition debug, user u",
        "was queued again 2 times",
    ]
    assert found["slurmctld, on this job"] == ["Allocate JobId=7 NodeList=debug-[0-1]"]
    assert found["elastic daemon, on this job"] == ["t launched debug-[0-1] in one call, job 7"]
    assert found["output"] == ["epoch 1"]
    assert found["errors"][0].startswith("(not there: ")


def test_a_job_that_waits_and_one_that_failed(cluster: Cluster, slurm: Slurm) -> None:
    slurm.queue = {
        7: job(7, "PENDING", reason="Resources"),
        8: job(8, "FAILED", exit_code=3, reason="NonZeroExitCode"),
        9: job(9, "CANCELLED", signal=15),
    }
    assert "waits: Resources: other jobs hold the nodes that it needs" in shown(cluster.sources("7"))["job 7"]
    assert "exit code 3 (NonZeroExitCode)" in shown(cluster.sources("8"))["job 8"]
    assert shown(cluster.sources("9"))["job 9"][1:] == ["ended by signal 15 (SIGTERM)"]


# As slurmd 22.05.8 wrote them; the last two as its source has them.
NOT_STARTED = """\
[2026-11-25T22:43:00.278] Launching batch job 8 for UID {uid}
[2026-11-25T22:43:00.294] [8.batch] error: Could not open stdout file /nope/x.out: No such file or directory
[2026-11-25T22:43:00.294] [8.batch] error: _fork_all_tasks: IO setup failed: Slurmd could not connect IO
[2026-11-25T22:43:00.297] [8.batch] get_exit_code task 0 died by signal: 53
[2026-11-25T22:43:00.746] [8.0] error: couldn't chdir to `/nope/dir': No such file or directory: going to /tmp
[2026-11-25T22:43:00.748] [8.extern] done with job
[2026-11-25T22:43:00.851] launch task StepId=8.0 request from UID:{uid} GID:0 HOST:127.0.0.1 PORT:44884
[2026-11-25T22:43:01.000] error: [job 8] prolog failed status=1:0
[2026-11-25T22:43:01.001] error: Could not launch job 8 and not able to requeue it, cancelling job
"""
OF_OTHERS = """\
[2026-11-25T22:43:00.278] Launching batch job 88 for UID {uid}
[2026-11-25T22:43:00.294] [88.batch] error: Could not open stdout file /nope/[8.batch] error: x: No such file
[2026-11-25T22:43:00.295] [7.batch] error: Could not open stdout file Launching batch job 8 for UID 0: No such
[2026-11-25T22:43:00.296] error: [job 88] prolog failed status=1:0
[2026-11-25T22:43:00.297] CPU frequency setting not configured for job 8
launched [8.batch] by hand
"""


def test_a_job_that_could_not_start_has_its_nodes_own_words(cluster: Cluster, slurm: Slurm) -> None:
    slurm.queue = {
        8: job(8, "FAILED", reason="JobLaunchFailure", signal=53, nodes=("debug-1", "debug-2")),
    }
    uid = os.getuid()
    (cluster.log / "slurmd-debug-1.log").write_text((OF_OTHERS + NOT_STARTED + OF_OTHERS).format(uid=uid))
    (cluster.log / "slurmd-debug-2.log").write_text("[2026-11-25T22:43:01.000] [8.1] \x1b[2J\n")
    found = shown(cluster.sources("8"))
    (why,) = found["job 8"][1:]
    assert why == "its node could not start it: slurmd of the node says why"
    assert found["slurmd of debug-1, on this job"] == NOT_STARTED.format(uid=uid).splitlines()
    assert found["slurmd of debug-2, on this job"] == [r"[2026-11-25T22:43:01.000] [8.1] \x1b[2J"]
    means = found["what this means"]
    assert [line.partition(": ")[0] for line in means] == [
        "[2026-11-25T22:43:00.294] [8.batch] error",
        "[2026-11-25T22:43:00.746] [8.0] error",
        "[2026-11-25T22:43:01.000] error",
    ]
    assert "Slurm 22.05 makes no folder" in means[0]


# As slurmd 26.05.5 wrote them; the last two as its source has them.
NOT_STARTED_NOW = """\
[2026-11-25T22:43:00.278] Launching batch JobId=8 SLUID=s0MNM8GB930T00 for UID {uid}
[2026-11-25T22:43:00.294] [8.batch] error: Could not open stdout file /nope/x.out: Not a directory
[2026-11-25T22:43:01.000] error: JobId=8 SLUID=s0MNM8GB930T00 prolog failed status=1:0
[2026-11-25T22:43:01.001] error: Could not launch JobId=8 SLUID=s0MNM8GB930T00 and not able to requeue it, \
cancelling job
"""


def test_the_lines_of_later_releases_are_known(cluster: Cluster, slurm: Slurm) -> None:
    uid = os.getuid()
    reason = "RaisedSignal:53(Real-time signal 19)"
    failed = job(8, "FAILED", reason="RaisedSignal", explanation=reason, signal=53, nodes=("debug-1",))
    slurm.queue = {8: failed}
    log = cluster.log / "slurmd-debug-1.log"
    others = NOT_STARTED_NOW.replace("JobId=8 ", "JobId=88 ").replace("[8.", "[88.")
    log.write_text((others + NOT_STARTED_NOW).format(uid=uid))
    found = shown(cluster.sources("8"))
    assert found["job 8"][1:] == ["its node could not start it: slurmd of the node says why"]
    assert found["slurmd of debug-1, on this job"] == NOT_STARTED_NOW.format(uid=uid).splitlines()
    assert any("prolog of jobs failed" in line for line in found["what this means"])
    log.write_text(others.format(uid=uid + 1) + NOT_STARTED_NOW.format(uid=uid))
    (line,) = shown(cluster.sources("8"))["slurmd of debug-1, on this job"]
    assert line.startswith("(not shown: others' jobs ran there too")


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        # As squeue of 22.05, 24.11 and 26.05 tells a program that died of a signal.
        (job(8, "FAILED", reason="JobLaunchFailure", signal=11, nodes=("debug-1",)), "signal 11 (SIGSEGV)"),
        (job(8, "FAILED", reason="RaisedSignal", signal=11, nodes=("debug-1",)), "signal 11 (SIGSEGV)"),
        # Numbers of signals that Slurm makes up.
        (
            job(8, "NODE_FAIL", reason="NodeDown", signal=1, nodes=("debug-1",)),
            "its node was lost (NodeDown)",
        ),
        (job(8, "NODE_FAIL", signal=15, nodes=("debug-1",)), "its node was lost"),
        (job(8, "BOOT_FAIL", signal=1, nodes=("debug-1",)), "its nodes did not start"),
        # squeue(1): these are Slurm's doing. It tells 0:0, 0:15 or 0:125.
        (job(8, "TIMEOUT", signal=15, nodes=("debug-1",)), "it was ended at its time limit"),
        (job(8, "DEADLINE", signal=15, nodes=("debug-1",)), "it was ended at its deadline"),
        (job(8, "PREEMPTED", nodes=("debug-1",)), "it had to make room for another job"),
        (
            job(8, "OUT_OF_MEMORY", signal=125, nodes=("debug-1",)),
            "it used more memory than it had asked for",
        ),
        (job(8, "FAILED", reason="BadConstraints", signal=1), "it never ran (BadConstraints: no node can"),
        (job(8, "DEADLINE", reason="DeadLine", signal=1), "it never ran (DeadLine: it cannot end"),
        (job(8, "DEADLINE", reason="DeadLine"), "it never ran (DeadLine: it cannot end"),
        (job(8, "CANCELLED", nodes=("debug-0",)), "cancelled while its nodes started, or it ended with exit"),
        (job(8, "CANCELLED", signal=15, nodes=("debug-0",)), "signal 15 (SIGTERM)"),
    ],
)
def test_an_end_is_told_as_it_was(ended: JobState, told: str) -> None:
    line = job_facts.facts(ended)[-1]
    assert told in line
    assert not any(word in line for word in ("SIGHUP", "Launch", "Raised"))


def test_where_others_jobs_ran_nothing_that_they_may_have_written_is_shown(
    cluster: Cluster, slurm: Slurm
) -> None:
    """slurmd logs a path with a line break as it is, so its second half is a line like any other."""
    slurm.queue = {8: job(8, "FAILED", reason="JobLaunchFailure", nodes=("debug-1",))}
    uid = os.getuid()
    log = cluster.log / "slurmd-debug-1.log"
    forged = "[2026-11-25T22:43:00.294] [8.batch] error: forged"
    for first in (
        "Launching batch job 9 for UID {}",
        "launch task StepId=9.0 request from UID:{} GID:0 HOST:",
    ):
        other = f"[2026-11-25T22:43:00.000] {first.format(uid + 1)}"
        log.write_text("\n".join([NOT_STARTED.format(uid=uid), other, "[9.batch] error: /x", forged, ""]))
        (line,) = shown(cluster.sources("8"))["slurmd of debug-1, on this job"]
        assert line.startswith("(not shown: others' jobs ran there too")


def test_where_nodes_have_logs_of_their_own_the_command_that_reads_them() -> None:
    def told(reason: str, host: str | None = None, signal: int = 53) -> list[str]:
        failed = job(8, "FAILED", reason=reason, nodes=("debug-1",), batch_host=host, signal=signal)
        return [
            line
            for found in slurmd_lines.logs_on_nodes([failed], "/x/slurmd.log", "s")
            for line in found.last(9)
        ]

    (line,) = told("JobLaunchFailure")
    assert "./cluster exec --stack s -- srun --nodelist=debug-1 grep -F '[8.' /x/slurmd.log" in line
    # A job of srun's has the host that the submitting program sends.
    assert told("JobLaunchFailure", "$(touch y)") == [line]
    assert told("NonZeroExitCode", signal=0) == []


def test_a_job_that_was_cancelled_while_it_waited_has_no_exit_code(cluster: Cluster, slurm: Slurm) -> None:
    slurm.queue = {
        7: job(7, "CANCELLED", reason="Resources"),
        8: job(8, "CANCELLED", reason="BeginTime", restarts=1),
        9: job(9, "CANCELLED", nodes=("debug-0",)),
    }
    assert shown(cluster.sources("7"))["job 7"][1:] == ["it never ran"]
    assert shown(cluster.sources("8"))["job 8"][1:] == ["was queued again once", "it did not run again"]
    assert shown(cluster.sources("9"))["job 9"][1:] == [
        "cancelled while its nodes started, or it ended with exit code 0 when told to"
    ]


OLDER = ["(the job has not written anything yet: this file is older than the job)"]


def written(path: Path, at: float) -> None:
    path.write_text("epoch 1\n")
    os.utime(path, (at, at))


def test_the_output_of_an_earlier_job_with_this_number_is_not_shown(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "slurm-7.out"
    slurm.queue = {7: job(7, "PENDING", submit_time=1000.0)}
    slurm.written[7] = writes(out)
    written(out, 990.0)
    (output,) = [source for source in cluster.sources("7") if source.heading.startswith("output")]
    assert (output.heading, output.last(9)) == (f"output: {out}", OLDER)
    assert output.more() == []
    written(out, 997.0)
    assert output.more() == ["epoch 1"], "the clocks of machines differ by some seconds"
    assert shown(cluster.sources("7"))["output"] == ["epoch 1"]


def test_a_requeued_job_keeps_the_output_since_its_first_submission(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "slurm-7.out"
    slurm.queue = {7: job(7, "PENDING", submit_time=2000.0, restarts=1)}
    slurm.written[7] = writes(out)
    written(out, 990.0)
    assert shown(cluster.sources("7"))["output"] == ["epoch 1"], "nothing tells its first submission"
    log = cluster.log / "slurmctld.log"
    line = "[{}] _slurm_rpc_submit_batch_job: JobId={} InitPrio=9 usec=3\n"
    log.write_text(line.format(datetime.fromtimestamp(500).isoformat(timespec="milliseconds"), 70))
    assert shown(cluster.sources("7"))["output"] == ["epoch 1"]
    log.write_text(line.format(datetime.fromtimestamp(1000).isoformat(timespec="milliseconds"), 7))
    assert shown(cluster.sources("7"))["output"] == OLDER
    written(out, 1500.0)
    assert shown(cluster.sources("7"))["output"] == ["epoch 1"], "of its first run"
    written(out, 990.0)
    for useless in (datetime.fromtimestamp(9000).isoformat(), "yesterday"):
        log.write_text(line.format(useless, 7))
        assert shown(cluster.sources("7"))["output"] == ["epoch 1"]
    log.unlink()
    assert shown(cluster.sources("7"))["output"] == ["epoch 1"]


def test_one_file_for_output_and_errors_is_told_once(cluster: Cluster, slurm: Slurm, tmp_path: Path) -> None:
    slurm.queue = {7: job(7)}
    slurm.written[7] = writes(tmp_path / "o")
    found = shown(cluster.sources("7"))
    assert "output" in found
    assert "errors" not in found


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({}, "by default slurm-7.out"),
        ({7: writes("", batchflag="0")}, "srun and salloc write to the terminal"),
        ({7: writes("/dev/null")}, "/dev/null, which keeps nothing"),
        ({7: writes("no/absolute/path")}, "by default slurm-7.out"),
        ({7: writes("/etc/passwd", userid="nobody's")}, "by default slurm-7.out"),
    ],
)
def test_a_job_without_a_file(
    cluster: Cluster, slurm: Slurm, written: dict[int, dict[str, str]], words: str
) -> None:
    slurm.queue, slurm.written = {7: job(7)}, written
    assert words in shown(cluster.sources("7"))["output"][0]


def test_a_file_that_is_not_the_jobs_users_is_not_shown(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    """Whoever asks may be root, and the path is the user's choice: any file, or a link to it."""
    secret = tmp_path / "shadow"
    secret.write_text("root:secret\n")
    link = tmp_path / "slurm-7.out"
    link.symlink_to(secret)
    slurm.queue = {7: job(7)}
    for path in (secret, link):
        slurm.written[7] = writes(path, userid=str(os.getuid() + 1))
        output = next(source for source in cluster.sources("7") if source.heading.startswith("output"))
        assert output.heading == f"output: {path}", "not even its size"
        (said,) = output.last(9)
        assert said.startswith("(cannot be shown: it belongs to ")
        assert output.more() == []
        assert output.more() == []
    slurm.written[7] = writes(link)
    assert shown(cluster.sources("7"))["output"] == ["root:secret"], "the user's own file"


def test_what_lies_among_the_runs_is_read_only_if_it_is_a_file_of_its_folders_owner(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Everybody may make folders there."""
    folder = run_folder(cluster, 7, "")
    (folder / "out-keras.txt").unlink()
    (folder / "out-keras.txt").symlink_to("/proc/1/environ" if os.getuid() else tmp_path / "other")
    if not os.getuid():
        (tmp_path / "other").write_text("another's\n")
        os.chown(tmp_path / "other", 4711, 4711)
    assert shown(cluster.sources("7"))["output"][0].startswith("(cannot be shown: ")
    (folder / "jobid").unlink()
    os.mkfifo(folder / "jobid")
    assert "Jobs: none known" in cluster.known(), "nobody waits for a writer"


def test_control_characters_of_a_path_or_a_name_do_not_reach_the_terminal(
    cluster: Cluster, slurm: Slurm
) -> None:
    slurm.queue = {7: job(7, name="a\x1b]0;b\x07\n   StdOut=/etc/passwd")}
    slurm.written[7] = writes("/nowhere/\x1b[2J\n==> output: /etc/passwd <==")
    sources = cluster.sources("7")
    text = [line for source in sources for line in (source.heading, *source.last(9))]
    assert all(line.isprintable() for line in text), text
    assert not any(source.heading == "output: /etc/passwd" for source in sources)


def test_a_file_in_a_nodes_own_tmp_is_shown_from_its_place_on_this_host(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    slurm.queue = {7: job(7)}
    slurm.written[7] = writes("/tmp/out", "/tmp/home/me/err", batchhost="debug-1")
    shared = Path(cluster.folders.shared_in_tmp)
    shared.parent.mkdir()
    own = tmp_path / "tmp" / "debug-1"
    own.mkdir(parents=True)
    (own / "out").write_text("of the node\n")
    paths = {"output": "/tmp/out", "errors": "/tmp/home/me/err"}

    def headings() -> dict[str, str]:
        found = (source.heading.partition(": ") for source in cluster.sources("7"))
        return {kind: path.partition(" ")[0] for kind, _, path in found if kind in paths}

    assert headings() == paths, "without the list all machines share /tmp"
    shared.write_text(json.dumps(["/tmp/home"]))
    assert headings() == paths | {"output": str(own / "out")}
    assert shown(cluster.sources("7"))["output"] == ["of the node"]
    slurm.written[7] = writes("/tmp/out", batchhost="N/A")
    assert headings() == {"output": "/tmp/out"}, "the job has no node yet"
    slurm.written[7] = writes("/tmp/later/out", batchhost="debug-1")
    assert shown(cluster.sources("7"))["output"] == [
        "(not there: the job has not written anything yet, or it was removed)"
    ]
    (own / "out").unlink()
    own.rmdir()
    assert shown(cluster.sources("7"))["output"] == [
        "(not there: it was in the /tmp of debug-1, which ended with that machine)"
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/x", "x"),
        ("/tmp/a/../x/y", "x/y"),
        ("/tmp/shared", None),
        ("/tmp/shared/x", None),
        ("/tmp/sharedx", "sharedx"),
        ("/tmp/../home/x", None),
        ("/tmpx", None),
        ("/home/x", None),
    ],
)
def test_which_paths_are_a_nodes_own(path: str, expected: str | None) -> None:
    found = job_output.in_own_tmp(path, ["/tmp/shared"])
    assert found == (None if expected is None else Path(expected))


def run_folder(cluster: Cluster, job_id: int, text: str) -> Path:
    folder = cluster.bench / "0123456789abcdef" / "abcdef012345"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobid").write_text(f"{job_id}\n")
    (folder / "out-keras.txt").write_text(text)
    return folder


def test_a_benchmark_that_slurm_has_forgotten(cluster: Cluster) -> None:
    folder = run_folder(cluster, 7, "epoch 8\n")
    found = shown(cluster.sources("7"))
    assert "Slurm has forgotten it" in found["job 7"][0]
    assert found["job 7"][1] == f"run in {folder}"
    assert found["output"] == ["epoch 8"]


def test_a_benchmark_of_an_earlier_cluster_is_not_this_jobs(cluster: Cluster, slurm: Slurm) -> None:
    folder = run_folder(cluster, 7, "epoch 8\n")
    slurm.queue = {7: job(7, "PENDING", submit_time=time.time() + 60)}
    assert "epoch 8" not in shown(cluster.sources("7"))["output"]
    slurm.queue = {7: job(7, submit_time=(folder / "jobid").stat().st_mtime)}
    assert shown(cluster.sources("7"))["output"] == ["epoch 8"]


def test_a_run_that_was_submitted_anew_keeps_the_outputs_apart(cluster: Cluster, slurm: Slurm) -> None:
    folder = run_folder(cluster, 8, "of job 8\n")
    (folder / "job-7").mkdir()
    (folder / "job-7" / "out-keras.txt").write_text("of job 7\n")
    slurm.queue = {7: job(7, "FAILED"), 8: job(8)}
    slurm.written = dict.fromkeys((7, 8), writes(folder / "out-keras.txt"))
    assert shown(cluster.sources("7"))["output"] == ["of job 7"]
    assert shown(cluster.sources("8"))["output"] == ["of job 8"]


def test_with_slurm_dead_the_files_still_tell(cluster: Cluster, slurm: Slurm) -> None:
    slurm.silent = True
    found = shown(cluster.sources("7"))
    assert found["job 7"] == [f"(Slurm does not answer: {SILENT})"]
    assert found["slurmctld, on this job"] == ["Allocate JobId=7 NodeList=debug-[0-1]"]
    run_folder(cluster, 9, "epoch 1\n")
    assert shown(cluster.sources("9"))["output"] == ["epoch 1"]


def test_arrays(cluster: Cluster, slurm: Slurm) -> None:
    slurm.queue = {n: job(n, "COMPLETED", array_job=8, array_task=str(n - 14)) for n in range(15, 35)}
    slurm.queue[8] = job(8, "PENDING", array_job=8, array_task="21-50", reason="Resources")
    found = shown(cluster.sources("8"))
    assert found["job 8"][0] == "21 tasks (20 completed, 1 pending); these are the last:"
    assert len(found["job 8"]) < 20
    assert found["slurmctld, on this job"] == ["Allocate JobId=8_3(17) NodeList=debug-2"]
    found = shown(cluster.sources("8_3"))
    assert found["job 8_3"][0].startswith("keras-job (task 3 of array 8): completed")
    assert found["slurmctld, on this job"] == ["Allocate JobId=8_3(17) NodeList=debug-2"]
    slurm.queue = {n: job(n, "RUNNING", array_job=2, array_task=str((n + 1) % 4)) for n in (2, 3, 4, 5)}
    slurm.queue[6] = job(6, "PENDING", array_job=2, array_task="4-9%2")
    tasks = [line.partition(": ")[0] for line in shown(cluster.sources("2"))["job 2"]]
    assert tasks[:4] == [f"keras-job (task {index} of array 2)" for index in range(4)]
    assert tasks[4] == "keras-job (tasks 4-9 of array 2)"
    with pytest.raises(UnknownNameError, match="no job has the number 8_99"):
        cluster.sources("8_99")


# --- names -----------------------------------------------------------------------------------------------


def test_unknown_names_are_told_what_there_is(cluster: Cluster, slurm: Slurm) -> None:
    slurm.queue = {7: job(7)}
    run_folder(cluster, 3, "")
    for name in ("99", "debug-10", "debug", "debug-01", "Controller", "", "../x"):
        with pytest.raises(UnknownNameError) as caught:
            cluster.sources(name)
        words = str(caught.value)
        assert "Nodes: debug-[0-9] (up so far: debug-1). Jobs: 3,7. The rest is `controller`." in words
    slurm.silent = True
    with pytest.raises(UnknownNameError, match="Slurm does not answer"):
        cluster.sources("99")


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("JobId=12 done", True),
        ("JobId=12", True),
        ("x JobId=12_3(44) y", True),
        ("x JobId=9_1(12) y", True),
        ("x JobId=9+1(12) y", True),
        ("JobId=123", False),
        ("JobId=1_12(5)", False),
        ("12", False),
    ],
)
def test_lines_about_a_job(line: str, about: bool) -> None:
    assert about_jobs([12, 77])(line) is about


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("Node debug-3 now responding", True),
        ("resume debug-[0-2,3,9]", True),
        ("resume debug-[0-12]", True),
        ("gpu-0,debug-[1,3-4]", True),
        ("debug-3", True),
        ("debug-30 debug-[4-9]", False),
        ("my-debug-3", False),
        ("debug-[5", False),
        ("other", False),
    ],
)
def test_lines_about_a_node(line: str, about: bool) -> None:
    assert about_node("debug-3")(line) is about


def test_the_tool_shows_logs(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(to_json(cluster.settings)))
    assert command_line.main(str(file), ["logs", "controller", "--lines=1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1] == "Allocate JobId=8_3(17) NodeList=debug-2"
    assert "started\n" not in out
    assert command_line.main(str(file), ["logs", "nonsense"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("no node or job is called 'nonsense'. Nodes: ")
