"""Every word that Slurm has for a job's state, and one that it has not, before every reader of jobs.

A job that is held, signalled or resized is a job. Who takes it for one that is over destroys it unasked.
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli.changes import jobs, table
from cli.changes.decision import ClusterControl, drain
from cli.commands.operate import _keeps_nodes
from cli.commands.sweep.plan import PlannedRun
from cli.commands.sweep.watch import _live_row
from cli.console.jobs import situation
from cli.console.status import show_status
from infra.effects import Kind
from node import benchmark, sweep
from node.backup import restore_boot, take
from node.elastic.budget import Budget
from node.elastic.budget_enforcer import BudgetEnforcer
from node.elastic.daemon import Elastic
from node.elastic.ledger import Ledger
from node.elastic.pending_jobs import fitting, job_changes, runs
from node.elastic.plan import Action
from node.elastic.reconfiguration import Reconfiguration
from node.elastic.requeue import Requeue
from node.elastic.requeue_memory import RequestedRequeue, RequeueMemory
from node.elastic.rules import TAKEN, Verb
from node.elastic.state_flush import StateFlush
from node.logs.job_facts import facts
from node.slurm import reasons, reservations
from node.slurm.answers import parse_working
from node.slurm.phases import Phase, holding_line, phase
from node.slurm.states import JobState
from node.system import foreign
from tests.support.checkout import ROOT
from tests.support.doubles import FakeControl, FakeDriver, fast_design, job, node, settings
from tests.support.job_lines import listing, record, told

RELEASES = json.loads((ROOT / "tests" / "node" / "data" / "slurm_job_states.json").read_text())["releases"]
KNOWN = sorted(
    {word for release in RELEASES.values() for word in release["words"] + release["flags_without_a_word"]}
)
UNKNOWN = "A_WORD_OF_2030"
OVER = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
    "OUT_OF_MEMORY", "REVOKED",
}  # fmt: skip
"""The ends of squeue(1). A REVOKED job is another cluster's: none of this one's nodes are for it."""
WAITING = {"PENDING", "RESV_DEL_HOLD", "SPECIAL_EXIT", "REQUEUE_HOLD"}
HOLDING = {
    "CONFIGURING": Phase.STARTING,
    "POWER_UP_NODE": Phase.STARTING,
    "RUNNING": Phase.RUNNING,
    "SUSPENDED": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "STAGE_OUT": Phase.STAGING_OUT,
    "COMPLETING": Phase.COMPLETING,
}
"""The words of a job that has nodes."""
EITHER = {
    "REQUEUED", "REQUEUE_FED", "EXPEDITING", "LAUNCH_FAILED", "UPDATE_DB", "RECONFIG_FAIL", "GETENV_FAILED",
    "?", UNKNOWN,
}  # fmt: skip
"""The words that tell nothing of the base state: whether the job has nodes does."""
# What squeue can show: the word, whether it shows nodes, and what the job does.
SHOWN = [
    *((word, nodes, Phase.OVER) for word in sorted(OVER) for nodes in (False, True)),
    *((word, False, Phase.WAITING) for word in sorted(WAITING)),
    *((word, True, phase) for word, phase in HOLDING.items()),
    *((word, True, Phase.RUNNING) for word in sorted(EITHER)),
    *((word, False, Phase.WAITING) for word in sorted(EITHER)),
]
ONE = "debug-0"


def shown(word: str, nodes: bool, **changes: Any) -> JobState:
    held = {"user": "ann", "start_time": 5.0 if nodes else None, **changes}
    return job(7, word, nodes=(ONE,) if nodes else (), **held)


def test_the_table_has_every_word_of_every_release() -> None:
    assert list(RELEASES) == ["22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"]
    assert set(KNOWN) == OVER | WAITING | set(HOLDING) | EITHER - {UNKNOWN}
    assert all("?" in release["words"] and len(release["words"]) >= 25 for release in RELEASES.values())


# --- the readers -----------------------------------------------------------------------------------------


def states(one: JobState, _: Path) -> Phase:
    assert one.is_active == (one.elapsed is not None)
    assert [one.is_pending, one.is_active, one.is_over].count(True) == 1
    assert one.is_starting + one.is_running <= one.is_active
    return one.phase


def line_of(one: JobState) -> str:
    """The job in the listing that `up` and `down` read, and its end far from its start."""
    times = "0:09,1795854041,1795854050"
    return listing(record("7", "ann", "debug", ",".join(one.nodes), f"{one.state},{times}", "(null)", "x"))


def changes(one: JobState, _: Path) -> Phase:
    """What `up` refuses, names or ends."""
    found = jobs.parse(line_of(one))
    removed = table.Change("nodes.max", "debug", Kind.ENDS, "2", "1", partition="debug")
    if not found:
        return Phase.OVER
    assert removed.costs(found[0]) == (not found[0].over) == (one.phase is not Phase.COMPLETING)
    assert found[0].pending == (found[0].phase is Phase.WAITING)
    return found[0].phase


def down(one: JobState, _: Path) -> Phase:
    asked: list[str] = []
    lines: list[str] = []

    def run(line: str, _seconds: float) -> str:
        lines.append(line)
        return line_of(one)

    drain(ClusterControl(run), "test", lambda _: None, lambda found: asked.extend(j.id for j in found))
    if not asked:  # a job that completes has nothing to lose
        return one.phase if one.phase is Phase.COMPLETING else Phase.OVER
    return one.phase if ("scancel" in lines[-1]) == one.is_active else Phase.OVER


def waiting_for_the_end(one: JobState, tmp_path: Path) -> Phase:
    """Whether `wait_line` takes the job for one that holds nodes."""
    line = holding_line('"$JOBS"')
    listed = f"70|PENDING|\n7|{one.state}|{','.join(one.nodes)}\n8|RUNNING|debug-1"
    ids = subprocess.run(["sh", "-c", line], env={"JOBS": listed}, text=True, capture_output=True, check=True)
    return one.phase if ids.stdout.split() == (["7"] if one.is_active else []) + ["8"] else Phase.OVER


def status(one: JobState, tmp_path: Path) -> Phase:
    control = FakeControl([node(ONE, "ALLOCATED", "CLOUD")], [one])
    found = Elastic(settings(tmp_path, fast_design()), control, FakeDriver(), tmp_path).status()
    if not found["jobs"]:
        return Phase.OVER
    (entry,) = found["jobs"]
    assert (entry["cause"] is not None) == (entry["elapsed_seconds"] is None) == one.is_pending
    assert _keeps_nodes(entry) == (one.phase not in (Phase.WAITING, Phase.COMPLETING))
    show_status(found)
    assert "Resources" not in situation({"job": entry, "progress": None}) or one.is_pending
    row = _live_row(PlannedRun(1, 1, 1, "x"), {"job": {**entry, "alive": True}, "progress": None})
    assert (row.phase == "waits") == one.is_pending
    assert (row.phase == "starts") == one.is_starting
    return one.phase


def logs(one: JobState, _: Path) -> Phase:
    lines = facts(one)
    if any(line.startswith("waits: ") for line in lines):
        return Phase.WAITING
    return Phase.OVER if "exit code 0" in " ".join(lines) or "never ran" in " ".join(lines) else one.phase


def backup(one: JobState, tmp_path: Path) -> Phase:
    control = FakeControl([], [one])
    (tmp_path / "job_state").touch()
    number = take._saved(control, tmp_path)
    assert (control.saves == [7]) == bool(number)
    return one.phase if number else Phase.OVER


def restored(one: JobState, _: Path) -> Phase:
    """Whose nodes are taken from them after a restore, and how many wait."""
    control = FakeControl([node(ONE, "ALLOCATED", "CLOUD")], [one])
    real = control.update_node

    def update(*arguments: Any, **changed: Any) -> None:
        real(*arguments, **changed)
        control.queue.clear()

    control.update_node = update  # type: ignore[method-assign]
    lost = restore_boot.release_lost_nodes(control, 1e12)
    assert sum(j.is_pending for j in control.jobs().values()) == (1 if one.is_pending else 0)
    return one.phase if bool(lost) == one.is_active else Phase.OVER


def runs_of_a_benchmark(one: JobState, tmp_path: Path) -> Phase:
    mine = job(7, one.state, nodes=one.nodes, comment=f"{benchmark.MARK}a/b", user=foreign.name(0))
    alive = sweep._benchmarks({7: mine})
    run = benchmark.Run(settings(tmp_path), FakeControl([], [mine]), "a/b")
    assert bool(alive) == (not one.is_over)
    assert run.show({7: mine})["job"] is None or run.show({7: mine})["job"]["alive"] == bool(alive)
    return one.phase if alive else Phase.OVER


def capacity(one: JobState, _: Path) -> Phase:
    known = runs([one], {})
    if one.is_starting or one.is_running:
        assert known[7].launched == one.is_running
    else:
        assert known == {}
    assert fitting(one, {}, 0.0) == []
    told = job(7, one.state, nodes=one.nodes, admin_comment="quota: 1 of 1 (x); ask for more")
    assert [change.comment for change in job_changes([told], {}, {}, 0.0)] in ([""], [])
    control = FakeControl([node(ONE)], [one])
    StateFlush(control).see(control.state, [one])
    assert (7 in control.saves) == one.is_running
    return one.phase


def evacuation(one: JobState, tmp_path: Path) -> Phase:
    """Who is queued again when its machine is taken back."""
    control = FakeControl([node(ONE, "ALLOCATED")], [one])
    requeue = Requeue(control, tmp_path / "requeues")
    requeue.evacuate([Action(Verb.EVACUATE, ONE, None, TAKEN)], control.nodes())
    assert (("requeue", 7) in control.calls) == (one.is_starting or one.is_running)
    assert bool(requeue.requeueable_jobs([ONE])) == one.is_active
    return one.phase


def forgotten_requeues(one: JobState, tmp_path: Path) -> Phase:
    memory = RequeueMemory(tmp_path / "requeues")
    memory.expect({7: RequestedRequeue(0, 1.0, ONE, "x", acknowledged=True)})
    forgotten = memory.forgotten({7: one})
    assert bool(forgotten) == (one.is_over and one.state != "CANCELLED")
    return one.phase if not forgotten or one.is_over else Phase.OVER


def reconfiguration(one: JobState, tmp_path: Path) -> Phase:
    seen = Reconfiguration(FakeControl([], [one]), tmp_path)._scripts()
    assert seen == (one.is_starting or one.phase is Phase.COMPLETING)
    return one.phase


def budget(one: JobState, tmp_path: Path) -> Phase:
    plan = fast_design()
    spent = Budget(plan, Ledger(tmp_path / "ledger.json", plan), lambda: 0.0)
    ours = BudgetEnforcer(plan, FakeControl([], [one]), spent)._is_ours(one)
    assert ours == (one.is_running and bool(one.nodes))
    return one.phase


def reconcile(one: JobState, tmp_path: Path) -> Phase:
    control = FakeControl([node(ONE, "ALLOCATED", "CLOUD")], [one])
    elastic = Elastic(settings(tmp_path, fast_design()), control, FakeDriver(), tmp_path)
    assert elastic.reconciler._used([ONE]) == ([ONE] if one.is_running else [])
    # A prolog ends its wait for the nodes of any other job: one that completes waits for its prolog.
    assert control.working_jobs() == ({7} if one.is_starting or one.is_running else set())
    return one.phase


def prologs(one: JobState, _: Path) -> Phase:
    fields = ("7", "N/A", one.state, ",".join(one.nodes))
    waited_for = parse_working(("mf".join(fields) + "mr\n").encode(), "m")
    assert waited_for == ({7} if one.is_starting or one.is_running else set())
    return one.phase


def what_frees_it(one: JobState, _: Path) -> Phase:
    held = job(7, one.state, nodes=one.nodes, priority=0, reason="JobHeldUser")
    assert (reasons.cure(held, None) == "`scontrol release 7`") == one.is_pending
    mine = job(7, one.state, nodes=one.nodes, reservation="gone")
    assert (reservations.advice(mine, [], (), 0.0) is not None) == one.is_pending
    return one.phase


READERS: dict[Callable[[JobState, Path], Phase], set[str]] = {
    states: {"node/slurm/states.py", "node/slurm/phases.py"},
    changes: {"cli/changes/jobs.py", "cli/changes/table.py"},
    down: {"cli/changes/decision.py"},
    waiting_for_the_end: {"cli/changes/jobs.py"},
    status: {
        "node/elastic/status.py", "cli/console/status.py", "cli/console/jobs.py", "cli/commands/operate.py",
        "cli/commands/sweep/watch.py",
    },
    logs: {"node/logs/job_facts.py"},
    backup: {"node/backup/take.py"},
    restored: {"node/backup/restore.py", "node/backup/restore_boot.py"},
    runs_of_a_benchmark: {"node/benchmark.py", "node/sweep.py"},
    capacity: {"node/elastic/capacity.py", "node/elastic/pending_jobs.py", "node/elastic/state_flush.py"},
    evacuation: {"node/elastic/requeue.py"},
    forgotten_requeues: {"node/elastic/requeue_memory.py"},
    reconfiguration: {"node/elastic/reconfiguration.py"},
    budget: {"node/elastic/budget_enforcer.py"},
    reconcile: {"node/elastic/reconcile.py", "node/slurm/control.py", "node/elastic/daemon.py"},
    prologs: {"node/slurm/answers.py"},
    what_frees_it: {"node/slurm/reasons.py", "node/slurm/reservations.py"},
}  # fmt: skip
"""A reader -> the modules whose look at jobs it tries."""
ELSEWHERE = {
    "node/elastic/requeue_cleanup.py": "tests/node/test_requeue_cleanup.py: who completes, who holds nodes",
    "node/elastic/renewal.py": "tests/node/test_renewal.py: which jobs hold nodes",
    "node/billing/job_runs.py": "tests/node/test_billing_bill.py: which words say that a script began",
    "node/elastic/launcher.py": "the nodes of jobs that are not over: of those that wait there are none",
    "node/elastic/pool_guard.py": "tests/node/test_pool_guard.py: which jobs have nodes and are not over",
    "node/elastic/lost_completion.py": "tests/node/test_lost_completion.py: which jobs hold nodes",
    "node/elastic/account_budgets.py": "tests/node/test_account_budgets.py: which jobs wait",
}
"""Modules that ask for no more than a property of `JobState`, and what tries them."""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_reader_takes_a_job_for_what_it_is(
    reader: Callable[[JobState, Path], Phase], tmp_path: Path
) -> None:
    taken = {}
    for word, nodes, _ in SHOWN:
        folder = tmp_path / f"{word}-{nodes}"
        folder.mkdir()
        taken[word, nodes] = reader(shown(word, nodes, reason="Resources"), folder)
    assert taken == {(word, nodes): phase for word, nodes, phase in SHOWN}


@pytest.mark.parametrize(("word", "nodes", "waited"), [("SIGNALING", "x", True), ("SPECIAL_EXIT", "", False)])
def test_the_end_of_jobs_that_hold_nodes_is_waited_for(
    word: str, nodes: str, waited: bool, tmp_path: Path
) -> None:
    for name, script in (
        ("squeue", f"case $* in *--format=*) echo '7|{word}|{nodes}' ;; esac\n"),
        ("date", f"echo x >>{tmp_path}/asked; wc -l <{tmp_path}/asked\n"),
        ("sleep", "exit 0\n"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    looks = []
    for only in ([], *(jobs.parse(told(f"{number}|ann|debug|x|RUNNING||\n")) for number in (7, 77))):
        (tmp_path / "asked").unlink(missing_ok=True)
        line, paths = jobs.wait_line(5, only), {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run(["sh", "-c", line], env=paths, check=True, capture_output=True)
        looks.append(len((tmp_path / "asked").read_text().split()) > 2)
    assert looks == [waited, waited, False]


# --- there are no other readers --------------------------------------------------------------------------

FOLDERS = ("node", "cli", "operations", "localcloud", "workload", "infra", "component", "tools")
OF_CLOUDS = {
    # The words of AWS Batch, of Step Functions, of EC2 Image Builder, and of Google's machines.
    "cli/providers/batch/commands.py", "cli/providers/batch/jobs.py", "cli/providers/batch/teardown.py",
    "cli/providers/batch/waits.py",
    "infra/aws/batch/states.py", "operations/aws/batch/service.py", "operations/aws/batch/shutdown.py",
    "operations/aws/images.py", "operations/gcp/machines.py", "node/elastic/drivers/gce/driver.py",
    "node/elastic/drivers/gce/launches.py",
}  # fmt: skip
"""Modules whose words are a cloud's."""
ASKING = {
    "is_pending", "is_over", "is_active", "is_running", "is_starting", "has_work", "is_completing", "pending",
    "over", "unfinished_jobs", "working_jobs", "current_jobs",
}  # fmt: skip
OTHERS = {
    # Attributes of the same names that are none of a job of Slurm's.
    "cli/commands/sweep/table.py", "cli/providers/batch/changes.py", "cli/providers/batch/teardown.py",
    "workload/train.py", "node/elastic/disks.py",
}  # fmt: skip
"""Modules that have such an attribute of something else."""


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def docstrings(tree: ast.Module) -> set[int]:
    return {
        id(line.value)
        for part in ast.walk(tree)
        if isinstance(body := getattr(part, "body", None), list)
        for line in body
        if isinstance(line, ast.Expr)
    }


def words_in(tree: ast.Module) -> set[str]:
    """Return the words of job states in the texts of a module that are no sentences."""
    prose = docstrings(tree)
    texts = [
        part.value
        for part in ast.walk(tree)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and id(part) not in prose
    ]
    return {
        word for text in texts if text.isupper() for word in text.replace(",", " ").split() if word in WORDS
    }


WORDS = set(KNOWN) - {"?"}


def test_no_other_module_knows_a_word_of_slurms() -> None:
    found = {file: words for file, tree in modules() if (words := words_in(tree))}
    assert found.pop("node/slurm/phases.py") >= OVER | WAITING | HOLDING.keys()
    del found["tools/slurm_outputs.py"]  # it brings jobs into these states
    # The states of nodes.
    assert found.pop("node/slurm/node_flags.py") == {"COMPLETING"}
    assert {file: words for file, words in found.items() if file not in OF_CLOUDS} == {}
    assert found.keys() >= OF_CLOUDS


def test_squeue_is_asked_for_no_base_state() -> None:
    """A filter by states hides jobs with flags. `all` is none."""
    asked = [
        (file, part.value)
        for file, tree in modules()
        for part in ast.walk(tree)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        if "--states" in part.value and id(part) not in docstrings(tree)
    ]
    assert {text for _, text in asked} == {"--states=all"}, asked


def test_every_module_that_looks_at_jobs_is_tried() -> None:
    asking = {
        file
        for file, tree in modules()
        for part in ast.walk(tree)
        if (isinstance(part, ast.Attribute) and part.attr in ASKING)
        or (isinstance(part, ast.ImportFrom) and part.module == "node.slurm.phases")
    }
    tried = set.union(*READERS.values())
    assert asking - tried - ELSEWHERE.keys() - OTHERS == set(), "add a reader to READERS"
    assert tried <= asking | {"node/slurm/phases.py"}, "these look at no job"
    assert ELSEWHERE.keys() | OTHERS <= asking


@pytest.mark.parametrize("text", ["state == 'RESV_DEL_HOLD'", "X = ('RUNNING', 'x')", "f'PENDING,{x}'"])
def test_a_word_elsewhere_is_seen(text: str) -> None:
    assert words_in(ast.parse(text))


# --- a job that completes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "again"),
    [
        # Of Slurm 22.05: requeued, without a time limit and with one; ended; ended within its first second.
        ("0:00,1795854041,NONE", True),
        ("0:00,1795854041,1795857641", True),
        ("0:07,1795854041,1795854048", False),
        ("0:00,1795854041,1795854041", False),
    ],
)
def test_a_job_that_completes_and_runs_again_can_be_lost(times: str, again: bool) -> None:
    (found,) = jobs.parse(told(f"7|ann|debug|debug-0|COMPLETING,{times}|(null)|\n"))
    assert (found.again, found.over) == (again, not again)
    assert ("then queued again" in found.line()) == again
    removed = table.Change("nodes.max", "debug", Kind.ENDS, "2", "1", partition="debug")
    assert removed.costs(found) == again
    line = jobs.cancel_or_requeue_line([], [found])
    assert ("scancel" in line) != again, "a requeue would be refused, and the job cancelled"


def test_the_phases_are_the_tables() -> None:
    assert {word: phase(word, nodes=True) for word in HOLDING} == HOLDING
    assert {phase(word, nodes=False) for word in WAITING} == {Phase.WAITING}
