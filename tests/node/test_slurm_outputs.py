"""Every release in every sentence: what `logs` and `status` make of what the releases of Slurm print.

Three releases were run (tools/slurm_outputs.py). Of those between only the texts of log lines and errors are
known, from the source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.console.jobs import situation
from cli.console.status import node_words, show_status
from node.elastic import view
from node.elastic.daemon import Elastic
from node.logs.explanations import OF_SLURMD, meanings
from node.logs.filters import about_jobs, of_others, on_node
from node.logs.job_facts import LAUNCH_ERRORS, REASONS_OF_SIGNALS, facts
from node.logs.job_output import output_files, output_path
from node.slurm import reasons
from node.slurm.answers import (
    parse_jobs,
    parse_nodes,
    parse_partition_states,
    parse_reservations,
    parse_texts,
)
from node.slurm.control import is_unanswered
from node.slurm.fields import JOB_DETAILS, JOB_TEXTS, NODE, OUTPUT
from node.slurm.states import JobState, NodeState
from node.slurm.version import knows_last_digit
from tests.support.doubles import FakeControl, FakeDriver, fast_design, settings

DATA = json.loads((Path(__file__).parent / "data" / "slurm-outputs.json").read_text())
RUN: dict[str, Any] = DATA["run"]
SOURCE: dict[str, Any] = DATA["source"]
MARK = "m§"
ROOT = "/cluster"
"""What stands for the folder that jobs were submitted from."""
each_release = pytest.mark.parametrize("release", RUN)
each_source = pytest.mark.parametrize("release", SOURCE)


def test_the_releases_are_those_of_the_distributions_and_all_between() -> None:
    assert [release.rpartition(".")[0] for release in RUN] == ["22.05", "24.11", "26.05"]
    assert list(SOURCE) == ["22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"]


def job(release: str, name: str) -> JobState:
    answer = RUN[release]["jobs"][name]["squeue"].encode()
    refused: list[str] = []
    found = parse_jobs(answer, MARK, {**JOB_TEXTS, **JOB_DETAILS}, refused.append)
    assert refused == []
    return min(found.values(), key=lambda one: one.id)


# --- the ends of jobs ---------------------------------------------------------------------------------------

ENDS = {
    "failed launch": ("FAILED", "its node could not start it: slurmd of the node says why"),
    "signal": ("FAILED", "ended by signal 11 (SIGSEGV)"),
    "exit code": ("FAILED", "exit code 3"),
    "completed": ("COMPLETED", "exit code 0"),
    "no such folder": ("COMPLETED", "exit code 0"),
    "cancelled while it ran": ("CANCELLED", "ended by signal 15 (SIGTERM)"),
    "cancelled before it began": ("CANCELLED", "it never ran"),
    "cancelled while its nodes started": ("CANCELLED", "cancelled while its nodes started"),
    "node lost": ("NODE_FAIL", "its node was lost"),
    "deadline": ("DEADLINE", "it never ran (DeadLine: "),
    "refused at once": ("FAILED", "it never ran (BadConstraints: "),
    "time limit": ("TIMEOUT", "it was ended at its time limit"),
}


@each_release
@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_job_in_words(release: str, name: str) -> None:
    ended = job(release, name)
    state, words = ENDS[name]
    told = facts(ended)
    assert (ended.state, ended.is_over) == (state, True)
    assert told[-1].startswith(words), told
    assert len(told) == 2
    if name in ("failed launch", "signal"):
        assert ended.reason.partition(":")[0] in REASONS_OF_SIGNALS


@each_source
def test_numbers_and_reasons_of_a_failed_launch_are_the_same_everywhere(release: str) -> None:
    assert {number & 0x7F for number in SOURCE[release]["numbers"].values()} == set(LAUNCH_ERRORS)
    texts = SOURCE[release]["texts"]["reasons of ended jobs"]
    assert texts == ([] if release == "22.05" else ["RaisedSignal:%d(%s)"])


# --- where they write ---------------------------------------------------------------------------------------

FILES = {
    "completed": ("{root}/slurm-{job}.out",),
    "default output of an array": ("{root}/slurm-{array}_13.out",),
    "relative output": ("{root}/out-{job}-relative output", "{root}/err-{job}"),
    "pattern": ("{root}/p-{array}_13-{digit}",),
    "failed launch": ("{root}/afile/x.out",),
}


@each_release
@pytest.mark.parametrize("name", FILES)
def test_the_output_of_a_job_is_found(release: str, name: str) -> None:
    ((number, fields),) = parse_texts(RUN[release]["jobs"][name]["outputs"].encode(), OUTPUT, MARK).items()
    last = knows_last_digit(release)
    values = {"root": ROOT, "job": number, "array": fields["arrayjobid"], "digit": 3 if last else "%b"}
    paths = [file.path for file in output_files(number, fields, last_digit=last)]
    assert list(dict.fromkeys(paths)) == [path.format(**values) for path in FILES[name]]
    assert output_path(fields["stdout"], number, fields, last_digit=last) == paths[0]


# --- why they wait ------------------------------------------------------------------------------------------

WAITS = {
    "held": "JobHeldUser: it is held: scontrol release lets it go: `scontrol release {job}`",
    "begin time": "BeginTime: its begin time is later",
    "requeued": "BeginTime: its begin time is later",
    "dependency": "Dependency: the job that it depends on has not ended",
    "dependency that never is": "DependencyNeverSatisfied: ",
    "too many nodes": "Partition",
    "too much time": "PartitionTimeLimit: it asks for more time",
    "closed partition": "PartitionDown: ",
    "node out of service": "",
    "special exit": "job requeued in ",
    "array": "JobArrayTaskLimit: ",
    "resources": "",
    "priority": "",
    "reservation ended": "Reservation ends was deleted: it is held: ",
    "no node for it": "BadConstraints: no node can ever have what it asks for",
}
HELD = {"held", "special exit", "reservation ended"}


@each_release
@pytest.mark.parametrize("name", WAITS)
def test_why_a_job_waits_in_words(release: str, name: str) -> None:
    waiting = job(release, name)
    assert waiting.is_pending
    assert reasons.meaning_of(waiting.cause or "") is not None, waiting.cause
    text = reasons.in_words(waiting.cause, reasons.cure(waiting, None))
    assert text.startswith(WAITS[name].format(job=waiting.spelling)), text
    assert (f"`scontrol release {waiting.spelling}`" in text) == (name in HELD)
    assert facts(waiting)[1] == f"waits: {text}"


@each_source
def test_the_reason_of_a_reservation_that_is_gone_is_explained(release: str) -> None:
    for text in SOURCE[release]["texts"]["reasons of held jobs"]:
        assert "held" in (reasons.meaning_of(text.replace("%s", "my rr")) or ""), text


# --- nodes --------------------------------------------------------------------------------------------------

NODES: dict[str, tuple[str, str | None]] = {
    "off": ("off", ""),
    "off again": ("off", "last: new line"),
    "off, and chosen last": ("off", "last: new line"),
    "starting": ("starting", "no machine yet"),
    "idle": ("idle", ""),
    "busy": ("busy", ""),
    "down": ("down", "lost"),
    "drained": ("drained", "bad fan"),
    "drains": ("drained, its job goes on", "bad fan"),
    "fails": ("drained (fail), its job goes on", "bad fan"),
    "reboot requested": ("drained, its job goes on", "Reboot ASAP; it restarts when it is free"),
    "reboot issued": ("restarting", "its restart was asked for by hand"),
    "to be powered down after its job": (
        "drained, its job goes on", "new line; it is powered down after its job",
    ),
    "going back": ("going back", "new line"),
    "given back": ("going back", None),
    "in maintenance": ("in maintenance, off", "by a reservation"),
}  # fmt: skip


def node(release: str, name: str) -> NodeState:
    (found,) = parse_nodes(RUN[release]["nodes"][name]).values()
    return found


@each_release
@pytest.mark.parametrize("name", NODES)
def test_the_state_of_a_node_in_words(release: str, name: str) -> None:
    found = node(release, name)
    machine = None if found.is_off or name == "starting" else "running"
    told = node_words(view.state_text(found), machine, found.reason, next_state=found.next_state)
    state, why = NODES[name]
    # Of a node that restarts 24.11 does not keep the reason with which it is given back.
    assert told == (state, told[1] if why is None else why), view.state_text(found)
    assert found.partitions[0] == "debug"
    assert not view.is_admin_disabled(found) or name in ("down", "drained", "drains", "fails")


@each_release
def test_all_fields_are_there(release: str) -> None:
    line = RUN[release]["nodes"]["busy"]
    # What a node has only at times: a device, a reboot's next state, what somebody has set.
    missing = NODE.keys() - set(re.findall(r"(?:^| )(\w+)=", line))
    assert missing <= {"Gres", "GresUsed", "NextState", "CpuBind"}
    assert parse_partition_states(RUN[release]["partitions"]) == {"debug": "UP", "small": "INACTIVE"}
    (fix,) = [one for one in parse_reservations(RUN[release]["reservations"]) if one.name == "fix"]
    assert (fix.nodes, fix.is_maintenance, fix.users) == (("debug-4",), True, "root")
    assert re.search(r"^NEXT_JOB_ID\s+= [0-9]+$", RUN[release]["config"], re.MULTILINE)
    assert re.search(r"^FirstJobId\s+= [0-9]+$", RUN[release]["config"], re.MULTILINE)


@each_source
def test_slurms_reasons_for_nodes_are_nobodys_wish(release: str) -> None:
    """The elastic daemon brings back what Slurm itself has set down or drained."""
    texts = SOURCE[release]["texts"]["reasons of nodes"]
    known = [text for prefix in view.SLURMS_REASONS for text in texts if text.startswith(prefix)]
    assert {prefix for prefix in view.SLURMS_REASONS if not any(t.startswith(prefix) for t in texts)} == set()
    for text in known:
        assert not view.has_admin_reason(NodeState("n", "DOWN", frozenset(), text))
    assert {*view.REBOOT_REASONS, view.REBOOT_ISSUED[3:], view.REBOOT_TIMED_OUT[3:]} <= set(texts)


@each_release
def test_status_shows_all_of_it(release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = {job(release, name).id: job(release, name) for name in RUN[release]["jobs"]}
    control = FakeControl([node(release, "busy"), node(release, "off")], queue.values())
    found = Elastic(settings(tmp_path, fast_design()), control, FakeDriver(), tmp_path).status()
    assert {one["id"] for one in found["jobs"]} == {
        number for number, one in queue.items() if not one.is_over
    }
    for entry in found["jobs"]:
        assert situation({"job": entry, "progress": None})
    show_status(found)
    assert "special_exit" in capsys.readouterr().out


# --- logs ---------------------------------------------------------------------------------------------------


def lines(release: str, daemon: str) -> list[str]:
    found: list[str] = RUN[release]["logs"][daemon]
    return found


STARTS = {
    "failed launch": "the folder of --output, --error or --input is not on the node",
    "no such folder": "the folder that the job was submitted from, or --chdir, is not on the node",
}


@each_release
@pytest.mark.parametrize("name", STARTS)
def test_a_slurmds_lines_on_a_job_are_told_apart_and_explained(release: str, name: str) -> None:
    number, log = RUN[release]["numbers"][name], lines(release, "slurmd-debug-0")
    mine = list(filter(on_node([number]), log))
    assert any("Launching batch" in line for line in mine)
    (meaning,) = meanings(mine, OF_SLURMD)
    assert STARTS[name] in meaning
    others = list(filter(on_node([RUN[release]["numbers"]["exit code"]]), log))
    assert others
    assert set(mine).isdisjoint(others)
    assert meanings(others, OF_SLURMD) == []


@each_release
def test_another_users_job_is_seen_by_slurmds_own_line(release: str) -> None:
    log = lines(release, "slurmd-debug-0")
    number = RUN[release]["numbers"]["another user's"]
    (line,) = filter(of_others(0), log)
    assert on_node([number])(line)
    assert not list(filter(of_others(0), lines(release, "slurmd-debug-1")))


@each_release
def test_slurmctlds_lines_on_a_job(release: str) -> None:
    number, log = RUN[release]["numbers"]["exit code"], lines(release, "slurmctld")
    mine = list(filter(about_jobs([number]), log))
    assert any(re.search(rf"_slurm_rpc_submit_batch\w*: JobId={number}\b", line) for line in mine)
    assert not any(about_jobs([number * 10])(line) for line in mine)


FILLED = (
    # A job of the number 8, as 26.05 names it, and a step.
    (r"%pI", "JobId=8 SLUID=s0MNM8GB930T00"), (r"%ps", "StepId=8.0"),
    (r"(?<=[jJ]ob )%u|(?<=launch task )%u", "8"), (r"%m", "Not a directory"), (r"%[a-z]*u|%d", "7"),
    (r"%s", "x"),
)  # fmt: skip


def filled(release: str, kind: str) -> Iterator[str]:
    for form in SOURCE[release]["texts"][kind]:
        text = form
        for pattern, value in FILLED:
            text = re.sub(pattern, value, text)
        yield text


@each_source
def test_each_line_of_a_slurmds_on_a_job_is_the_jobs(release: str) -> None:
    found = list(filled(release, "slurmd on a job"))
    assert len(found) >= 8
    for text in found:
        line, failed = f"[2026-01-31T09:00:00.000] {text}", f"[2026-01-31T09:00:00.000] error: {text}"
        assert [on_node([8])(line), on_node([8])(failed)] == [True, True], line
        assert [on_node([7, 88])(line), on_node([7, 88])(failed)] == [False, False], line
        # By these alone it is known whose job it is.
        assert (of_others(0)(line), of_others(7)(line)) == (re.search(r"\bUID[: ]", text) is not None, False)


@each_source
def test_each_line_on_a_start_that_failed_is_explained(release: str) -> None:
    found = list(filled(release, "slurmd on a start that failed"))
    assert len(found) >= 7
    prefix = "[2026-01-31T09:00:00.000] [8.batch] error: "
    for text in found:
        begins = "[2026-01-31T09:00:00.000] error: " if "prolog" in text else prefix
        told = meanings([f"{begins}{text}"], OF_SLURMD)
        # One that only tries again is at a level that nobody logs.
        assert len(told) == 1 or "couldn't chdir to `x': " in text, text
        assert on_node([8])(f"{begins}{text}")


# --- a controller that does not answer ----------------------------------------------------------------------


@each_release
def test_silence_is_told_from_a_refusal(release: str) -> None:
    refused = RUN[release]["refused"]
    for name, text in refused.items():
        status, _, errors = text.partition(" ")
        if name == "silence: scontrol ping":
            assert status == "1"
        elif name.startswith("silence: "):
            assert status != "0"
            assert is_unanswered(errors), text
        else:
            assert status == "1"
            assert errors
            assert not is_unanswered(errors), text


@each_source
def test_every_text_of_silence_is_known(release: str) -> None:
    texts = SOURCE[release]["texts"]["clients without a controller"]
    assert len(texts) >= 8
    assert [text for text in texts if not is_unanswered(text)] == []
