"""What a sweep is made of, apart: arguments, order, the plan's file, medians, the foretold cost, rows."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import UserError
from infra.results import Kept
from infra.runner import locations
from infra.sweep import plan as plans
from infra.sweep import summary
from infra.sweep.plan import Plan, PlannedRun, Wish
from infra.sweep.store import Store
from infra.sweep.watch import Progress, gone
from tests.support import texts
from tests.support.sweep_cluster import record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return locations.state_root()


def wish(nodes: str | None, repeat: int | None = None, most: int = 8) -> Wish:
    return plans.wish(nodes, repeat, most=most, partition="debug", limit="nodes.max in x.yaml")


def plan(*nodes: int, **changes: Any) -> Plan:
    runs = tuple(PlannedRun(n, count, 1, f"d/s-x-{n}", job=n) for n, count in enumerate(nodes, 1))
    made = Plan("x", "test", "debug", "2026-11-21 14:11 UTC", 1, ("/p",), {str(n): "#!" for n in nodes}, runs)
    return dataclasses.replace(made, **changes)


# --- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1", (1,)), ("4,1,2", (1, 2, 4)), (" 1 , 2 ", (1, 2)), ("08", (8,)), ("٣", (3,))],
)
def test_numbers_of_nodes(text: str, numbers: tuple[int, ...]) -> None:
    assert wish(text) == Wish(numbers, 1)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "0", "-1", "1.5", "1e2", "one", "1 2", "1;2", "²", "9" * 5000, "1,1", "--", "+1"]
)
def test_what_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(UserError) as caught:
        wish(text)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400
    assert str(caught.value).endswith("--nodes 1,2,4")


@given(texts.text(max_size=30), st.integers(1, 100), st.integers(1, 20))
def test_any_text_is_numbers_within_the_partition_or_one_message(text: str, repeat: int, most: int) -> None:
    try:
        wanted = wish(text, repeat, most)
    except UserError as refused:
        assert refused.exit_code == 2  # noqa: PT017  whether it is refused depends on the text
    else:
        assert list(wanted.nodes) == sorted(set(wanted.nodes))
        assert 1 <= wanted.nodes[0] <= wanted.nodes[-1] <= most
        assert len(plans.order(wanted)) <= plans.MAX_RUNS


@pytest.mark.parametrize(("most", "nodes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (10, (1, 2, 4))])
def test_the_default_stays_within_the_partition(most: int, nodes: tuple[int, ...]) -> None:
    assert wish(None, 3, most) == Wish(nodes, 3)


def test_too_many_runs_are_counted_in_the_message() -> None:
    assert len(plans.order(wish("1,2", 100))) == 200
    with pytest.raises(UserError, match="3 × 100 runs are more than the 200"):
        wish("1,2,3", 100)


def test_fewest_nodes_run_first_and_repetitions_follow_one_another() -> None:
    assert plans.order(Wish((1, 4), 2)) == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert [str(w) for w in (Wish((1,), 1), Wish((1, 2), 3))] == ["--nodes 1", "--nodes 1,2 --repeat 3"]


# --- the plan's file ---------------------------------------------------------------------------------------


def test_a_plan_survives_as_it_is(tmp_path: Path, state: Path) -> None:
    store = Store(tmp_path, "test")
    assert store.load() is None
    assert not state.exists(), "looking makes nothing"
    kept, refused = PlannedRun(2, 2, 1, "f", job=9, kept="x.json"), PlannedRun(1, 1, 1, "g", refused="no")
    made = plan(1, 2).change(kept, refused)
    with store.locked():
        store.save(made)
    assert store.load() == made
    assert made.wish == Wish((1, 2), 1)
    assert store.folder.stat().st_mode & 0o077 == 0
    with store.locked():
        store.forget(plan(1, id="another"))
        assert store.has(made)
        store.forget(made)
    assert list(state.rglob("*")) == [], "not even a folder"


def test_two_checkouts_and_two_stacks_never_meet(tmp_path: Path) -> None:
    files = {Store(tmp_path / where, stack).file for where in ("a", "b") for stack in ("local", "other")}
    assert len(files) == 4


def _add(folder: str, project: str) -> None:
    os.environ["XDG_STATE_HOME"] = folder
    store = Store(Path(project), "test")
    for _ in range(20):
        with store.locked():
            there = store.load()
            if there is None:
                store.save(plan(1, repeat=1))
            else:
                store.save(dataclasses.replace(there, repeat=there.repeat + 1))


def test_changes_of_two_processes_do_not_get_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_add, args=(str(tmp_path / "state"), str(tmp_path))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    there = Store(tmp_path, "test").load()
    assert there is not None
    assert there.repeat == 40


def _begin_and_end(folder: str, project: str, failures: Any) -> None:
    os.environ["XDG_STATE_HOME"] = folder
    store = Store(Path(project), "test")
    for _ in range(50):
        with store.locked():
            if store.load() is not None:
                failures.put("not alone")
            store.save(plan(1))
            store.forget(plan(1))


def test_the_lock_holds_while_its_folder_comes_and_goes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    arguments = (str(tmp_path / "state"), str(tmp_path), failures)
    both = [context.Process(target=_begin_and_end, args=arguments) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    assert failures.empty()


def test_who_waits_for_the_lock_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path, "test")
    said: list[int] = []
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path / "state"), str(tmp_path), ready, done))
    holder.start()
    assert ready.wait(120)

    def busy() -> None:
        said.append(1)
        done.set()

    with store.locked(busy):
        assert said == [1]
    holder.join(60)


def _hold(folder: str, project: str, ready: Any, done: Any) -> None:
    os.environ["XDG_STATE_HOME"] = folder
    with Store(Path(project), "test").locked():
        ready.set()
        done.wait(120)


# --- what is seen becomes rows -----------------------------------------------------------------------------


def seen(state: str = "RUNNING", *, cause: str | None = None, **more: Any) -> dict[str, Any]:
    over = state in ("COMPLETED", "FAILED", "GONE")
    nodes = "" if state == "PENDING" else "debug-0"
    its = {"id": 1, "state": state, "nodes": nodes, "cause": cause, "alive": not over}
    return {"folder": "/b/f", "job": its, "progress": None, "result": None, "tail": [], **more}


def test_rows_say_where_each_run_is() -> None:
    training = {"epoch": 1, "epochs": 2, "loss": 0.25, "accuracy": 0.5, "seconds": 3.0}
    progress = Progress(plan(1, 1, 1, 1, 1, 1, 2))
    looked_at = progress.open
    progress.take(
        looked_at,
        [
            seen("COMPLETED", result=record(1, 1)),
            seen("PENDING", cause="quota: no more"),
            seen("CONFIGURING"),
            seen(),
            seen(progress=training),
            seen("PENDING", cause="Dependency"),
            seen("FAILED", tail=["words"]),
        ],
    )
    rows = progress.rows()
    assert [(row.phase, row.text) for row in rows] == [
        ("done", "done"),
        ("waits", "waits: quota: no more"),
        ("starts", "nodes are starting"),
        ("runs", "the training starts"),
        ("runs", "epoch 1 of 2, loss 0.2500"),
        ("queued", "queued"),
        ("runs", "ends"),
    ]
    assert [(rows[0].seconds, rows[0].images_per_second, rows[0].accuracy)] == [(60.0, 1000.0, 0.9)]
    assert (rows[4].seconds, rows[4].accuracy) == (3.0, 0.5)
    assert rows[4].detail == "running on debug-0: epoch 1 of 2, loss 0.2500, accuracy 0.5000"
    assert len(progress.open) == 6


def test_a_job_that_is_over_is_given_one_more_look_for_its_result() -> None:
    progress = Progress(plan(1, 1))
    first, _ = progress.open
    progress.take([first], [seen("COMPLETED")])
    assert progress.failed == {}
    progress.take([first], [seen("COMPLETED", result=record(1, 1))])
    assert set(progress.kept) == {1}
    (second,) = progress.open
    progress.take([second], [seen("FAILED")])
    progress.take([second], [seen("PENDING")])  # requeued after all
    progress.take([second], [seen("FAILED", tail=["a", "b"])])
    assert progress.failed == {}
    progress.take([second], [seen("FAILED", tail=["a", "b"])])
    (failure,) = progress.failed.values()
    assert str(failure) == "ended without a result (FAILED); the end of its output, in /b/f:\n  a\n  b"


def test_only_a_cluster_that_knows_none_of_the_submitted_runs_is_another() -> None:
    nothing: dict[str, Any] = {"folder": "/b/f", "job": None, "progress": None, "result": None, "tail": []}
    submitted, new = PlannedRun(1, 1, 1, "f", job=1), PlannedRun(2, 1, 1, "g")
    assert gone([submitted, new], [nothing, nothing])
    assert not gone([new], [nothing])
    assert not gone([submitted], [seen("GONE")])
    assert not gone([submitted, submitted], [nothing, seen()])
    assert not gone([submitted], [{**nothing, "result": {}}])


# --- the end, and what it will cost ------------------------------------------------------------------------


def kept(nodes: int, seconds: float, **changes: Any) -> Kept:
    return Kept(Path("20261121T141109Z-job-1-0.json"), record(nodes, 1, seconds_train=seconds, **changes))


def test_medians_and_speed_up_over_one_node() -> None:
    results = [kept(1, 10.0), kept(1, 12.0), kept(1, 50.0), kept(2, 8.0), kept(4, 3.0)]
    ((title, lines),) = summary.tables(results, "test")
    assert title == "Medians on debug (local.small), 1 epoch, sync, digits-synthetic (not MNIST)"
    assert [(line.nodes, line.runs, line.seconds, line.speed_up) for line in lines] == [
        (1, 3, 12.0, 1.0),
        (2, 1, 8.0, 1.5),
        (4, 1, 3.0, 4.0),
    ]
    ((_, (line,)),) = summary.tables([kept(2, 8.0)], "test")
    assert line.speed_up is None, "over two nodes it would be another figure"


def test_runs_on_different_data_are_not_averaged() -> None:
    tables = summary.tables([kept(1, 10.0), kept(1, 20.0, data="mnist")], "test")
    assert [line.seconds for _, (line,) in tables] == [10.0, 20.0]
    assert "(not MNIST)" not in tables[1][0]


LIKE = {key: record(1, 1)[key] for key in summary.SAME}


def test_cost_is_foretold_from_the_longest_earlier_result_of_the_same_kind() -> None:
    earlier = [
        kept(1, 1.0, seconds_total=3600),
        kept(1, 1.0, seconds_total=1800),
        kept(2, 1.0, seconds_total=1800),
        kept(2, 1.0, seconds_total=9999, epochs=2, history=[]),
    ]
    text = summary.cost(Wish((1, 2), 3), 2.0, LIKE, earlier)
    assert text is not None
    assert "a node costs 2 USD an hour; " in text
    assert "the runs cost 12.00 USD, and" in text  # 3 x (2 + 2)


def test_cost_that_is_not_known_is_not_guessed() -> None:
    text = summary.cost(Wish((1, 2, 4), 1), 2.0, LIKE, [kept(1, 1.0)])
    assert text == "a node costs 2 USD an hour; no earlier result says how long a run on 2, 4 takes"
    assert summary.cost(Wish((1,), 1), None, LIKE, []) == "price of local.small unknown"
    assert summary.cost(Wish((1,), 1), 0.0, LIKE, []) is None
