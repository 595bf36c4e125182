"""Results of the users' own programs: in the report, in a sweep, at the end of `up`, and in `env`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cli import results
from cli.commands import env, report
from cli.commands.report import programs
from cli.commands.sweep import table
from cli.commands.sweep.plan import Plan, PlannedRun
from cli.commands.sweep.watch import Progress
from cli.console import jobs, tables
from cli.providers import login_machine
from cli.results import Kept
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support.checkout import ROOT
from tests.support.report_reader import Page
from tests.support.report_records import keep, record
from workload.result import PROGRAM_API_VERSION, program_mistakes


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def program(nodes: int = 2, seconds: float = 10.0, **changes: Any) -> dict[str, Any]:
    made = {
        "apiVersion": PROGRAM_API_VERSION,
        "stack": "test",
        "job_id": "7",
        "partition": "debug",
        "machine": "m5.large",
        "nodes": nodes,
        "workers": nodes,
        "gpus_per_node": 0,
        "cores": nodes,
        "cores_shared": False,
        "script": "code/train.py",
        "arguments": ["--lr", "0.1"],
        "exit_status": 0,
        "seconds_total": seconds,
        "start_latency_seconds": 1.5,
        "restarts": 0,
        "digest": "d" * 64,
        "environment": "e" * 16,
        "versions": {"python": "3.12.3", "torch": "2.9.1"},
        "cost_usd": 0.02,
        "values": {"loss": 0.123456, "epoch": 8, "epochs": 8},
        "history": [],
        "notes": [],
    } | changes
    assert program_mistakes(made) == []
    return made


def kept(**changes: Any) -> Kept:
    return Kept(Path("20261121T120000Z-job-7-0.json"), program(**changes))


def reported(*records: dict[str, Any]) -> tuple[Page, list[dict[str, str]]]:
    keep("test", *records)
    made = report.make(["test"])
    return Page(made.page.read_text()), list(csv.DictReader(made.table.read_text().splitlines()))


# --- the report ------------------------------------------------------------------------------------------


def test_a_report_of_programs_only_draws_time_and_speed_up() -> None:
    page, rows = reported(program(1, 20.0), program(2, 12.0), program(2, 10.0), program(4, 5.0))
    assert page.of("h1") == ["Programs on stack test"]
    assert page.ids.count("programs") == 1
    assert {"chart-program-1-time-title", "chart-program-1-speed-up-title"} <= set(page.ids)
    assert "test: code/train.py --lr 0.1 (whole run), m5.large" in page.text
    assert "loss 0.1235, epoch 8 of 8" in page.text
    own = [row for row in rows if row["origin"] == "ours"]
    assert [(row["nodes"], row["seconds_total"], row["loss"], row["accuracy"]) for row in own] == [
        ("1", "20.0", "", ""),
        ("2", "12.0", "", ""),
        ("2", "10.0", "", ""),
        ("4", "5.0", "", ""),
    ]
    assert {(row["script"], row["arguments"]) for row in own} == {("code/train.py", "'--lr 0.1")}, (
        "no formula"
    )
    assert own[0]["values"] == "loss 0.123456; epoch 8; epochs 8"
    assert all(row["script"] == "" for row in rows if row["origin"] == "published")


def test_programs_stand_beside_the_built_in_training_and_are_not_mixed_with_it() -> None:
    page, rows = reported(record(2), program(2, script="x<b>.py", values={"\x00": "<i>"}))
    assert "x<b>.py" in page.text
    assert "Your own programs" in page.text
    assert "Our runs" in page.text
    assert "chart-program-1-time-title" not in page.ids, "one number of nodes is no comparison"
    assert [row["profile"] for row in rows if row["origin"] == "ours"] == ["sync", ""]


def test_the_training_is_compared_where_the_program_says_how_long_it_took() -> None:
    timed = [
        programs.of(kept(nodes=n, seconds=100.0, values={"seconds_train": s}), "test")
        for n, s in ((1, 8), (2, 4))
    ]
    odd = [programs.of(kept(values={"seconds_train": said}), "test") for said in ("soon", True, 0, -1, 1e13)]
    assert [run.seconds for run in (*timed, *odd)] == [8, 4, *[10.0] * 5]
    (series, _) = programs.group([*timed, *odd])
    ratio = series.speed_up(series.points[1])
    assert ratio is not None
    assert ratio.median == 2
    with pytest.raises(ValueError, match=r"result\.seconds_total: more than"):
        programs.of(kept(seconds=1e13), "test")


@pytest.mark.parametrize(
    "change",
    [
        {"script": "b.py"},
        {"arguments": []},
        {"digest": "f" * 64},
        {"environment": "f"},
        {"workers": 4},
        {"machine": "x"},
    ],
)
def test_what_differs_is_another_series(change: dict[str, Any]) -> None:
    runs = [programs.of(kept(), "test"), programs.of(kept(**change), "test")]
    assert len(programs.group(runs)) == 2


def test_the_end_of_up_says_how_much_faster_it_was() -> None:
    one, two = kept(nodes=1, seconds=20.0), program(2, 10.0)
    assert programs.compared(program(1), [one], "test") is None
    said = programs.compared(two, [one, kept(nodes=1, script="b.py"), Kept(Path("x"), record(1))], "test")
    assert said == "2 nodes ran code/train.py 2.0× as fast as 1: 10.0 s, on 1 node 20.0 s."
    hint = programs.compared(two, [], "test")
    assert hint == "`./cluster run --stack test --nodes 1,2` measures how much faster 2 nodes are than 1."


# --- sweeps and waiting ----------------------------------------------------------------------------------


def test_a_sweeps_rows_and_medians() -> None:
    runs = tuple(PlannedRun(n, n, 1, f"d/s-{n}", job=n) for n in (1, 2, 3))
    plan = Plan("test", "debug", "2026-11-21 14:11 UTC", 1, runs)
    progress = Progress(plan)
    state = {"state": "running", "script": "train.py"}

    def seen(**changes: Any) -> dict[str, Any]:
        job = {"id": 1, "state": "RUNNING", "nodes": "a", "cause": None, "alive": True}
        return {"job": job, "progress": state, "result": None, "tail": [], "folder": "f", **changes}

    failed = {"state": "failed", "script": "train.py", "exit_status": 3, "seconds": 2.5, "cost_usd": None}
    over = {"id": 3, "state": "FAILED", "nodes": "", "cause": None, "alive": False}
    for _ in range(2):
        answers = [
            seen(result=program(1, 20.0)),
            seen(progress={**state, "values": {"epoch": 2, "epochs": 8, "loss": 0.5}}),
            seen(job=over, progress=failed),
        ]
        progress.take(progress.open, answers[-len(progress.open) :])
    first, second, third = progress.rows()
    assert (first.text, first.seconds, first.accuracy) == ("done", 20.0, None)
    assert first.detail == "done: 20.0 s, loss 0.1235, epoch 8 of 8"
    assert second.text == "epoch 2 of 8, loss 0.5"
    assert second.detail == "running on a: epoch 2 of 8, loss 0.5"
    assert third.text == "failed"
    assert "FAILED: train.py, exit status 3, after 2.5 s" in third.detail
    assert first.whole
    ((title, lines),) = table.summary_tables([kept(nodes=1, seconds=20.0), kept(nodes=2)], "test")
    assert title == "Medians of code/train.py --lr 0.1 on debug (m5.large)"
    assert [(line.nodes, line.seconds, line.accuracy, line.speed_up) for line in lines] == [
        (1, 20.0, None, 1.0),
        (2, 10.0, None, 2.0),
    ]
    assert all(line.whole for line in lines)


def test_the_time_of_the_training_is_shown_from_the_result_on() -> None:
    """It was that of the whole program in the live table, and of the training in the one at the end."""
    timed = {"values": {"seconds_train": 12.5}}
    runs = (PlannedRun(1, 1, 1, "d/s-x-1", job=1),)
    plan = Plan("test", "debug", "2026-11-21 14:11 UTC", 1, runs)
    progress = Progress(plan)
    job = {"id": 1, "state": "RUNNING", "nodes": "a", "cause": None, "alive": True}
    seen: dict[str, Any] = {"job": job, "progress": None, "tail": [], "folder": "f"}
    progress.take(progress.open, [{**seen, "result": program(1, 20.0, **timed)}])
    (row,) = progress.rows()
    ((_, (line,)),) = table.summary_tables([kept(nodes=1, seconds=20.0, **timed)], "test")
    assert (row.seconds, row.whole) == (line.seconds, line.whole) == (12.5, False)
    assert row.detail.startswith("done: 12.5 s")


def test_local_nodes_of_a_program_are_compared_with_nodes_alike_only() -> None:
    def ups(*records: dict[str, Any]) -> list[float | None]:
        made = [programs.of(kept(machine="local.small", **one), "test") for one in records]
        found = [(one, one.points[-1]) for one in programs.group(made)]
        return [None if (up := one.speed_up(last)) is None else up.median for one, last in found]

    alone = {"nodes": 1, "workers": 1, "seconds": 20.0, "cores": 1, "cores_shared": False}
    two = {**alone, "nodes": 2, "workers": 2, "seconds": 10.0, "cores": 2}
    assert ups(alone, two) == [2.0]
    assert ups(alone, {**two, "cores": 1, "cores_shared": True}) == [1.0, None]
    assert ups({**alone, "cores": 2}, two) == [1.0, None]


def test_what_a_program_says_is_one_printable_line() -> None:
    assert jobs.values({"a\x1b[31m": "b\n", "x": None, "n": 1234567, "f": 0.000123456}) == (
        "a\\x1b[31m b\\n, n 1234567, f 0.0001235"
    )
    assert jobs.values({f"v{n}": n for n in range(9)}).endswith("v5 5, …")
    job = {"id": 1, "state": "RUNNING", "nodes": "a", "cause": None, "alive": True}
    silent = {"job": job, "progress": {"state": "running", "script": "train.py"}}
    assert jobs.situation(silent) == "running on a: train.py"


def test_a_result_is_shown_with_what_the_program_says(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_result(program(values={"[bold]note": "\x1b[31m"}, notes=["values.json is no JSON"]))
    shown = capsys.readouterr().out
    for words in ("code/train.py --lr 0.1", "2 on 2 × m5.large", "10.0 s, exit status 0", "0.0200 USD"):
        assert words in shown
    assert "[bold]note" in shown
    assert "\\x1b[31m" in shown
    assert "values.json is no JSON" in shown


def test_kept_results_of_both_kinds_are_read() -> None:
    keep("test", record(), program(), program(job_id="8") | {"accuracy": 1})
    found, wrong = results.load("test")
    assert [one.program for one in found] == [False, True]
    assert [line.partition(": ")[2] for line in wrong] == ["result.accuracy: unknown"]


# --- environments ----------------------------------------------------------------------------------------


def test_environments_are_listed_with_what_they_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from infra.environments import lock_digest
    from node.bootstrap.vm.environments import environments as node_environments

    apps = tmp_path / "apps"
    name = lock_digest(ROOT, "cpu")
    for folder, line in ((name, "version_info = 3.11.7"), ("other", "version = 3.12.3"), (".draft", "")):
        (apps / "envs" / folder / "bin").mkdir(parents=True)
        (apps / "envs" / folder / "pyvenv.cfg").write_text(f"home = /usr/bin\n{line}\n")
    (apps / "envs" / name / "bin" / "python").touch()
    (apps / "envs" / name / ".complete").touch()
    assert node_environments(tmp_path / "nowhere") == []
    answers = {"environments": json.dumps(node_environments(apps))}
    monkeypatch.setattr(login_machine, "tool", lambda _machine, _up, verb: answers.get(verb, ""))
    made = env.environments(StackUp(Stack(ROOT, "local"), "local"))
    assert [
        (one["name"], one["source"], one["complete"], one["python"])
        for one in sorted(made, key=lambda one: one["name"])
    ] == [
        (name, "the training environment", True, "3.11.7"),
        ("other", None, False, "3.12.3"),
    ]
    monkeypatch.setattr(env, "load_up", lambda stack: StackUp(stack, "local"))
    env.list_all(Stack(ROOT, "local"), json_output=False)
    shown = capsys.readouterr().out
    assert f". {apps}/envs/{name}/bin/activate" in shown
    assert "not complete" in shown
