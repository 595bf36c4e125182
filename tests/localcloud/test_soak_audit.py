"""The soak test's audit distinguishes injected faults from real errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.slurm.states import NodeState
from tests.support.soak import audit, sharing
from tests.support.soak.journal import Fault, Journal, Task

BEGAN = 1_000_000.0


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.close()


@pytest.fixture
def task(journal: Journal) -> Callable[..., Task]:
    """A task that was over in a state, and its script's notes: (word, seconds after BEGAN)."""

    def make(state: str, *notes: tuple[str, float], requeue: bool = True) -> Task:
        name = f"soak-{len(journal.tasks)}"
        made = Task(name, None, "debug", 1, 5.0, requeue, BEGAN, job=7, states=[(BEGAN, state)])
        made.over, made.there = state not in ("RUNNING", "PENDING"), True
        journal.tasks[made.key] = made
        counts = [sum(word == "start" for word, _ in notes[: n + 1]) - 1 for n in range(len(notes))]
        lines = [
            f"{word} {BEGAN + after} debug-[1-2] {count}\n"
            for (word, after), count in zip(notes, counts, strict=True)
        ]
        (journal.notes / made.key).write_text("".join(lines))
        return made

    return make


def fault(journal: Journal, kind: str, after: float, node: str | None = None, lasts: float = 0.0) -> None:
    journal.faults.append(Fault(BEGAN + after, kind, node, "", BEGAN + after + lasts))


def test_a_job_that_ran_to_its_end_is_completed(journal: Journal, task: Callable[..., Task]) -> None:
    task("COMPLETED", ("start", 0), ("end", 5))
    assert audit.outcomes(journal) == {"completed": 1}
    assert audit.broken_runs(journal) == {}
    assert journal.findings == []


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "PENDING", "RUNNING"])
def test_a_job_that_did_not_and_that_nobody_stopped_is_lost(
    journal: Journal, task: Callable[..., Task], state: str
) -> None:
    task(state)
    assert audit.outcomes(journal) == {"lost": 1}
    assert len(journal.findings) == 1


def test_a_job_that_slurm_took_and_never_showed_is_lost(journal: Journal, task: Callable[..., Task]) -> None:
    task("PENDING").states.clear()
    assert audit.outcomes(journal) == {"lost": 1}


@pytest.mark.parametrize(
    ("kind", "after", "reason", "outcome"),
    [
        ("preempt", -5.0, "BadConstraints", "kept by Slurm as BadConstraints, as reliability.md says"),
        ("slurmctld", -5.0, "BadConstraints", "kept by Slurm as BadConstraints, as reliability.md says"),
        ("preempt", -60.0, "BadConstraints", "lost"),
        ("preempt", 1.0, "BadConstraints", "lost"),
        ("elastic", -5.0, "BadConstraints", "lost"),
        ("preempt", -5.0, "Resources", "lost"),
    ],
)
def test_a_job_that_slurm_keeps_is_lost_unless_its_machine_had_just_died(
    journal: Journal, task: Callable[..., Task], kind: str, after: float, reason: str, outcome: str
) -> None:
    made = task("PENDING")
    made.states = [(BEGAN, "RUNNING"), (BEGAN + 12, "PENDING")]
    made.reason = reason
    fault(journal, kind, after, "debug-1")
    assert audit.outcomes(journal) == {outcome: 1}
    assert len(journal.findings) == (outcome == "lost")


def test_a_cancelled_job_is_no_loss(journal: Journal, task: Callable[..., Task]) -> None:
    task("CANCELLED", ("start", 0), ("term", 3)).cancelled.append((BEGAN + 2, BEGAN + 3))
    assert audit.outcomes(journal) == {"cancelled": 1}
    assert audit.broken_runs(journal) == {"cancelled": 1}
    assert journal.findings == []


def test_a_run_that_was_cut_off_without_a_cause_is_a_finding(
    journal: Journal, task: Callable[..., Task]
) -> None:
    task("COMPLETED", ("start", 0), ("start", 20), ("end", 25))
    fault(journal, "kill", 5, "debug-3")
    fault(journal, "kill", -60, "debug-1")
    assert audit.outcomes(journal) == {"completed": 1}
    assert audit.broken_runs(journal) == {"no cause": 1}
    assert "nobody asked for it: soak-0 (job 7) on debug-[1-2]" in journal.findings[0]


def test_the_death_of_any_of_its_machines_is_a_cause(journal: Journal, task: Callable[..., Task]) -> None:
    task("COMPLETED", ("start", 0), ("start", 20), ("end", 25))
    fault(journal, "kill", 5, "debug-2")
    assert audit.broken_runs(journal) == {"kill": 1}
    assert audit.recoveries(journal) == [15.0]
    assert journal.findings == []


def test_a_machine_is_taken_when_its_notice_has_run_out(journal: Journal, task: Callable[..., Task]) -> None:
    fault(journal, "preempt", -10, "debug-1", lasts=15)
    task("COMPLETED", ("start", 0), ("start", 20), ("end", 25))
    assert audit.broken_runs(journal) == {"preempt": 1}


def test_a_command_that_took_long_ends_a_run_as_long_as_it_lasts(
    journal: Journal, task: Callable[..., Task]
) -> None:
    task("COMPLETED", ("start", 0), ("term", 4), ("start", 20), ("end", 25)).requeued.append(
        (BEGAN - 6, BEGAN + 4)
    )
    assert audit.broken_runs(journal) == {"requeued": 1}
    task("COMPLETED", ("start", 0), ("term", 4), ("start", 20), ("end", 25)).requeued.append(
        (BEGAN - 6, BEGAN - 5)
    )
    assert audit.broken_runs(journal) == {"requeued": 1, "no cause": 1}


def test_a_run_on_a_dead_machine_has_its_cause_until_the_node_has_another(
    journal: Journal, task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.faults.append(Fault(BEGAN - 12, "kill", "debug-1", "", BEGAN - 12, machine="m-1"))
    now = iter([BEGAN - 1, BEGAN + 6])
    monkeypatch.setattr(time, "time", lambda: next(now))
    audit.machines_now(journal, [{"id": "m-2", "node": "debug-2"}], 2)
    audit.machines_now(journal, [{"id": "m-3", "node": "debug-1"}], 2)
    monkeypatch.undo()
    task("COMPLETED", ("start", 0), ("start", 5), ("start", 20), ("end", 25))
    assert audit.broken_runs(journal) == {"kill": 1, "no cause": 1}
    assert "faults near it: 999988.0 kill debug-1" in journal.findings[0]


@pytest.mark.parametrize(
    ("kind", "after", "cause"),
    [
        ("slurmctld", 3.0, "slurmctld, and forgotten"),
        ("slurmctld", -5.0, "slurmctld, and forgotten"),
        ("slurmctld", 8.0, "no cause"),
        ("slurmctld", -8.0, "no cause"),
        ("slurmd", 1.5, "slurmd, at its start"),
        ("slurmd", 5.0, "no cause"),
        ("elastic", 1.0, "no cause"),
    ],
)
def test_a_daemon_that_was_killed_as_a_run_began_is_a_cause(
    journal: Journal, task: Callable[..., Task], kind: str, after: float, cause: str
) -> None:
    task("COMPLETED", ("start", 0), ("start", 20), ("end", 25))
    fault(journal, kind, after)
    assert audit.broken_runs(journal) == {cause: 1}
    assert bool(journal.findings) is (cause == "no cause")


def test_no_requeue_excuses_a_job_only_where_its_machine_died(
    journal: Journal, task: Callable[..., Task]
) -> None:
    task("NODE_FAIL", ("start", 0), requeue=False)
    assert audit.outcomes(journal) == {"lost": 1}
    fault(journal, "freeze", 2, "debug-1")
    assert audit.outcomes(journal) == {"--no-requeue, and its machine died": 1}


def test_what_slurm_forgot_when_it_was_killed_is_known(journal: Journal, task: Callable[..., Task]) -> None:
    ghost = task("RUNNING", ("start", 0), ("end", 5))
    assert not audit.is_ghost(journal, ghost)
    fault(journal, "slurmctld", 8)
    assert audit.is_ghost(journal, ghost)
    ghost.ghost = True
    assert audit.outcomes(journal) == {"completed, and forgotten by Slurm when it was killed": 1}


@pytest.mark.parametrize(
    ("kind", "state", "after", "outcome"),
    [
        (
            "slurmctld",
            "FAILED",
            4.0,
            "queued again by its user, and forgotten by Slurm, as reliability.md says",
        ),
        (
            "head",
            "FAILED",
            2.5,
            "queued again by its user, and forgotten by Slurm, as reliability.md says",
        ),
        ("slurmctld", "FAILED", 1.0, "lost"),
        ("slurmctld", "FAILED", 12.0, "lost"),
        ("slurmctld", "PENDING", 4.0, "lost"),
        ("elastic", "FAILED", 4.0, "lost"),
    ],
)
def test_only_a_requeue_of_its_user_may_be_forgotten(
    journal: Journal, task: Callable[..., Task], kind: str, state: str, after: float, outcome: str
) -> None:
    """The elastic daemon repeats its own, so a job on a machine that is taken back is lost without that."""
    made = task(state, ("start", 0), ("term", 3))
    fault(journal, "preempt", 2, "debug-1")
    fault(journal, kind, after)
    assert audit.outcomes(journal) == {"lost": 1}
    made.requeued.append((BEGAN + 2, BEGAN + 3))
    assert audit.outcomes(journal) == {outcome: 1}


def test_machines_and_nodes(journal: Journal) -> None:
    audit.machines_now(journal, [{"node": "debug-0"}, {"node": "debug-1"}], 2)
    assert journal.findings == []
    audit.machines_now(journal, [{"node": "debug-0"}, {"node": "debug-0"}, {"node": "debug-1"}], 2)
    assert journal.findings == ["3 machines at once, more than 2", "2 machines of debug-0 at once"]
    assert journal.peak == 3

    off = NodeState("debug-0", "IDLE", frozenset({"CLOUD", "POWERED_DOWN"}), "slurm-stacks an old reason")
    assert audit.stuck({"debug-0": off}) == []
    for base, flags in (
        ("IDLE", {"POWERED_DOWN", "DRAIN"}),
        ("IDLE", {"POWERED_DOWN", "NOT_RESPONDING"}),
        ("DOWN", {"POWERED_DOWN"}),
        ("IDLE", set()),
    ):
        assert len(audit.stuck({"debug-0": NodeState("debug-0", base, frozenset(flags))})) == 1


def test_a_run_still_under_way_counts_until_now(journal: Journal, task: Callable[..., Task]) -> None:
    made = task("RUNNING", ("start", 0))
    (run,) = journal.runs(made)
    assert run.nodes == ("debug-1", "debug-2")
    assert run.end is None
    assert abs(run.until - time.time()) < 60


def test_gpus_that_are_counted_as_used_without_a_job_are_a_finding() -> None:
    nodes = [
        NodeState("gpu-0", "IDLE"),
        NodeState("gpu-1", "ALLOCATED", cpus_alloc=2, gres_used=2),
        NodeState("gpu-2", "IDLE", gres_used=2),
    ]
    assert audit.leaked({node.name: node for node in nodes}) == ["gpu-2 uses 2"]


def repeated(journal: Journal) -> dict[str, int]:
    return dict(audit.repeated_runs(journal))


TWICE = (("start", 0.0), ("end", 20.0), ("start", 60.0), ("end", 80.0))


def test_what_had_ended_and_runs_again_without_a_cause_is_a_finding(
    journal: Journal, task: Callable[..., Task]
) -> None:
    task("COMPLETED", *TWICE)
    fault(journal, "kill", 30, "debug-1")
    fault(journal, "kill", 10, "debug-3")
    fault(journal, "elastic", 19)
    assert repeated(journal) == {"no cause": 1}
    assert "a job ran twice, and Slurm had no reason: soak-0 (job 7" in journal.findings[0]


@pytest.mark.parametrize(
    ("kind", "after", "node", "cause"),
    [
        ("head", 22.0, None, "its end was forgotten"),
        ("slurmctld", 26.0, None, "its end was forgotten"),
        ("head", 3.0, None, "its start was forgotten"),
        ("slurmctld", -1.0, None, "its start was forgotten"),
        ("kill", 21.0, "debug-2", "kill"),
        ("preempt", 10.0, "debug-1", "preempt"),
        ("head", 28.0, None, "no cause"),
        ("head", 10.0, None, "no cause"),
    ],
)
def test_slurm_runs_again_what_it_had_not_saved_and_what_it_queued_again(
    journal: Journal, task: Callable[..., Task], kind: str, after: float, node: str | None, cause: str
) -> None:
    task("COMPLETED", *TWICE)
    fault(journal, kind, after, node)
    assert repeated(journal) == {cause: 1}


def test_a_second_run_without_a_requeue_has_no_cause(journal: Journal, task: Callable[..., Task]) -> None:
    made = task("COMPLETED", *TWICE)
    fault(journal, "kill", 21, "debug-2")
    notes = journal.notes / made.key
    notes.write_text(notes.read_text().replace("debug-[1-2] 1\n", "debug-[1-2] 0\n"))
    assert repeated(journal) == {"no cause": 1}


def test_an_end_that_nobody_heard_is_told_to_the_successor(
    journal: Journal, task: Callable[..., Task]
) -> None:
    """A node that dies before it has told the new controller of a job's end: Slurm queues the job again."""
    task("COMPLETED", *TWICE)
    fault(journal, "kill", 45, "debug-2")
    assert repeated(journal) == {"no cause": 1}
    fault(journal, "head", 12, lasts=15)
    assert repeated(journal) == {"kill": 1}


def test_the_accounting_has_the_end_of_every_job(journal: Journal, task: Callable[..., Task]) -> None:
    task("COMPLETED", ("start", 0), ("end", 5))
    task("CANCELLED")
    assert audit.unrecorded(journal, {"soak-0": ["REQUEUED", "COMPLETED"]}) == []
    assert audit.unrecorded(journal, {"soak-0": ["RUNNING"]}) == [
        "soak-0 (job 7) is completed, and sacct has: RUNNING"
    ]
    assert audit.unrecorded(journal, {}) == ["soak-0 (job 7) is completed, and sacct has: none"]
    task("FAILED", ("start", 0), ("term", 5))
    left = {"soak-0": ["COMPLETED"], "soak-2": ["RUNNING"]}
    assert audit.unrecorded(journal, left) == ["soak-2 (job 7) is over, and sacct has it as RUNNING"]


def test_a_requeue_that_slurm_forgot_leaves_a_record(journal: Journal, task: Callable[..., Task]) -> None:
    made = task("CANCELLED", ("start", 0))
    made.states = [(BEGAN, "RUNNING"), (BEGAN + 20, "PENDING"), (BEGAN + 40, "CANCELLED")]
    states = {made.key: ["REQUEUED", "PENDING", "CANCELLED"]}
    finding = ["soak-0 (job 7) is over, and sacct has it as PENDING"]
    assert audit.unrecorded(journal, states) == finding
    fault(journal, "slurmctld", 35)
    assert audit.unrecorded(journal, states) == finding, "it had saved the requeue"
    fault(journal, "slurmctld", 24)
    assert audit.unrecorded(journal, states) == []
    running = {made.key: ["RUNNING", "CANCELLED"]}
    assert audit.unrecorded(journal, running) == ["soak-0 (job 7) is over, and sacct has it as RUNNING"]


def test_a_machine_that_dies_before_it_tells_the_successor_of_an_end_costs_a_job_that_may_not_run_again(
    journal: Journal, task: Callable[..., Task]
) -> None:
    task("NODE_FAIL", ("start", 0), ("end", 15), requeue=False)
    fault(journal, "cut", 56, "debug-1")
    assert audit.outcomes(journal) == {"lost": 1}
    fault(journal, "head", 13, lasts=36)
    assert audit.outcomes(journal) == {"--no-requeue, and its machine died": 1}


def test_a_requeue_that_comes_after_the_end_is_a_cause(journal: Journal, task: Callable[..., Task]) -> None:
    made = task("COMPLETED", *TWICE)
    made.requeued.append((BEGAN + 26, BEGAN + 27))
    assert repeated(journal) == {"requeued": 1}
    made.requeued[:] = [(BEGAN + 61, BEGAN + 62)]
    assert repeated(journal) == {"no cause": 1}


# --- jobs that make way -----------------------------------------------------------------------------------

LOG = """\
[2026-01-02T03:04:05.678] sched: Allocate JobId=7 NodeList=debug-0 #CPUs=1 Partition=debug
[2026-01-02T03:04:06.500] preempted JobId=7 has been requeued to reclaim resources for JobId=12
[2026-01-02T03:04:07.000] preempted JobId=9_3(11) has been killed to reclaim resources for JobId=13_1(14)
[2026-01-02T03:04:08.000] slurm_job_preempt: preempted JobId=15_0(16) had to be killed
"""
LOW, URGENT = ("--account=rest",), ("--account=interactive",)


def made_way(journal: Journal, job: str, other: str | None, after: float) -> None:
    sharing.take_in(journal, [sharing.MadeWay(BEGAN + after, job, other)])


def test_slurmctlds_log_says_who_made_way(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    assert sharing.read(log) == []
    log.write_text(LOG)
    made = sharing.read(log)
    assert [(one.job, one.other) for one in made] == [("7", "12"), ("9_3", "13_1"), ("15_0", None)]
    assert made[1].at - made[0].at == pytest.approx(0.5)


def test_a_job_that_makes_way_is_no_loss_and_runs_again(journal: Journal, task: Callable[..., Task]) -> None:
    low = task("COMPLETED", ("start", 0), ("term", 3), ("start", 20), ("end", 25))
    urgent = task("COMPLETED", ("start", 4), ("end", 9))
    low.job, low.options = "9_3", LOW
    urgent.array, urgent.index, urgent.options = 13, 1, URGENT
    made_way(journal, "9_3", "13_1", 3.0)
    assert audit.broken_runs(journal) == {"made way for another job": 1}
    assert repeated(journal) == {}
    assert journal.findings == []


def test_a_job_that_may_not_be_queued_again_ends_when_it_makes_way(
    journal: Journal, task: Callable[..., Task]
) -> None:
    low = task("PREEMPTED", ("start", 0), ("term", 3), requeue=False)
    low.options = LOW
    assert audit.outcomes(journal) == {"lost": 1}
    made_way(journal, "7", None, 3.0)
    assert audit.outcomes(journal) == {"--no-requeue, and made way for another job": 1}
    low.requeue = True
    assert audit.outcomes(journal) == {"lost": 1}, "it had to be queued again"


@pytest.mark.parametrize(("after", "outcome"), [(4.0, "made way"), (1.0, "lost"), (12.0, "lost")])
def test_slurm_may_forget_that_a_job_made_way(
    journal: Journal, task: Callable[..., Task], after: float, outcome: str
) -> None:
    task("FAILED", ("start", 0), ("term", 3)).made_way.append((BEGAN + 2, BEGAN + 2))
    fault(journal, "slurmctld", after)
    (found,) = audit.outcomes(journal)
    assert found.startswith(outcome)


@pytest.mark.parametrize(
    ("options", "other", "wrong"),
    [(LOW, URGENT, 0), (("--qos=low",), URGENT, 0), (LOW, LOW, 1), ((), URGENT, 1), (URGENT, URGENT, 1)],
)
def test_who_makes_way_and_for_whom_is_their_qos(
    journal: Journal,
    task: Callable[..., Task],
    options: tuple[str, ...],
    other: tuple[str, ...],
    wrong: int,
) -> None:
    for number, words in ((7, options), (8, other)):
        made = task("COMPLETED", ("start", 0), ("end", 5))
        made.job, made.options = number, words
    made_way(journal, "7", "8", 3.0)
    assert len(journal.findings) == wrong
    made_way(journal, "7", "99", 3.0)
    assert len(journal.findings) == wrong + 1


def test_what_stays_counted_against_a_limit_is_a_finding() -> None:
    text = """\
ClusterName=test Account=rest UserName= Partition= Priority=0 ID=5
    GrpJobs=8(2) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(16.47)
    GrpTRES=cpu=N(0),node=N(0),gres/gpu=4(1),gres/gpu:v100=N(0)
    GrpTRESMins=cpu=N(40),node=N(40)
QOS=urgent(4)
    GrpJobs=N(0) GrpJobsAccrue=N(3)
    GrpSubmitJobs=N(1) GrpWall=N(1.00)
"""
    assert sharing.used(text) == [
        "ClusterName=test Account=rest: GrpJobs=2",
        "ClusterName=test Account=rest: gres/gpu=1",
        "QOS=urgent(4): GrpSubmitJobs=1",
    ]
