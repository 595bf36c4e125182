"""`./cluster run` as a user sees it, with the real node code: arguments, failed runs, messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.commands import report
from cli.commands.report import Made
from infra.errors import UserError
from node.benchmark import Run
from tests.support import sentences, sweep_cluster
from tests.support.sweep_cluster import STACK, SweepUser


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SweepUser:
    return SweepUser(tmp_path, monkeypatch, capsys)


# --- a sweep from beginning to end -----------------------------------------------------------------------


def test_a_sweep_ends_in_its_summary_and_the_report(user: SweepUser, monkeypatch: pytest.MonkeyPatch) -> None:
    done = user.run("--nodes", "4, 1,2", "--repeat", "2")
    assert done.code == 0, done.err
    assert user.kept() == [(1, 1), (1, 2), (2, 3), (2, 4), (4, 5), (4, 6)]
    assert user.slurm.waits == {1: "", **{n: f"afterany:{n - 1}" for n in range(2, 7)}}
    assert len(set(user.slurm.submitted)) == 6
    lines = done.out.splitlines()
    assert lines[-2:] == ["/reports/report.html", "/reports/report.csv"]
    table = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert table == [
        ["1", "2", "60.0", "1000", "0.9000", "1.00", "1"],
        ["2", "2", "30.0", "2000", "0.9000", "2.00", "2"],
        ["4", "2", "15.0", "4000", "0.9000", "4.00", "4"],
    ]
    assert "digits-synthetic (not MNIST)" in done.out
    assert user.reports == [["test"]]
    assert user.left() == []
    said = done.err.splitlines()
    assert said[0] == "stack test: 6 runs on 1, 2 and 4 nodes of debug, 2 times each"
    of_run_3 = [line.partition("run 3 of 6 ")[2] for line in said if "run 3 of 6 " in line]
    assert of_run_3 == [
        "(2 nodes, 1 of 2) job 3: running on debug-0: the training starts",
        "(2 nodes, 1 of 2) job 3: done: 30.0 s, loss 0.5000, accuracy 0.9000",
    ]
    assert not any("queued" in line or "Dependency" in line for line in said)


def test_without_numbers_it_is_1_2_4_as_far_as_the_partition_goes(user: SweepUser) -> None:
    assert user.run().code == 0
    assert [nodes for nodes, _ in user.kept()] == [1, 2, 4]
    (user.project / "Pulumi.test.yaml").write_text(STACK.replace("max: 8", "max: 3"))
    assert user.run("--repeat", "2").code == 0
    assert [nodes for nodes, _ in user.kept()] == [1, 1, 1, 2, 2, 2, 4]


def test_a_second_sweep_has_folders_of_its_own(user: SweepUser) -> None:
    assert user.run("--nodes", "1").code == 0
    assert user.run("--nodes", "1").code == 0
    assert len(set(user.slurm.submitted)) == 2
    assert len(user.kept()) == 2


def test_many_runs_go_in_several_calls_and_one_chain(user: SweepUser) -> None:
    assert user.run("--nodes", "1", "--repeat", "25").code == 0
    assert user.slurm.waits == {1: "", **{n: f"afterany:{n - 1}" for n in range(2, 26)}}


# --- refused requests --------------------------------------------------------------------------------------


def test_every_mistake_in_the_numbers_is_said_at_once(user: SweepUser) -> None:
    done = user.run("--nodes", "0,x,,2,2,9,-1")
    assert (done.code, done.out) == (2, "")
    limit = f"slurm-stacks:cluster.partitions[0].nodes.max in {user.project}/Pulumi.test.yaml"
    wrong = ("0: ", "'x'", "2 is", "9 is", "8 nodes of partition debug", limit, "-1: ", "--nodes 1,2,4")
    sentences.printed(done.err, "sweep.option", *wrong)
    assert user.run("--repeat", "0").code == 2
    assert user.run("--nodes", "1,2,3", "--repeat", "100").code == 2
    assert user.run("--cancel", "--nodes", "1").code == 2
    assert (user.slurm.submitted, user.left()) == ([], [])


def test_a_stack_without_a_benchmark_is_told_what_to_set(user: SweepUser) -> None:
    (user.project / "Pulumi.test.yaml").write_text(STACK.replace("{epochs: 1}", "{enabled: false}"))
    done = user.run("--nodes", "1")
    assert done.code == 2
    sentences.printed(done.err, "sweep.no-benchmark", "slurm-stacks:benchmark.enabled")


def test_a_cluster_that_is_not_up(user: SweepUser) -> None:
    user.slurm.up = False
    done = user.run("--nodes", "1")
    assert done.code == 1
    sentences.printed(done.err, "cluster.not-up", "`./cluster up --stack test`")
    assert user.left() == []


def test_a_workload_that_is_not_on_the_cluster_begins_nothing(user: SweepUser) -> None:
    user.slurm.needed = False
    done = user.run("--nodes", "1")
    assert done.code == 1
    sentences.printed(done.err, "sweep.cluster-lacks", "/workload\n", "`./cluster up --stack test`")
    assert (user.slurm.submitted, user.left()) == ([], [])


def test_a_cluster_of_an_earlier_release_is_told(user: SweepUser) -> None:
    def unknown(_stage: str) -> None:
        usage = "slurm-stacks sweep: error: argument action: invalid choice: 'open' (choose from 'submit')"
        raise UserError(usage, code="tool.failed")

    user.slurm.hooks = {"open": unknown}
    done = user.run("--nodes", "1")
    assert done.code == 1
    sentences.printed(done.err, "sweep.cluster-lacks", "`./cluster up --stack test`")


# --- failed runs -------------------------------------------------------------------------------------------


def test_a_failed_run_is_named_and_the_others_have_results(user: SweepUser) -> None:
    user.slurm.broken = {2}
    done = user.run("--nodes", "1,2,4")
    assert done.code == 1
    assert user.kept() == [(1, 1), (4, 3)]
    told = done.err[done.err.rindex("run 2 (") :]
    sentences.printed(
        told, "sweep.runs-failed", "run 2 (2 nodes, 1 of 1), job 2: ", "FAILED", "words of job 2"
    )
    assert user.reports == [["test"]], "the report is made all the same"
    assert user.left() == []


def test_a_run_that_slurm_does_not_take_is_a_failed_one(user: SweepUser) -> None:
    def refuse(_stage: str) -> None:
        if len(user.slurm.submitted) == 1:
            user.slurm.hooks = {}
            raise RuntimeError("sbatch: error: Requested node configuration is not available")

    user.slurm.hooks = {"sbatch": refuse}
    done = user.run("--nodes", "1,2,4")
    assert done.code == 1
    assert "run 2 (2 nodes, 1 of 1): Slurm did not take it: sbatch: error: Requested node" in done.err
    assert [nodes for nodes, _ in user.kept()] == [1, 4]


def test_without_any_result_there_is_no_report(user: SweepUser) -> None:
    user.slurm.broken = {1}
    assert user.run("--nodes", "1").code == 1
    assert user.reports == []


def test_a_result_that_is_none_is_a_failure(user: SweepUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_cluster, "record", lambda nodes, job: {"job_id": str(job), "nodes": nodes})
    done = user.run("--nodes", "1")
    assert done.code == 1
    assert "[sweep.runs-failed]" in done.err
    assert "result.apiVersion" in done.err


def test_a_report_that_fails_does_not_hide_a_failed_run(
    user: SweepUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Made:
        raise UserError("no space for the report", code="system.no-space")

    monkeypatch.setattr(report, "make", fail)
    user.slurm.broken = {1}
    done = user.run("--nodes", "1,2")
    assert done.code == 1
    assert "no space for the report" in done.err
    assert "[sweep.runs-failed]" in done.err
    assert user.left() == []


def test_another_users_run_is_not_ones_own(user: SweepUser, monkeypatch: pytest.MonkeyPatch) -> None:
    show = Run.show
    monkeypatch.setattr(Run, "show", lambda run, jobs=None: {**show(run, jobs), "owner": "alice"})
    done = user.run("--nodes", "1")
    assert done.code == 1
    assert "[sweep.runs-failed]" in done.err
    assert "alice" in done.err
    assert user.kept() == []
