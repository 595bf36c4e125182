"""Tests of the arguments of Slurm's commands and of the parsers. The texts in `data/` are real output."""

from __future__ import annotations

import stat
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.slurm import answers
from node.slurm.answers import (
    NodeParser,
    parse_jobs,
    parse_nodes,
    parse_partition_states,
    parse_reservations,
    parse_working,
    required_nodes,
    squeue_format,
    with_details,
)
from node.slurm.control import BATCH, Control, SlurmAnswerError, SlurmDown, SlurmError
from node.slurm.environment import of_ours
from node.slurm.fields import JOB, JOB_TEXTS, OUTPUT
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState
from tests.support.checkout import until
from tests.support.doubles import job, node
from tests.support.hostile import HOSTILE

DATA = Path(__file__).parent / "data"
MARK = "m0123456789abcdef0123456789abcdef"
"""The separator in the captured texts of jobs."""
HELPERS = ("up", "powering_up", "powered_down", "powering_down", "down", "silent", "drained")
# The properties for each observed state of a node. `job` is has_job.
TRUTH: dict[str, set[str]] = {
    "ALLOCATED+CLOUD": {"up", "job"},
    "ALLOCATED+CLOUD+DRAIN": {"up", "job", "drained"},
    # The node is given back when its job has ended.
    "ALLOCATED+CLOUD+DRAIN+POWER_DOWN": {"up", "job", "drained"},
    "DOWN+CLOUD": {"down"},
    "DOWN+CLOUD+POWERED_DOWN": {"down", "powered_down"},
    "DOWN+CLOUD+POWERED_DOWN+NOT_RESPONDING": {"down", "powered_down"},
    "DOWN+CLOUD+POWER_DOWN+POWERED_DOWN": {"down", "powering_down"},
    "DOWN+CLOUD+POWER_DOWN+NOT_RESPONDING": {"down", "powering_down", "silent"},
    "DOWN+CLOUD+NOT_RESPONDING": {"down", "silent"},
    "IDLE+CLOUD": {"up"},
    "IDLE+CLOUD+COMPLETING": {"up", "job"},
    "IDLE+CLOUD+COMPLETING+POWER_DOWN": {"up", "job"},
    "IDLE+CLOUD+DRAIN": {"up", "drained"},
    "IDLE+CLOUD+NOT_RESPONDING": {"silent"},
    "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP": {"powering_up"},
    "IDLE+CLOUD+POWERED_DOWN": {"powered_down"},
    "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING": {"powered_down"},
    "IDLE+CLOUD+POWERING_DOWN": {"powering_down"},
    "IDLE+CLOUD+POWER_DOWN": {"powering_down"},
    "IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING": {"powering_down", "silent"},
    # The node was requested by hand. ResumeProgram is called within a second.
    "IDLE+CLOUD+POWER_UP+POWERED_DOWN": {"powering_up"},
    # The node was requested twice while it started. It runs jobs, and keeps the flag.
    "IDLE+CLOUD+POWER_UP": {"up"},
    "IDLE+CLOUD+POWER_UP+POWERED_DOWN+NOT_RESPONDING+POWERING_UP": {"powering_up"},
    "IDLE+CLOUD+POWER_UP+POWERING_DOWN": {"powering_down"},
    "MIXED+CLOUD+POWER_UP": {"up", "job"},
    "MIXED+CLOUD": {"up", "job"},
    "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP": {"powering_up", "job"},
    # A job holds the node before ResumeProgram is called. PrologSlurmctld starts in this state.
    "MIXED+CLOUD+POWERED_DOWN": {"powered_down", "job"},
    "MIXED+CLOUD+POWER_DOWN": {"up", "job"},
    "MIXED+CLOUD+NOT_RESPONDING": {"silent", "job"},
}


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


def _captures() -> list[tuple[str, NodeState]]:
    return [
        (file.stem.removeprefix("nodes-"), node)
        for file in sorted(DATA.glob("nodes-*.txt"))
        for line in _lines(file)
        for node in parse_nodes(line).values()
    ]


@pytest.mark.parametrize(
    ("release", "node"),
    [pytest.param(r, n, id=f"{r}-{n.base}-{'-'.join(sorted(n.flags))}") for r, n in _captures()],
)
def test_helpers_on_real_states(release: str, node: NodeState) -> None:
    texts = {frozenset(text.split("+")): truth for text, truth in TRUTH.items()}
    expected = texts[node.flags | {node.base}]
    seen = {name for name in HELPERS if getattr(node, f"is_{name}")} | ({"job"} if node.has_job else set())
    assert seen == expected


def test_every_state_of_the_table_was_captured() -> None:
    seen = {node.flags | {node.base} for _, node in _captures()}
    assert {text for text in TRUTH if frozenset(text.split("+")) not in seen} == set()


def test_fields_of_a_node() -> None:
    node = next(n for r, n in _captures() if (r, n.base, set(n.flags)) == ("22.05", "ALLOCATED", {"CLOUD"}))
    assert (node.name, node.address, node.hostname) == ("debug-0", "127.0.0.1", "localhost")
    assert (node.cpus, node.cpus_alloc, node.partitions) == (2, 2, ("debug",))
    assert node.version == "22.05.8"
    assert node.gres is None
    assert node.reason is None
    assert node.slurmd_start_time is not None
    assert node.boot_time == node.slurmd_start_time
    assert node.last_busy_time is not None


def test_a_node_that_never_registered_has_no_times() -> None:
    node = next(n for _, n in _captures() if n.flags == {"CLOUD", "POWER_UP", "POWERED_DOWN"})
    assert (node.boot_time, node.slurmd_start_time, node.last_busy_time) == (None, None, None)
    assert node.version is None


def test_a_reason_cannot_pass_for_a_field() -> None:
    """The reason's text has ` State=IDLE CPUAlloc=99` and brackets."""
    node = next(n for _, n in _captures() if n.flags == {"CLOUD", "DRAIN"} and n.base == "ALLOCATED")
    assert node.reason == "bad gpu [Xid 79] State=IDLE CPUAlloc=99"
    assert node.reason_user == "root"
    assert node.reason_time is not None
    assert node.cpus_alloc == 2


def test_a_reason_with_an_at_sign_in_brackets() -> None:
    node = next(n for _, n in _captures() if n.base == "DOWN" and n.flags == {"CLOUD"})
    assert node.reason == "quota: (Code:VcpuLimitExceeded) ask for more [x@y] z"
    assert node.reason_user == "root"


@pytest.mark.parametrize(
    ("text", "names"), [("", []), ("No nodes in the system\n", []), ("\n\nNodeName=a State=IDLE \n", ["a"])]
)
def test_few_nodes(text: str, names: list[str]) -> None:
    assert list(parse_nodes(text)) == names


def test_a_line_that_is_known_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse_line = answers._node

    def spied(line: str) -> NodeState | None:
        parsed.append(line)
        return parse_line(line)

    monkeypatch.setattr(answers, "_node", spied)
    parse = NodeParser()
    first = parse(["NodeName=a State=IDLE\n", "NodeName=b State=DOWN\n", "\n"])
    assert parsed == ["NodeName=a State=IDLE", "NodeName=b State=DOWN", ""]
    parsed.clear()
    assert parse(["NodeName=b State=DOWN\n", "NodeName=a State=IDLE\n", "\n"]) is first
    assert parsed == [""]
    second = parse(["NodeName=a State=IDLE\n", "NodeName=b State=MIXED\n"])
    assert parsed == ["", "NodeName=b State=MIXED"]
    assert (first["b"].base, second["b"].base) == ("DOWN", "MIXED"), "an answer stays as it is"
    assert second["a"] is first["a"]


def test_no_line_outlives_its_answer() -> None:
    parse = NodeParser()
    parse(["NodeName=a State=IDLE", "NodeName=b State=IDLE"])
    assert list(parse(["NodeName=b State=IDLE"])) == ["b"], "a node was removed"
    assert list(parse._known) == ["NodeName=b State=IDLE"]
    assert parse(["No nodes in the system\n"]) == {}
    assert parse._known == {}


@pytest.mark.parametrize("lines", [["NodeName=a State=IDLE"] * 2, ["slurm_load_node error"]])
def test_an_answer_that_is_refused_changes_no_later_one(lines: list[str]) -> None:
    parse = NodeParser()
    nodes = parse(["NodeName=a State=IDLE"])
    with pytest.raises(ValueError, match=r"occurs twice|no node's line"):
        parse(lines)
    assert parse(["NodeName=a State=IDLE"]) is nodes
    assert list(parse(["NodeName=a State=IDLE", "NodeName=b State=IDLE"])) == ["a", "b"]


def test_lines_end_with_line_feeds_only(spy: Path) -> None:
    """A text of an administrator's may hold any other character, and bytes that are no text."""
    text = "NodeName=a State=DOWN Comment=x\x85\u2028\r\x0cy Reason=\xff z [root@5]"
    raw = text.encode().replace("\xff".encode(), b"\xff")
    (spy / "answer").write_bytes(raw + b"\n" + raw.replace(b"=a", b"=b") + b"\n")
    _tool(spy, "scontrol", f"cat {spy}/answer")
    control = Control("/x")
    assert control.nodes() == parse_nodes((spy / "answer").read_bytes().decode(errors="replace"))
    assert {node.reason for node in control.nodes().values()} == {"\ufffd z"}


def test_an_older_reading_does_for_who_says_so_and_never_replaces_a_newer_one(spy: Path) -> None:
    _tool(spy, "scontrol", f"cat {spy}/answer")
    control = Control("/x")

    def readings() -> int:
        return len(_calls(spy))

    (spy / "answer").write_text("NodeName=a State=IDLE\n")
    before = time.monotonic()
    assert control.nodes_since(before)["a"].base == "IDLE"
    (spy / "answer").write_text("NodeName=a State=DOWN\n")
    assert control.nodes_since(before)["a"].base == "IDLE"
    assert readings() == 1
    assert control.nodes_since(time.monotonic())["a"].base == "DOWN"
    assert control.nodes_since(before)["a"].base == "DOWN", "the newest one"
    assert readings() == 2
    (spy / "answer").write_text("NodeName=a State=MIXED\n")
    assert control.nodes()["a"].base == control.nodes_since(before)["a"].base == "MIXED"
    (spy / "answer").write_text("NodeName=a State=IDLE GresUsed=gpu:2\n")
    assert control.detailed_nodes()["a"].gres_used == control.nodes_since(before)["a"].gres_used == 2
    assert readings() == 4
    assert "[--details]" in _calls(spy)[-1]


def test_named_nodes_are_read_by_their_names_and_all_if_slurm_does_not_know_one(spy: Path) -> None:
    _tool(spy, "scontrol", f'case "$*" in *gone*) echo Node gone not found; exit 1 ;; esac; cat {spy}/answer')
    (spy / "answer").write_text("NodeName=a1 State=IDLE\nNodeName=a2 State=DOWN\n")
    control, names = Control("/x"), frozenset({"a1", "a2"})
    seen = control.named_nodes(names)
    assert {name: node.base for name, node in seen.items()} == {"a1": "IDLE", "a2": "DOWN"}
    assert control.named_nodes(names) is seen
    assert set(_calls(spy)) == {"[show][node][a[1-2]][--oneliner]"}
    assert control.named_nodes({"a1", "gone"}) == seen
    assert _calls(spy)[-1] == "[show][nodes][--oneliner]"
    assert (
        control.named_nodes([f"n{number}" for number in range(BATCH + 1)]) == control.named_nodes([]) == seen
    )
    assert set(_calls(spy)[-2:]) == {"[show][nodes][--oneliner]"}, "an argument has a greatest length"
    _tool(spy, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SlurmDown):
        control.named_nodes(names)


def test_a_node_that_comes_up_is_read_again_when_its_state_is_another(spy: Path) -> None:
    """sinfo asks for one node, and scontrol for all of them."""
    control = Control("/x")
    _tool(spy, "sinfo", f"cat {spy}/state")

    def read(state: str, shown: str | None = None, address: str = "a") -> tuple[Mapping[str, NodeState], int]:
        """Return the node, and how many programs were asked."""
        (spy / "calls").write_text("")
        (spy / "state").write_text(f"{(shown or state).lower()}   \n")
        _tool(spy, "scontrol", f"echo NodeName=a NodeAddr={address} State={state}")
        return control.named_nodes({"a"}), len(_calls(spy))

    coming, asked = read("ALLOCATED+CLOUD+POWERING_UP")
    assert asked == 2
    assert _calls(spy)[0] == "[--noheader][--all][--nodes=a][--Format=StateComplete:400]"
    assert read("ALLOCATED+CLOUD+POWERING_UP") == (coming, 1)
    assert read("ALLOCATED+CLOUD+POWERING_UP")[0] is coming
    for address in ("10.0.0.1", "10.0.0.2"):
        up, asked = read("ALLOCATED+CLOUD", address=address)
        assert (up["a"].is_up, up["a"].address, asked) == (True, address, 2), "it counts besides the state"
    coming, asked = read("ALLOCATED+CLOUD+POWERING_UP")
    assert (coming["a"].is_powering_up, asked) == (True, 2)
    for _ in range(2):
        changed, asked = read("ALLOCATED+CLOUD", "ALLOCATED+CLOUD+POWERING_UP*")
        assert (changed["a"].is_up, asked) == (True, 2), "what sinfo shows is not what scontrol shows"
    assert read("IDLE+POWERED_DOWN", " ")[0]["a"].is_powered_down
    _tool(spy, "sinfo", "exit 1")
    assert read("ALLOCATED+CLOUD")[0]["a"].is_up, "without sinfo"


def test_threads_that_ask_at_once_share_a_reading_that_begins_after_them(spy: Path) -> None:
    _tool(spy, "scontrol", f"cat {spy}/answer; until [ -e {spy}/go ]; do sleep 0.01; done")
    (spy / "answer").write_text("NodeName=a State=IDLE\n")
    control = Control("/x")
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(control.nodes)
        until((spy / "calls").exists, 60, "the first reading")
        (spy / "answer").write_text("NodeName=a State=DOWN\n")
        others = [pool.submit(control.nodes) for _ in range(8)]
        until(lambda: control._nodes._next is not None, 60, "who asks next")
        assert len(_calls(spy)) == 1, "one at a time"
        (spy / "go").touch()
        assert {future.result(60)["a"].base for future in others} == {"DOWN"}
        assert first.result(60)["a"].base in ("IDLE", "DOWN")


def test_what_is_no_node_is_refused() -> None:
    with pytest.raises(ValueError, match="scontrol"):
        parse_nodes("slurm_load_node error: Unable to contact slurm controller")


def test_a_silent_node_with_a_star() -> None:
    node = parse_nodes("NodeName=a State=DOWN*+CLOUD Partitions=x,y")["a"]
    assert (node.base, node.is_silent, node.partitions) == ("DOWN", True, ("x", "y"))


def _captured_jobs(release: str) -> dict[int, JobState]:
    return parse_jobs((DATA / f"jobs-{release}.txt").read_bytes(), MARK, JOB_TEXTS)


@pytest.mark.parametrize("release", ["22.05", "24.11"])
def test_jobs_of_all_kinds(release: str) -> None:
    jobs = _captured_jobs(release)
    assert {job.id: job.state for job in jobs.values()} == {
        1: "RUNNING",
        2: "PENDING",
        3: "COMPLETING",
        4: "CANCELLED",
        5: "PENDING",
        # The job wants more nodes than the partition has. 24.11 refuses it.
        6: "FAILED" if release == "24.11" else "PENDING",
        7: "PENDING",
        8: "PENDING",
        9: "FAILED",
    }
    assert [i for i in (1, 2, 3, 4, 5, 7, 8, 9) if jobs[i].is_over] == [4, 9]
    assert [i for i, job in sorted(jobs.items()) if job.is_active] == [1, 3]
    assert jobs[6].wanted_nodes == 9

    running = jobs[1]
    assert (running.nodes, running.batch_host, running.end_time) == (("debug-0",), "debug-0", None)
    assert running.submit_time is not None
    assert running.start_time == running.submit_time + 1

    requeued = jobs[2]
    assert (requeued.restarts, requeued.requeue, requeued.reason, requeued.nodes) == (
        1,
        True,
        "BeginTime",
        (),
    )
    assert (requeued.explanation, requeued.batch_host) == (None, None)
    assert requeued.admin_comment == "quota: 4 of 8 nodes; ask for more"
    assert requeued.eligible_time is not None
    assert requeued.submit_time is not None
    assert requeued.eligible_time - requeued.submit_time == 31, "cred_expire + 1"

    array = jobs[5]
    assert (array.array_job, array.array_task, array.reason) == (5, "0-9%2", "ReqNodeNotAvail")
    assert array.explanation is not None
    assert array.explanation.startswith("ReqNodeNotAvail, ")

    odd = jobs[7]
    assert (odd.name, odd.comment) == ('name=a State=DOWN | "b"', "c, d")
    held = jobs[8]
    assert (held.reason, held.priority, held.array_job, held.het_job) == ("JobHeldUser", 0, None, None)
    failed = jobs[9]
    assert (failed.exit_code, failed.reason, failed.explanation) == (3, "NonZeroExitCode", None)
    assert (jobs[4].exit_code, jobs[4].signal) == (0, 15)


PLAIN = {
    **dict.fromkeys(JOB, "N/A"), "arrayjobid": "1", "state": "PENDING", "reason": "None", "nodelist": "",
    "numnodes": "1", "restartcnt": "0", "prioritylong": "7", "exit_code": "0:0", "reasonlist": "(None)",
}  # fmt: skip
"""The fields of a job that waits, as squeue prints them."""


def answer(number: object, **changes: str) -> bytes:
    """A record of squeue for the fields of `JOB`."""
    values = [str(number), *(PLAIN | changes).values()]
    return f"{MARK}f".join(values).encode() + f"{MARK}r\n".encode()


def holding(number: int, state: str = "PENDING", nodes: str = "", task: str = "N/A") -> bytes:
    """A record of squeue for the fields of `HOLDING`."""
    return f"{MARK}f".join([str(number), task, state, nodes]).encode() + f"{MARK}r\n".encode()


def test_a_job_that_takes_fewer_nodes_than_it_wants_needs_the_least() -> None:
    """`sbatch -N 2-4` needs two nodes only, so nobody must wait for four."""
    (job,) = parse_jobs(answer(1, numnodes="2-4"), MARK).values()
    assert job.wanted_nodes == 2


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, "12"),
        ({"array_job": 12, "array_task": "3-9%2"}, "12_[3-9%2]"),
        ({"array_job": 10, "array_task": "3"}, "10_3"),
        # squeue shortens the list, and commands do not accept that.
        ({"array_job": 12, "array_task": "1,3,..."}, "12_[1,3,...]"),
    ],
)
def test_a_jobs_id_as_squeue_writes_it(changes: dict[str, Any], written: str) -> None:
    assert job(12, **changes).slurm_id == written


@pytest.mark.parametrize(
    ("state", "seconds"),
    [("RUNNING", 60.0), ("SUSPENDED", 60.0), ("COMPLETING", 60.0), ("CONFIGURING", 60.0)]
    + [(state, None) for state in ("PENDING", "COMPLETED", "CANCELLED")],
)
def test_how_long_a_job_has_run(state: str, seconds: float | None) -> None:
    assert job(1, state, run_seconds=60.0).elapsed == seconds


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0:02", 2.0),
        ("10:15", 615.0),
        ("1:02:03", 3723.0),
        ("2-03:04:05", 183845.0),
        ("365-00:00:00", 31536000.0),
        ("1-12", 86412.0),
    ]
    + [
        (word, None)
        for word in ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit", "", "-1:00", "1:2:3:4")
    ],
)
def test_times_as_squeue_prints_them(told: str, seconds: float | None) -> None:
    found = with_details(job(1), {"timeused": told, "timelimit": told, "reservation": "(null)"})
    assert (found.run_seconds, found.time_limit, found.reservation) == (seconds or 0.0, seconds, None)
    assert with_details(job(1), {"reservation": "later"}).reservation == "later"


# As Slurm 22.05.8 prints them with SLURM_TIME_FORMAT=%s.
RESERVATIONS = (
    "ReservationName=fix StartTime=1795646527 EndTime=1795650127 Duration=01:00:00 Nodes=debug-[1-2] "
    "NodeCnt=2 CoreCnt=2 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=2 "
    "Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a "
    "MaxStartDelay=(null)\n"
    "ReservationName=later StartTime=1795647344 EndTime=1795683344 Duration=10:00:00 Nodes=(null) NodeCnt=0 "
    "CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=ada,bob Groups=(null) "
    "Accounts=lab Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null) "
    "Comment=for EndTime=1 ada Nodes=x\n"
)


def test_reservations_are_read() -> None:
    assert parse_reservations("No reservations in the system\n") == []
    assert parse_reservations(RESERVATIONS) == [
        Reservation(
            "fix",
            1795646527.0,
            1795650127.0,
            ("debug-1", "debug-2"),
            frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}),
            "root",
        ),
        Reservation("later", 1795647344.0, 1795683344.0, (), frozenset({"ANY_NODES"}), "ada,bob,lab"),
    ]


def test_the_states_of_partitions_are_read() -> None:
    told = (
        "\n".join(f"PartitionName={s.lower()} AllowGroups=ALL State={s} TotalCPUs=6" for s in STATES) + "\n"
    )
    assert parse_partition_states(told) == {state.lower(): state for state in STATES}


def test_names_with_blanks_are_told_apart() -> None:
    """Otherwise an answer about `debug` and `debug x` is refused: no status, and no reconfiguration."""
    told = (
        "PartitionName=debug AllowGroups=ALL State=UP\nPartitionName=debug x y AllowGroups=ALL State=DOWN\n"
    )
    assert parse_partition_states(told) == {"debug": "UP", "debug x y": "DOWN"}
    line = "NodeName=n RealMemory=1 State=IDLE Owner=N/A Partitions={}  BootTime=5 SlurmdStartTime=6"
    for names in (("debug",), ("debug x y", "a"), ("a b", "debug", "c d")):
        found = parse_nodes(line.format(",".join(names)))["n"]
        assert (found.partitions, found.boot_time) == (names, 5.0)
    told = "".join(f"ReservationName={name} StartTime=1 EndTime=2 Nodes=n1\n" for name in ("a", "a b", "a c"))
    assert [reservation.name for reservation in parse_reservations(told)] == ["a", "a b", "a c"]


STATES = ("UP", "DOWN", "DRAIN", "INACTIVE")


@pytest.mark.parametrize(
    ("names", "active", "over"),
    [
        ("CONFIGURING RUNNING COMPLETING SUSPENDED STOPPED RESIZING SIGNALING", True, False),
        ("PENDING REQUEUED RESV_DEL_HOLD SPECIAL_EXIT REQUEUE_HOLD", False, False),
        ("COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL", False, True),
    ],
)
def test_who_holds_nodes_and_who_has_ended(names: str, active: bool, over: bool) -> None:
    found = {state: (job(1, state).is_active, job(1, state).is_over) for state in names.split()}
    assert found == dict.fromkeys(names.split(), (active, over))


def test_why_a_job_waits_in_the_best_words_that_there_are() -> None:
    waits = {
        "reason": "Resources",
        "explanation": "Nodes required for job are DOWN",
        "admin_comment": "quota: x",
    }
    assert job(1, "PENDING", **waits).cause == "quota: x"
    assert job(1, "PENDING", **{**waits, "admin_comment": None}).cause == waits["explanation"]
    assert job(1, "PENDING", reason="Resources").cause == "Resources"
    assert job(1, "PENDING").cause is None, "Slurm has not looked at it yet"
    assert job(1, "RUNNING", **waits).cause is None


def test_tasks_that_have_not_begun_are_one_job_and_one_that_was_queued_again_is_another() -> None:
    """Output of `squeue --array`. Without the option, the fourth task is shown as not started."""
    rows = [(6, "4", 0), (6, "3", 0), (6, "7", 0), (8, "1", 1), (9, "2", 0)]
    text = b"".join(
        answer(number, arrayjobid="6", arraytaskid=task, restartcnt=str(restarts))
        for number, task, restarts in rows
    )
    jobs = parse_jobs(text, MARK)
    assert {number: (job.spelling, job.restarts) for number, job in jobs.items()} == {
        6: ("6_[3-4,7]", 0),
        8: ("6_1", 1),
        9: ("6_2", 0),
    }


def test_no_jobs() -> None:
    assert parse_jobs(b"", MARK) == {}


def test_a_record_that_is_none_hides_no_other_is_named_and_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="squeue"):
        parse_jobs(f"1{MARK}f2{MARK}r\n".encode(), MARK)
    real = answer(5)
    named: list[str] = []
    broken = [
        f"1{MARK}f2{MARK}r\n".encode(), b"x" + real, answer(8, restartcnt="-1"), answer(9, numnodes="x"),
        answer(10, state="RUN\nNING"), answer(11, nodelist="n[0-"), answer(12, nodelist="n[0-9999999]"),
        answer(13, prioritylong="9" * 21),
    ]  # fmt: skip
    found = parse_jobs(b"".join([*broken[:4], real, *broken[4:], b"x"]), MARK, leave_out=named.append)
    assert found == parse_jobs(real, MARK)
    assert len(named) == len(broken) + 1
    assert all(f"job {number} " in "".join(named) for number in range(8, 14))


@pytest.mark.parametrize(
    "second",
    [answer(5), answer(5, state="RUNNING"), answer(5, arraytaskid="3"), answer("05", restartcnt="x")],
)
def test_a_job_that_occurs_twice_refuses_the_answer(second: bytes) -> None:
    assert list(parse_jobs(answer(5) + answer(6), MARK)) == [5, 6]
    for text in (answer(5) + answer(6) + second, second + answer(5)):
        with pytest.raises(ValueError, match="job 5 occurs twice"):
            parse_jobs(text, MARK)


def test_a_task_that_occurs_twice_refuses_the_answer() -> None:
    task = answer(6, arrayjobid="6", arraytaskid="4")
    with pytest.raises(ValueError, match="job 6 occurs twice"):
        parse_jobs(task + answer(6, arrayjobid="6", arraytaskid="3") + task, MARK)


def test_the_lists_of_nodes_of_an_answer_are_bounded_together() -> None:
    """`LIMIT` alone bounds each list: 900 of them fit into a line."""
    named: list[str] = []
    lists = b"".join(answer(number, nodelist=f"n{number}x[0-399999]") for number in range(1, 9))
    same = b"".join(answer(number, nodelist="n1x[0-399999]") for number in range(20, 90))
    found = parse_jobs(lists + same, MARK, leave_out=named.append)
    assert sum(len(found[number].nodes) for number in (1, 2)) == 800_000
    assert sorted(found) == [1, 2, *range(20, 90)]
    assert len({id(found[number].nodes) for number in (1, *range(20, 90))}) == 1, "equal lists are one"
    assert len(named) == 6


def test_what_users_ask_for_by_name_is_bounded_and_hides_no_job() -> None:
    wanted = {
        1: "n[0-9999999]", 2: "n[0-3]", 3: "(null)", 4: "x y", 5: "a" * 70_000 + "[0-9]", 6: "b[0-90000]",
        7: "c[0-90000]", 8: "n4",
    }  # fmt: skip
    found = required_nodes({number: {"reqnodes": text} for number, text in wanted.items()})
    assert {number: len(nodes) for number, nodes in found.items()} == {2: 4, 6: 90_001, 8: 1}


@pytest.mark.parametrize(
    ("parse", "line", "what"),
    [
        (parse_nodes, "NodeName=a State=IDLE Partitions=x", "node 'a'"),
        (parse_partition_states, "PartitionName=a State=UP", "partition 'a'"),
        (parse_reservations, "ReservationName=a StartTime=1 EndTime=2 Nodes=n1", "reservation 'a'"),
    ],
)
def test_an_object_that_occurs_twice_refuses_the_answer(parse: Any, line: str, what: str) -> None:
    assert len(parse(f"{line}\n{line.replace('=a', '=b')}\n")) == 2
    with pytest.raises(ValueError, match=f"{what} occurs twice"):
        parse(f"{line}\n{line.replace('=a', '=b')} Comment=x\n{line} x\n")


@pytest.mark.parametrize(
    ("parse", "line"),
    [
        (parse_partition_states, "PartitionName=a {} AllowGroups=x State=UP"),
        (parse_nodes, "NodeName=a CPUTot=1 Gres={} NodeAddr=n OS=x RealMemory=1 State=IDLE Owner=N/A"),
        (parse_nodes, "NodeName=a CPUTot=1 Gres={} NodeAddr=n RealMemory=1 State=IDLE Owner=N/A"),
        (parse_reservations, "ReservationName=a StartTime=1 EndTime=2 Nodes=n1 Users={} Groups=x"),
    ],
)
@pytest.mark.parametrize("text", ["x State=DOWN PartitionName=b", "x NodeAddr=y", "x EndTime=9 Nodes=y"])
def test_a_text_of_an_administrators_that_holds_a_field_changes_none(
    parse: Any, line: str, text: str
) -> None:
    plain = parse(line.format("x"))
    with suppress(ValueError):
        found = parse(line.format(text))
        assert found == plain or replace(found["a"], gres=None) == replace(plain["a"], gres=None)
        return
    with pytest.raises(ValueError, match=r"field '\w+' occurs twice"):
        parse(line.format(text))


def test_a_user_who_has_a_node_alone_changes_nothing_of_it() -> None:
    """A name service chooses what a user is called."""
    line = "NodeName=a CPUAlloc=1 CPUTot=2 OS=x State=IDLE Owner={}(7) MCS_label=N/A Partitions=p BootTime=5"
    plain = parse_nodes(line.format("ann"))["a"]
    assert (plain.base, plain.partitions, plain.boot_time) == ("IDLE", ("p",), 5.0)
    for name in ("x State=DOWN NodeName=b", "x Partitions=q BootTime=6", "x CPUAlloc=9 CPUTot=9"):
        found = parse_nodes(line.format(name))["a"]
        assert (found.base, found.partitions, found.boot_time) == ("IDLE", ("p",), 5.0)
        assert (found.cpus_alloc, found.cpus) == (1, 2)


# Fakes of Slurm's commands, which record their arguments.
@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("scontrol", "scancel", "squeue"):
        _tool(tmp_path, name, "true")
    monkeypatch.setattr("node.slurm.environment.PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _tool(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"""#!/bin/sh
{{ printf '[%s]' "$@"; echo; }} >>{folder}/calls
env >{folder}/env
{body}
""")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def _calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_nothing_of_the_callers_environment_is_inherited(spy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    control = Control("/x/slurm.conf")
    for call in (control.nodes, control.jobs, lambda: control.cancel([1]), lambda: control.outputs([1])):
        call()
        seen = dict(line.split("=", 1) for line in (spy / "env").read_text().splitlines())
        for name in ("PWD", "SHLVL", "_", "OLDPWD"):  # the fake's shell sets these
            seen.pop(name, None)
        seen.pop("SQUEUE_FORMAT2", None)
        assert seen == of_ours("/x/slurm.conf")


def test_the_mark_between_texts_is_new_each_time_and_no_argument(spy: Path) -> None:
    marks = set()
    for _ in range(2):
        Control("/x").outputs([1, 2])
        seen = dict(line.split("=", 1) for line in (spy / "env").read_text().splitlines())
        mark = seen["SQUEUE_FORMAT2"].partition(":")[2].partition("f,")[0]
        assert seen["SQUEUE_FORMAT2"] == squeue_format(OUTPUT, mark)
        assert len(mark) == 33
        assert mark not in (spy / "calls").read_text()
        marks.add(mark)
    assert len(marks) == 2
    assert _calls(spy)[-1] == "[--noheader][--all][--states=all][--jobs=1,2]"


def test_updates_of_many_nodes_are_few_commands(spy: Path) -> None:
    # The names cannot be folded, so that the argument's length matters.
    names = [f"{i}n" for i in range(BATCH + 1)]
    Control("/x").update_node(names, state="DOWN", reason="a\n b")
    calls = _calls(spy)
    assert len(calls) == 2
    assert all(
        call.startswith("[update][NodeName=") and call.endswith("[State=DOWN][Reason=a b]") for call in calls
    )
    assert sum(call.count(",") + 1 for call in calls) == BATCH + 1


def test_no_nodes_no_command(spy: Path) -> None:
    Control("/x").update_node([], state="DOWN")
    Control("/x").cancel([])
    assert not (spy / "calls").exists()


def test_commands(spy: Path) -> None:
    control = Control("/x")
    control.power_down_force(["n1", "n2"], "gone")
    control.undrain({"n1": node("n1", "IDLE", "DRAIN"), "n2": node("n2", "MIXED", "DRAIN")})
    control.power_up(["n1"])
    control.update_job(7, admin_comment="why")
    control.update_job(7, start_now=True)
    control.update_job(7, dependency="afterok:6")
    control.requeue(7)
    control.cancel([7, 8])
    control.reconfigure()
    assert _calls(spy) == [
        "[update][NodeName=n[1-2]][State=POWER_DOWN_FORCE][Reason=gone]",
        "[update][NodeName=n1][State=IDLE]",
        "[update][NodeName=n2][State=UNDRAIN]",
        "[update][NodeName=n1][State=POWER_UP]",
        "[update][JobId=7][AdminComment=why]",
        "[update][JobId=7][StartTime=now]",
        "[update][JobId=7][Dependency=afterok:6]",
        "[requeue][7]",
        "[--quiet][7][8]",
        "[reconfigure]",
    ]
    with pytest.raises(ValueError, match="nothing"):
        control.update_node(["a"])
    with pytest.raises(ValueError, match="nothing"):
        control.update_job(1)


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_node error: Unable to contact slurm controller (connect failure)",
        "scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation",
        "error: slurm_msg_sendto: address:port=127.0.0.1:6817 msg_type=4003: Unexpected missing socket error",
        "error: slurm_msg_sendto: address:port=127.0.0.1:6817 msg_type=5042: Broken pipe",
    ],
)
def test_a_controller_that_does_not_answer(spy: Path, text: str) -> None:
    _tool(spy, "scontrol", f"echo '{text}' >&2; exit 1")
    with pytest.raises(SlurmDown) as error:
        Control("/x").nodes()
    assert (error.value.status, error.value.stderr) == (1, text)
    assert not Control("/x").ping()


def test_a_refusal_says_the_command_and_the_words(spy: Path) -> None:
    _tool(spy, "scontrol", "echo 'Invalid node name specified' >&2; exit 1")
    with pytest.raises(SlurmError, match="scontrol update NodeName=x State=DOWN: Invalid node name") as error:
        Control("/x").update_node(["x"], state="DOWN")
    assert not isinstance(error.value, SlurmDown)


def test_a_command_that_hangs_is_ended(spy: Path) -> None:
    _tool(spy, "scontrol", "exec sleep 30")
    with pytest.raises(SlurmDown, match=r"within 0\.3 s") as error:
        Control("/x", timeout=0.3).nodes()
    assert error.value.status is None


def test_a_command_that_is_not_there(spy: Path) -> None:
    with pytest.raises(SlurmError, match="no-such-command-of-slurm") as error:
        Control("/x").run("no-such-command-of-slurm")
    assert not isinstance(error.value, SlurmDown)


def test_the_format_has_no_width() -> None:
    """Widths would cut node lists and comments."""
    assert squeue_format(JOB_TEXTS, "mark") == "jobid:markf,name:markf,comment:markf,admin_comment:markr"


def test_an_answer_that_names_a_job_twice_is_an_error_and_one_left_out_is_named_once(
    spy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = "mark=${SQUEUE_FORMAT2#jobid:}; mark=${mark%%f,*}"
    records = spy / "records"
    _tool(spy, "squeue", f'{mark}; sed "s/{MARK}/$mark/g" {records}')
    records.write_bytes(holding(5, "RUNNING", "a") + holding(6, "RUNNING", "a b"))
    control = Control("/x")
    for _ in range(2):
        assert control.working_jobs() == {5}
    assert capfd.readouterr().err.count("job 6 is left out: 'a b' is not names") == 1
    records.write_bytes(holding(5) + holding(5))
    with pytest.raises(SlurmAnswerError, match="job 5 occurs twice"):
        control.working_jobs()
    records.write_bytes(answer(5, state="RUNNING"))
    with pytest.raises(SlurmAnswerError, match="no job's record"):
        control.working_jobs()
    records.write_bytes(b"")
    assert control.working_jobs() == set()


@pytest.mark.parametrize("nodes", ["", "debug-0"])
@pytest.mark.parametrize(
    "word", ["PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "FAILED", "NEW"]
)
def test_few_fields_tell_which_jobs_hold_nodes(word: str, nodes: str) -> None:
    (job,) = parse_jobs(answer(7, state=word, nodelist=nodes), MARK).values()
    assert parse_working(holding(7, word, nodes), MARK) == ({7} if job.has_work else set())


def test_the_tasks_of_an_array_that_have_not_started_hold_no_nodes() -> None:
    tasks = (
        holding(7, "PENDING", task="0") + holding(7, "PENDING", task="1") + holding(8, "RUNNING", "a", "2")
    )
    assert parse_working(tasks, MARK) == {8}


def test_an_answer_that_is_too_long_ends_its_program(spy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.slurm.control.ANSWER_BYTES", 1 << 16)
    _tool(spy, "squeue", "sleep 0.2; exec head -c 9999999 /dev/zero")
    with pytest.raises(SlurmAnswerError, match="its answer is longer than 65536 bytes"):
        Control("/x").jobs()
