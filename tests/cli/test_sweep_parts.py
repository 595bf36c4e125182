"""The parts of a sweep, each tested alone: arguments, order, labels, medians, cost estimate, rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.commands.sweep import plan as plans
from cli.commands.sweep import table
from cli.commands.sweep.command import Benchmark
from cli.commands.sweep.plan import Case, PartitionLimits, Plan, PlannedRun, SweepRequest
from cli.commands.sweep.watch import Progress, gone
from cli.providers.aws.provider import AwsProvider
from cli.results import Kept
from infra.config import parse
from infra.errors import UserError
from infra.program import locations
from infra.program.stack import Stack
from operations.access import StackUp
from tests.support import sentences, texts
from tests.support.checkout import ROOT
from tests.support.stack_values import values
from tests.support.sweep_cluster import record


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return locations.state_root()


def parse_request(nodes: str | None, repeat: int | None = None, most: int = 8) -> SweepRequest:
    return plans.parse_request(nodes, repeat, [limits(most=most)])


def limits(name: str = "debug", most: int = 8, gpus: int = 0) -> PartitionLimits:
    return PartitionLimits(name, most, gpus, "nodes.max in x.yaml")


def plan(*nodes: int, **changes: Any) -> Plan:
    runs = tuple(PlannedRun(n, count, 1, f"d/s-x-{n}", job=n) for n, count in enumerate(nodes, 1))
    made = Plan("test", "debug", "2026-11-21 14:11 UTC", 1, runs)
    return dataclasses.replace(made, **changes)


# --- arguments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1", (1,)), ("4,1,2", (1, 2, 4)), (" 1 , 2 ", (1, 2)), ("08", (8,)), ("٣", (3,))],
)
def test_numbers_of_nodes(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_request(text) == SweepRequest(numbers, 1)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "0", "-1", "1.5", "1e2", "one", "1 2", "1;2", "²", "9" * 5000, "1,1", "--", "+1"]
)
def test_what_is_no_list_of_numbers(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_request(text)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 400
    assert str(caught.value).endswith("--nodes 1,2,4")


@given(texts.text(max_size=30), st.integers(1, 100), st.integers(1, 20))
def test_any_text_is_numbers_within_the_partition_or_one_message(text: str, repeat: int, most: int) -> None:
    try:
        wanted = parse_request(text, repeat, most)
    except UserError as refused:
        assert refused.exit_code == 2  # noqa: PT017  whether it is refused depends on the text
    else:
        assert list(wanted.nodes) == sorted(set(wanted.nodes))
        assert 1 <= wanted.nodes[0] <= wanted.nodes[-1] <= most
        assert len(plans.order(wanted)) <= plans.MAX_RUNS


@pytest.mark.parametrize(("most", "nodes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2)), (10, (1, 2, 4))])
def test_the_default_stays_within_the_partition(most: int, nodes: tuple[int, ...]) -> None:
    assert parse_request(None, 3, most) == SweepRequest(nodes, 3)


def test_too_many_runs_are_counted_in_the_message() -> None:
    assert len(plans.order(parse_request("1,2", 100))) == 200
    with sentences.raises("sweep.too-many", "300", "200"):
        parse_request("1,2,3", 100)


def test_fewest_nodes_run_first_and_repetitions_follow_one_another() -> None:
    assert [(case.nodes, repetition) for case, repetition in plans.order(SweepRequest((1, 4), 2))] == [
        (1, 1), (1, 2), (4, 1), (4, 2),
    ]  # fmt: skip
    assert [str(w) for w in (SweepRequest((1,), 1), SweepRequest((1, 2), 3))] == [
        "--nodes 1",
        "--nodes 1,2 --repeat 3",
    ]


def test_every_combination_of_partitions_gpus_and_nodes_is_run() -> None:
    there = [limits("cpu", 8, 8), limits("gpu", 4, 8)]
    wanted = plans.parse_request("2,1", 2, there, partitions=("gpu", "cpu"), gpus="8,0")
    assert wanted == SweepRequest((1, 2), 2, ("gpu", "cpu"), (0, 8))
    assert str(wanted) == "--nodes 1,2 --partition gpu,cpu --gpus 0,8 --repeat 2"
    cases = [case for case, repetition in plans.order(wanted) if repetition == 1]
    assert [tuple(case) for case in cases] == [
        ("gpu", 0, 1), ("gpu", 0, 2), ("gpu", 8, 1), ("gpu", 8, 2),
        ("cpu", 0, 1), ("cpu", 0, 2), ("cpu", 8, 1), ("cpu", 8, 2),
    ]  # fmt: skip
    assert len({case.key for case in cases}) == 8
    assert (Case("", None, 2).key, Case("", None, 2).where) == ("2", "")
    assert (cases[2].where, Case("gpu", None, 1).where) == ("gpu, 8 GPUs a node", "gpu")
    assert plans.parse_request(None, None, there).nodes == (1, 2, 4)
    # A plan gives back the arguments that it was made with.
    runs = tuple(
        PlannedRun(n, case.nodes, repetition, f"f{n}", partition=case.partition, gpus=case.gpus)
        for n, (case, repetition) in enumerate(plans.order(wanted), 1)
    )
    assert plan(runs=runs, repeat=2).request == wanted


@pytest.mark.parametrize(
    ("nodes", "gpus", "named"),
    [
        ("5", None, "4 nodes of partition gpu"),
        ("1", "1", "partition cpu"),
        ("1", "-1", "-1: "),
        ("1", "two", "'two'"),
        ("1", "0,0", "0 "),
    ],
)
def test_what_one_of_the_partitions_does_not_have_is_refused(
    nodes: str, gpus: str | None, named: str
) -> None:
    with sentences.raises("sweep.option", named) as caught:
        plans.parse_request(nodes, None, [limits("cpu", 8), limits("gpu", 4, 8)], gpus=gpus)
    assert caught.value.exit_code == 2


@pytest.fixture
def benchmark() -> Benchmark:
    """A benchmark on AWS, on a partition with GPUs; the other partition has none."""
    return Benchmark.of(
        AwsProvider(),
        StackUp.of(Stack(ROOT, "there"), parse(values("aws", {"@partition": "gpu"}), "there")),
    )


def test_each_case_has_a_script_of_its_own(benchmark: Benchmark) -> None:
    gpu = benchmark.partition
    wanted = benchmark.request("1,2", None, f"cpu, {gpu.name}")
    made = benchmark.plan(wanted, 1)
    scripts = benchmark.preparation(made)["scripts"]
    assert [(run.partition, run.nodes) for run in made.runs] == [
        ("cpu", 1), ("cpu", 2), (gpu.name, 1), (gpu.name, 2),
    ]  # fmt: skip
    for run in made.runs:
        lines = scripts[run.case.key].splitlines()
        assert f"#SBATCH --partition={run.partition}" in lines
        assert f"#SBATCH --nodes={run.nodes}" in lines
        gres = [line for line in lines if line.startswith("#SBATCH --gres")]
        assert gres == ([f"#SBATCH --gres=gpu:{gpu.usable_gpus}"] if run.partition == gpu.name else [])
    assert len({run.folder for run in made.runs}) == 4
    told = str(benchmark.cost(wanted)).splitlines()
    assert [line.partition(":")[0] for line in told] == ["cpu", gpu.name]

    devices = benchmark.plan(benchmark.request("1", None, None, "1,4"), 1)
    texts = list(benchmark.preparation(devices)["scripts"].values())
    assert ["--gres=gpu:1\n" in text for text in texts] == [True, False]
    assert ["--gres=gpu:4\n" in text for text in texts] == [False, True]
    with sentences.raises("sweep.option", "partition cpu"):
        benchmark.request("1", None, f"cpu,{gpu.name}", "1")


@pytest.mark.parametrize("text", ["", "gpus", "cpu,cpu", "cpu,,", "../x"])
def test_partitions_that_the_stack_does_not_have_are_refused(benchmark: Benchmark, text: str) -> None:
    with sentences.raises("sweep.partition", "cpu, gpu") as caught:
        benchmark.request("1", None, text)
    assert caught.value.exit_code == 2


# --- the runs' labels --------------------------------------------------------------------------------------


def test_a_plan_is_in_the_labels_of_its_runs() -> None:
    runs = (PlannedRun(1, 1, 1, "g"), PlannedRun(2, 2, 1, "f", partition="gpu", gpus=2))
    made = plan(runs=runs)
    jobs = [None, {"id": 9}]
    seen = [{"label": made.label(run), "job": job} for run, job in zip(runs, jobs, strict=True)]
    there = Plan.of("test", seen)
    assert there == dataclasses.replace(made, runs=(runs[0], dataclasses.replace(runs[1], job=9)))
    assert there.unsubmitted == [runs[0]]


# --- the state of a run as a row ---------------------------------------------------------------------------


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


# --- the summary and the cost estimate ---------------------------------------------------------------------


def trained(nodes: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """Return the record of a run whose only epoch took so long."""
    history = [{"epoch": 1, "loss": 0.5, "accuracy": 0.9, "seconds": seconds}]
    own = {"cores": nodes, "cores_shared": False, "cores_others": 0.02}
    return record(nodes, 1, **{"seconds_train": seconds, "history": history, **own, **changes})


def kept(nodes: int, seconds: float, **changes: Any) -> Kept:
    return Kept(Path("20261121T141109Z-job-1-0.json"), trained(nodes, seconds, **changes))


def test_medians_and_speed_up_over_one_node() -> None:
    results = [kept(1, 10.0), kept(1, 12.0), kept(1, 50.0), kept(2, 8.0), kept(4, 3.0)]
    ((title, lines),) = table.summary_tables(results, "test")
    text = "Medians on debug (local.small), 1 epoch, sync, digits-synthetic (not MNIST), 1 core a node"
    assert title == text
    assert [line.cores for line in lines] == ["1, 2 % others'", "2, 2 % others'", "4, 2 % others'"]
    assert [(line.nodes, line.runs, line.seconds, line.speed_up) for line in lines] == [
        (1, 3, 12.0, 1.0),
        (2, 1, 8.0, 1.5),
        (4, 1, 3.0, 4.0),
    ]
    ((_, (line,)),) = table.summary_tables([kept(2, 8.0)], "test")
    assert line.speed_up is None, "over two nodes it would be another figure"


def test_nodes_that_shared_cores_are_no_base_and_have_no_speed_up() -> None:
    shared = {"cores": 2, "cores_shared": True}
    results = [kept(1, 10.0), kept(2, 8.0), kept(4, 7.0, **shared), kept(1, 5.0, cores=2)]
    results.append(kept(1, 20.0, cores_others=0.5))
    found = {
        title.rpartition("(not MNIST), ")[2]: [(line.nodes, line.cores, line.speed_up) for line in lines]
        for title, lines in table.summary_tables(results, "test")
    }
    assert found == {
        "1 core a node": [(1, "1, 2 % others'", 1.0), (2, "2, 2 % others'", 1.25)],
        "nodes that shared cores": [(4, "2, shared, 2 % others'", None)],
        "2 cores a node": [(1, "2, 2 % others'", 1.0)],
        "other programs on the cores": [(1, "1, 50 % others'", None)],
    }


def test_runs_on_different_data_are_not_averaged() -> None:
    tables = table.summary_tables([kept(1, 10.0), kept(1, 20.0, data="mnist")], "test")
    assert [line.seconds for _, (line,) in tables] == [10.0, 20.0]
    assert "(not MNIST)" not in tables[1][0]


SAME = ("partition", "machine", "gpus_per_node", "profile", "epochs", "digest")
LIKE = {key: record(1, 1)[key] for key in SAME}


def test_cost_is_foretold_from_the_longest_earlier_result_of_the_same_kind() -> None:
    earlier = [
        kept(1, 1.0, seconds_total=3600),
        kept(1, 1.0, seconds_total=1800),
        kept(2, 1.0, seconds_total=1800),
        kept(2, 1.0, seconds_total=9999, epochs=2, history=[]),
    ]
    text = table.cost(SweepRequest((1, 2), 3), 2.0, LIKE, earlier)
    assert text is not None
    assert "a node costs 2 USD an hour; " in text
    assert "the runs cost 12.00 USD, plus" in text  # 3 x (2 + 2)


def test_cost_that_is_not_known_is_not_guessed() -> None:
    text = table.cost(SweepRequest((1, 2, 4), 1), 2.0, LIKE, [kept(1, 1.0)])
    assert text == "a node costs 2 USD an hour; no earlier result says how long a run on 2, 4 takes"
    assert table.cost(SweepRequest((1,), 1), None, LIKE, []) == "price of local.small unknown"
    assert table.cost(SweepRequest((1,), 1), 0.0, LIKE, []) is None
