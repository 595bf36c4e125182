"""What the user sees: one live line on a terminal, lines elsewhere, and tables that hide nothing."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console as RichConsole

from cli.console import plan, status, tables
from cli.console.events import (
    Message,
    Operation,
    OutputLine,
    ResourceDone,
    ResourceFailed,
    ResourceStarted,
    Summary,
)
from cli.console.progress import Console, clock
from infra.errors import NotUpError, UserError
from tests.support import sentences

COMMAND = "command:local:Command"


@pytest.fixture
def plain() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(RichConsole(file=text, width=200, highlight=False, soft_wrap=True)), text


def done(name: str, operation: Any, kind: str = COMMAND) -> ResourceDone:
    return ResourceDone(f"urn::{name}", name, kind, operation, 1.25)


def test_off_a_terminal_every_change_is_one_line(plain: tuple[Console, io.StringIO]) -> None:
    console, text = plain
    with console.waiting("bringing the cluster up"):
        console.on_event(ResourceStarted("urn::a", "a", COMMAND, "created"))
        for operation in ("created", "updated", "replaced", "deleted", "unchanged"):
            console.on_event(done("a", operation))
        for operation in ("replaced", "deleted"):
            console.on_event(ResourceStarted("urn::r", "r", COMMAND, "replaced"))
            console.on_event(done("r", operation))
        console.on_event(done("net", "created", "aws:ec2/vpc:Vpc"))
        console.on_event(done("c", "created", "slurm-stacks:index:LocalCluster"))
        console.on_event(OutputLine("urn::a", "a", "stderr", "controller: hooks"))
        console.on_event(OutputLine("urn::a", "a", "stdout", '{"secret": 1}'))
        console.on_event(OutputLine("urn::a", "a", "stderr", "  "))
        console.on_event(ResourceFailed("urn::b", "b", COMMAND, "created", 1.0, "exit status 3"))
        console.on_event(Message("look [out]", "warning"))
        console.on_event(done("s", "created", "pulumi:pulumi:Stack"))
        console.on_event(Summary({"created": 5}, 1, 3.0))
    assert text.getvalue().splitlines() == [
        "bringing the cluster up …",
        "  + a created (1.2 s)",
        "  ~ a updated (1.2 s)",
        "  ± a replaced (1.2 s)",
        "  - a deleted (1.2 s)",
        "  ± r replaced (1.2 s)",
        "  + net created (1.2 s)",
        "    a: controller: hooks",
        "  ! b: exit status 3",
        "look [out]",
        "  deleted 1, replaced 1, created 1, failed 1 (3.0 s)",
    ]
    assert console.changes == {"deleted": 1, "replaced": 1, "created": 1}, "those that have a line"


def test_an_error_is_printed_once(plain: tuple[Console, io.StringIO]) -> None:
    """A command prints it, and both the event of the failure and the runner's error have its end."""
    console, text = plain
    tail = "exit status 1:\ncontroller: ready\n  [12:00] fatal: no address\nonly on standard output"
    for line in ("controller: ready", "  [12:00] fatal: no address"):
        console.on_event(OutputLine("urn::h", "head", "stderr", line))
    console.on_event(ResourceFailed("urn::h", "head", COMMAND, "created", 1.0, tail))
    with pytest.raises(NotUpError) as failed, console.errors_once():
        raise NotUpError(f"head: {tail}\n(`up` goes on)", 3, code="cluster.not-up")
    assert text.getvalue().splitlines() == [
        "    head: controller: ready",
        "    head:   [12:00] fatal: no address",
        "  ! head: exit status 1; its last lines are above",
        "only on standard output",
    ]
    assert (str(failed.value), failed.value.exit_code) == (
        "head: exit status 1; its last lines are above\n(`up` goes on)", 3,
    )  # fmt: skip


def test_an_error_that_nobody_has_printed_stays_whole(plain: tuple[Console, io.StringIO]) -> None:
    console, _ = plain
    with sentences.raises("runner.resources-failed"), console.errors_once():
        raise UserError("a: exit status 1:\nwhy", code="runner.resources-failed")


@pytest.mark.parametrize(
    ("operation", "changed"),
    [("created", True), ("replaced", True), ("unchanged", False), ("deleted", False)],
)
def test_what_the_last_run_has_made_is_known_by_name(
    plain: tuple[Console, io.StringIO], operation: Operation, changed: bool
) -> None:
    console, _ = plain
    console.on_event(done("c-benchmark-job", operation))
    assert console.changed("-benchmark-job") == changed
    assert not console.changed("-benchmark-stage")


def test_the_same_situation_is_said_once(plain: tuple[Console, io.StringIO]) -> None:
    console, text = plain
    with console.waiting("job 7"):
        for situation in ("waits", "waits", "waits", "runs", "runs", "waits"):
            console.now(situation)
    with console.waiting("job 8"):
        console.now("waits")
    assert [line.split()[-1] for line in text.getvalue().splitlines()] == [
        "…", "waits", "runs", "waits", "…", "waits",
    ]  # fmt: skip
    assert not console.live


def test_on_a_terminal_one_line_says_what_is_waited_for() -> None:
    text = io.StringIO()
    rich = RichConsole(file=text, width=100, force_terminal=True, highlight=False, _environ={"TERM": "xterm"})
    console = Console(rich)
    assert console.live
    with console.waiting("bringing the cluster up"):
        console.on_event(ResourceStarted("urn::b", "b", COMMAND, "created"))
        console.on_event(ResourceStarted("urn::a", "a", COMMAND, "created"))
        assert console._status is not None
        assert str(console._status.status) == "bringing the cluster up: a, b"
        console.on_event(done("a", "created"))
        assert str(console._status.status) == "bringing the cluster up: b"
        console.now("the head boots")
        assert re.fullmatch(r"bringing the cluster up: the head boots · \d:\d\d", str(console._status.status))
    assert console._status is None
    console.now("afterwards")


def test_clock() -> None:
    assert [clock(s) for s in (0, 59.9, 60, 65, 3661)] == ["0:00", "0:59", "1:00", "1:05", "61:01"]


# --- tables ----------------------------------------------------------------------------------------------

OFF = {"partition": "debug", "state": "IDLE+CLOUD+POWERED_DOWN", "machine_state": None, "reason": None}
STATUS: dict[str, Any] = {
    "partitions": [{"name": "debug", "state": "UP", "machine": "local.small", "min": 0, "max": 10, "up": 1}],
    "nodes": [
        {"name": "debug-0", "partition": "debug", "state": "ALLOCATED+CLOUD",
         "machine_state": "running", "reason": None},
        {"name": "debug-1", **OFF, "reason": "slurm-stacks quota: [bold]no more[/bold]"},
        {"name": "debug-2", **OFF, "machine_state": "stopping"},
        {"name": "debug-3", **OFF},
        {"name": "debug-4", **OFF},
    ],
    "machines": {"running": 1, "pending": 0},
    "jobs": [
        {"id": 7, "slurm_id": "7", "name": "keras-job", "user": "ada", "partition": "debug",
         "state": "PENDING", "elapsed_seconds": None, "nodes": "", "cause": "quota: " + "x" * 40},
    ],
    "cost": {"node_hours": 1.5, "usd": 0.25, "by_partition": {}, "damaged": [], "budget": None},
}  # fmt: skip


def test_status_shows_who_is_awake_and_who_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status.show_status(STATUS)
    out = capsys.readouterr().out
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line}
    assert lines["debug-0"] == "debug busy running –"
    assert lines["debug-1"] == "debug off – last: quota: [bold]no more[/bold]"
    assert lines["debug-2"] == "debug off stopping its machine is being ended"
    assert "debug-3" not in out
    assert "\n2 nodes are off\n" in out, "whether a job that waits needs them, its cause says"
    assert lines["7"] == "keras-job ada debug pending – – quota: " + "x" * 40
    assert "Cost so far: 1.50 node-hours, 0.25 USD" in out
    assert all(line == line.rstrip() for line in out.splitlines()), "no column is filled up with spaces"
    status.show_status({**STATUS, "jobs": []})
    assert "2 nodes are off, as it should be while nobody needs them" in capsys.readouterr().out
    cost = {**STATUS["cost"], "usd": 1.256}
    status.show_status({**STATUS, "jobs": [], "nodes": [], "cost": cost})
    out = capsys.readouterr().out
    assert "No jobs" in out
    assert "1.26 USD" in out
    assert "Nodes" not in out


POOL = {"machine": "c5.xlarge", "spot": True, "price_usd_per_hour": 0.1, "min": 0, "max": 4, "up": 0}
POOLED: dict[str, Any] = {
    **STATUS,
    "partitions": [
        {
            "name": "train", "state": "UP", "machine": "c5.xlarge", "min": 0, "max": 12, "up": 2,
            "pools": [
                {**POOL, "name": "spot",
                 "shut": {"cause": "capacity: none [x]", "until": 1795920000, "left": 0}},
                {**POOL, "name": "other", "shut": {"cause": "quota: few", "until": None, "left": 2}},
                {**POOL, "name": "od", "spot": False, "shut": None},
            ],
        },
        {"name": "urgent", "state": "UP", "machine": "c5.xlarge", "min": 0, "max": 12, "up": 2,
         "nodes_of": "train", "pools": [{**POOL, "name": "spot", "shut": None}]},
    ],
    "nodes": [],
    "jobs": [
        {**STATUS["jobs"][0], "id": number, "slurm_id": str(number), "state": state, "nodes": "n",
         "partition": "train", "pool": pool, "pool_reason": why}
        for number, state, pool, why in (
            (1, "RUNNING", "od", "spot: capacity: none [x]; other: quota: few"),
            (2, "CONFIGURING", "spot", None),
            (3, "RUNNING", "other", None),
            (4, "RUNNING", None, None),
        )
    ],
    "cost": {**STATUS["cost"], "usd": None, "at_least_usd": 1.0, "unknown": ["train/od"]},
}  # fmt: skip


def test_status_shows_pools_below_their_partition_which_are_shut_and_what_jobs_got(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status.show_status(POOLED)
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[2:7] == [
        "train 3 pools 0 12 2",
        "train/spot c5.xlarge, spot 0 4 0",
        "train/other c5.xlarge, spot 0 4 0",
        "train/od c5.xlarge 0 4 0",
        "urgent nodes of train 0 12 2",
    ]
    assert "Pool train/spot is shut until 2026-11-29 02:40:00 UTC: capacity: none [x]" in lines
    assert "Pool train/other gives 2 more at most: quota: few" in lines
    jobs = {line.split()[0]: line for line in lines if "keras-job" in line}
    assert jobs["1"].endswith("pool od; spot: capacity: none [x]; other: quota: few")
    assert jobs["2"].endswith("its nodes are starting; pool spot, the first choice")
    assert jobs["3"].endswith("n pool other")
    assert jobs["4"].endswith("n –")
    assert "at least 1.00 USD, price of c5.xlarge unknown" in out


def test_options_of_slurm_conf_that_are_not_in_force_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    refused = "the stack file's settings of slurm.conf are refused: [bold]no such plugin"
    status.show_status({**STATUS, "settings": refused}, "local")
    assert capsys.readouterr().out.startswith(
        "warning: the stack file's settings of slurm.conf are refused: ["
    )


def test_a_silent_cloud_makes_states_old_and_a_local_one_has_a_cure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = {**STATUS, "cloud": "no such socket"}
    old = "The cloud does not answer: no such socket. The states of machines are old."
    status.show_status(silent, "team-b")
    assert old in capsys.readouterr().out.splitlines(), "nobody can start AWS again"
    status.show_status(silent, "team-b", on_this_machine=True)
    output = " ".join(capsys.readouterr().out.split())
    assert f"{old} If its agent is dead or hangs, `./cluster up --stack team-b` starts it again." in output


def test_nodes_that_are_alike_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    up = {"partition": "debug", "state": "IDLE+CLOUD", "machine_state": "running", "reason": None}
    nodes = [{"name": f"debug-{n}", **up} for n in (0, 1, 2, 7)]
    other = {"name": "gpu-0", **up, "partition": "gpu"}
    off = {"name": "gpu-1", **OFF, "partition": "gpu"}
    status.show_status({**STATUS, "nodes": [*nodes, other, off]})
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if "idle" in line] == [
        ["debug-[0-2,7]", "debug", "idle", "running", "–"], ["gpu-0", "gpu", "idle", "running", "–"],
    ]  # fmt: skip
    assert "1 node is off" in out


BUDGET: dict[str, Any] = {
    "max_usd": 20.0, "max_hours": None, "left_usd": 4.5, "left_hours": None, "used": 0.775,
    "running_jobs": "keep",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Budget: 4.50 of 20.00 USD are left, 78% used"),
        (
            {"max_hours": 9.0, "left_hours": 3.0},
            "Budget: 4.50 of 20.00 USD and 3.00 of 9.00 node-hours are left, 78% used",
        ),
        (
            {"left_usd": 0.0, "used": 1.0},
            "Budget: 0.00 of 20.00 USD are left, used up: no new node starts, jobs that run go on",
        ),
        (
            {"left_usd": 0.0, "used": 1.2, "running_jobs": "cancel"},
            "Budget: 0.00 of 20.00 USD are left, used up: no new node starts, running jobs are cancelled",
        ),
    ],
)
def test_what_is_left_of_the_budget(
    capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str
) -> None:
    cost = {"node_hours": 1.0, "usd": 15.5, "damaged": [], "budget": BUDGET | changes}
    status.show_status({**STATUS, "cost": cost})
    assert capsys.readouterr().out.splitlines()[-2:] == ["Cost so far: 1.00 node-hours, 15.50 USD", line]


def test_what_is_left_of_accounts_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    research = {**BUDGET, "account": "research", "period": "life", "at": 1764367200.0}
    rest = {**research, "account": "rest", "period": "month", "left_usd": 0.0, "used": 1.0}
    cost = {"node_hours": 1.0, "usd": 1.0, "damaged": [], "budget": None, "accounts": [research, rest]}
    status.show_status({**STATUS, "cost": cost})
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith("Budget of account research: ")
    assert second == (
        "Budget of account rest in 2025-11: 0.00 of 20.00 USD are left, used up: no job of it starts, "
        "jobs that run go on"
    )


def test_a_sum_without_every_price_is_the_least_it_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    cost = {
        "node_hours": 3.0,
        "usd": None,
        "at_least_usd": 11.0,
        "unknown": ["debug", "gone"],
        "damaged": [],
        "budget": None,
    }
    status.show_status({**STATUS, "cost": cost})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Cost so far")]
    machine = STATUS["partitions"][0]["machine"]
    assert line == (
        f"Cost so far: 3.00 node-hours, at least 11.00 USD, price of {machine}, partition gone unknown"
    )


def test_figures_that_lack_something_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    cost = {"node_hours": 1.0, "usd": 1.0, "damaged": ["ledger.json.damaged-1"], "budget": None}
    status.show_status({**STATUS, "cost": cost})
    assert capsys.readouterr().out.endswith(
        "  and what is in ledger.json.damaged-1, which could not be read\n"
    )


@pytest.mark.parametrize(
    ("budget", "line"),
    [
        (
            {"max_usd": 20, "max_hours": None, "lasts_hours": 2.6042, "unknown": []},
            "The budget of 20 USD lasts 2 h 36 min at full size; "
            "then no new node starts, jobs that run go on",
        ),
        (
            {"max_usd": 20, "max_hours": 5.5, "lasts_hours": None, "unknown": []},
            "The budget of 20 USD and 5.5 node-hours is never used up: nodes cost nothing",
        ),
        (
            {
                **{"max_usd": 20, "max_hours": None, "lasts_hours": 2.6042},
                **{"unknown": ["p4d.24xlarge", "p[x]"], "running_jobs": "cancel"},
            },
            "The budget of 20 USD lasts at most 2 h 36 min at full size, "
            "price of p4d.24xlarge, p[x] unknown; then running jobs are cancelled",
        ),
        (
            {"max_usd": 20, "max_hours": None, "lasts_hours": None, "unknown": ["p4d.24xlarge"]},
            "The budget of 20 USD counts no node, price of p4d.24xlarge unknown",
        ),
    ],
)
def test_how_far_a_planned_budget_reaches(
    capsys: pytest.CaptureFixture[str], budget: dict[str, Any], line: str
) -> None:
    cost = {"budget": {"running_jobs": "keep", **budget}}
    plan.show_plan({"stack": "t", "resources": [], "outputs": {}, "cost": cost, "warnings": []})
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_every_waiting_job_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def entry(number: int, state: str, cause: str | None = None) -> dict[str, Any]:
        return {
            **STATUS["jobs"][0],
            "id": number,
            "slurm_id": str(number),
            "name": "j",
            "state": state,
            "cause": cause,
        }

    jobs = [
        entry(4, "PENDING", "Resources"), entry(3, "PENDING"), entry(5, "CONFIGURING"), entry(6, "RUNNING"),
        entry(7, "PENDING", "ReqNodeNotAvail, UnavailableNodes:debug-3"),
        entry(8, "PENDING", "quota: no [more]"),
    ]  # fmt: skip
    status.show_status({**STATUS, "jobs": jobs})
    table = capsys.readouterr().out.split("Jobs\n")[1].splitlines()[1:7]
    assert [line.split()[0] for line in table] == ["5", "6", "3", "4", "7", "8"], (
        "those that have nodes first"
    )
    assert table[0].endswith("its nodes are starting")
    assert table[1].endswith("–")
    assert table[2].endswith("the scheduler has not looked at it yet")
    assert table[3].endswith("Resources: other jobs hold the nodes that it needs")
    assert "ReqNodeNotAvail, UnavailableNodes:debug-3: a node that it asks for by name" in table[4]
    assert table[5].endswith("quota: no [more]")

    status.show_status({**STATUS, "jobs": [{**entry(9, "RUNNING"), "name": "\x1b[2Jgone"}]})
    assert r"\x1b[2Jgone" in capsys.readouterr().out, "nothing that the terminal obeys"
    many = [entry(n, "PENDING") for n in range(1, status.MOST_JOBS + 4)]
    status.show_status({**STATUS, "jobs": many}, "team-b")
    assert "and 3 more: ./cluster exec --stack team-b -- squeue" in capsys.readouterr().out


def test_a_jobs_line_is_squeues(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {
        "id": 15, "slurm_id": "12_3", "name": "train", "user": "ada", "partition": "debug",
        "state": "RUNNING", "elapsed_seconds": 3723, "nodes": "debug-[0-1]", "cause": None,
    }  # fmt: skip
    status.show_status({**STATUS, "jobs": [entry]})
    head, line = capsys.readouterr().out.split("Jobs\n")[1].splitlines()[:2]
    assert head.split() == ["id", "name", "user", "partition", "state", "time", "nodes", "why"]
    assert line.split() == ["12_3", "train", "ada", "debug", "running", "1:02:03", "debug-[0-1]", "–"]
    for seconds, told in ((0, "0:00"), (65, "1:05"), (183845, "2-03:04:05")):
        status.show_status({**STATUS, "jobs": [{**entry, "elapsed_seconds": seconds}]})
        assert told in capsys.readouterr().out.split()


def test_the_tasks_of_an_array_stand_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm gives each started task an id of its own, and the last one the array's."""
    known = [(3, "3_10"), (2, "2"), (4, "3_1"), (5, "3_2"), (13, "13")]
    entry = {**STATUS["jobs"][0], "state": "RUNNING", "nodes": "debug-0", "cause": None}
    status.show_status({**STATUS, "jobs": [{**entry, "id": i, "slurm_id": name} for i, name in known]})
    lines = capsys.readouterr().out.split("Jobs\n")[1].splitlines()[1:6]
    assert [line.split()[0] for line in lines] == ["2", "3_1", "3_2", "3_10", "13"]


RESULT: dict[str, Any] = {
    "job_id": 7, "workers": 2, "nodes": 2, "machine": "local.small", "profile": "sync", "epochs": 2,
    "global_batch": 128, "data": "mnist", "seconds_total": 12.34, "seconds_train": 10.0,
    "images_per_second": 1234.5, "loss": 0.12345, "accuracy": 0.98765, "test_accuracy": 0.97,
    "start_latency_seconds": None, "cost_usd": None,
}  # fmt: skip


def test_a_result_says_what_it_was_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_result(RESULT)
    out = capsys.readouterr().out
    for there in (
        "Result of job 7",
        "2 on 2 × local.small",
        "sync, 2 epochs, global batch 128",
        "0.1235, 0.9877",
    ):
        assert there in out
    assert "not MNIST" not in out
    assert "cost" not in out
    assert "start of the job" not in out
    tables.show_result({**RESULT, "data": "synthetic", "cost_usd": 0.5, "start_latency_seconds": 1.5})
    out = capsys.readouterr().out
    for there in ("synthetic (not MNIST)", "0.5000 USD", "1.50 s after it could start"):
        assert there in out


def test_a_plan_is_a_tree_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    stack, parent = "urn:s", "urn:p"
    resources = [
        {"urn": stack, "type": "pulumi:pulumi:Stack", "name": "slurm-stacks-t", "parent": None},
        {"urn": parent, "type": "slurm-stacks:index:LocalCluster", "name": "t", "parent": stack},
        {"urn": "urn:c", "type": COMMAND, "name": "t-head[0]", "parent": parent},
    ]
    part = {"name": "partition x", "what": "p[x]", "idle": 0.0, "max": None}
    cost = {
        "idle_usd_per_hour": 0.5, "max_usd_per_hour": 12.0, "parts": [part],
        "unknown": ["partition x (p[x])"], "prices_of": "2026",
    }  # fmt: skip
    shown = {"stack": "t", "resources": resources, "outputs": {}, "cost": cost, "warnings": ["dear [red]"]}
    plan.show_plan(shown)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "stack t"
    assert lines[1] == "└── t slurm-stacks:index:LocalCluster"
    assert lines[2] == f"    └── t-head[0] {COMMAND}"
    assert lines[3] == "2 resources"
    assert lines[4] == (
        "Cost: 0.50 USD an hour idle, at least 12.00 USD an hour with every node up, price of p[x] unknown"
    )
    assert lines[5] == "warning: dear [red]"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_way_in_is_whole_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """The user copies this command, so it stays on one line; a cut line would be another command."""
    stack = "a-long-name" * 12
    cluster: dict[str, Any] = {
        "name": "c", "provider": "local", "zone": None, "region": None, "scheduler": {"name": "slurm"},
        "partitions": [], "login": {"ssh": "ssh me@<address.public_ip>"},
    }  # fmt: skip
    file = io.StringIO()
    narrow = RichConsole(file=file, width=80, force_terminal=terminal, highlight=False)
    monkeypatch.setattr(plan, "output", lambda: narrow)
    shown = {"stack": stack, "resources": [], "outputs": {"cluster": cluster}, "cost": {}, "warnings": []}
    plan.show_plan(shown)
    found = [line for line in file.getvalue().splitlines() if line.startswith("log in")]
    assert found == [f"log in  ./cluster ssh --stack {stack}"]


def test_outputs_are_shown_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = {
        "apiVersion": "slurm-stacks/v1", "name": "t", "scheduler": {"name": "slurm", "version": ""},
        "partitions": [{"name": "debug"}, {"name": "gpu"}],
    }  # fmt: skip
    tables.show_outputs({"login_ssh": "gcloud compute ssh c --tunnel-through-iap --", "cluster": cluster})
    out = capsys.readouterr().out
    assert "slurm-stacks/v1: t, slurm, partitions debug, gpu" in out
    assert "gcloud compute ssh c --tunnel-through-iap\n" in out, "a person opens a shell with it"
