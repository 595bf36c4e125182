"""`up` with its benchmark: a real training on two nodes through sbatch, its result, and a run that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands.report.runs import MUCH
from tests.support.checkout import Checkout

pytestmark = pytest.mark.tensorflow

STACK = """
    config:
      slurm-stacks:cluster:
        provider: local
        local: {{price_hour: 36}}
        partitions:
          - {{name: debug, instance_type: local.small, nodes: {{max: 4}}, default: true}}
        slurm: {{suspend_time: 4}}
      slurm-stacks:benchmark: {{nodes: {nodes}, epochs: 1, data: synthetic}}
"""


def kept(checkout: Checkout) -> list[Path]:
    return sorted(Path(checkout.env["XDG_STATE_HOME"]).glob("slurm-stacks/results/test/*.json"))


@pytest.mark.timeout(600)
def test_up_trains_and_a_second_up_finds_the_result(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK.format(nodes=2))
    up = checkout.cluster("up", check=True, timeout=500)
    (file,) = kept(checkout)
    result = json.loads(file.read_text())["result"]
    assert result["apiVersion"] == "slurm-stacks/result/v1"
    assert (result["nodes"], result["workers"], result["epochs"]) == (2, 2, 1)
    assert (result["stack"], result["partition"], result["machine"]) == ("test", "debug", "local.small")
    assert result["data"] == "digits-synthetic"
    assert result["profile"] == "local-sgd", "by default"
    assert 1 <= result["average_every"] <= 32
    # Each worker has a core of its own, unless other clusters of this host use them.
    assert (result["cores"] == 2) or result["cores_shared"]
    assert result["test_accuracy"] > 0.9
    assert 0 < result["start_latency_seconds"] < 600
    # 36 USD an hour is a cent a second, for each of the two nodes.
    assert result["cost_usd"] == pytest.approx(result["seconds_total"] * 0.02, rel=0.2)
    assert "not MNIST" in up.stdout
    assert f"Result of job {result['job_id']}" in up.stdout
    # A node that shared a core and moved from it does not know what others took.
    others = result["cores_others"]
    assert result["cores_shared"] if others is None else 0 <= others <= 1
    # There is no run of one node to compare with. Other programs of this host may have disturbed the run.
    how = "shared" if result["cores_shared"] else "took" if result["cores_others"] >= MUCH else "measures"
    (last,) = [line for line in up.stderr.splitlines() if "how much faster" in line]
    assert how in last
    assert "trained about" not in up.stderr
    assert "cores" in up.stdout
    assert "back to 0 nodes" in up.stderr

    outputs = up.stdout.split("benchmark_result")[1].split()[0]
    assert json.loads(Path(outputs).read_text()) == result
    script = Path(outputs).with_name("run_keras").read_text()
    for directive in ("--partition=debug", "--job-name=keras-job", "--nodes=2", "--output=out-keras.txt"):
        assert f"#SBATCH {directive}\n" in script
    lines = Path(outputs).with_name("out-keras.txt").read_text().splitlines()
    assert lines[:2] == ["debug-0", "debug-[0-1]"]

    again = checkout.cluster("up", check=True)
    assert f"Result of job {result['job_id']}" in again.stdout
    assert "created" not in again.stderr
    assert kept(checkout) == [file]
    assert checkout.execute("squeue", "--noheader") == ""


# By default test_program_cluster.py shows the same of a program of the user.
@pytest.mark.wide
def test_a_training_that_fails_is_shown_and_submitted_anew(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK.format(nodes=1))
    broken = checkout.folder / "workload" / "train.py"
    whole = broken.read_text()
    broken.write_text("raise SystemExit('no such luck')\n")
    failed = checkout.cluster("up", timeout=280)
    assert failed.returncode == 1
    assert "job 1 ended (FAILED) without a result" in failed.stderr
    assert "no such luck" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert kept(checkout) == []
    # Nothing changed, so no resource runs. But the user wants a result, so the run is tried again.
    second = checkout.cluster("up", timeout=280)
    assert "job 2 ended (FAILED)" in second.stderr
    folders = list(checkout.run_directory.glob("shared/bench/*/*/job-1/out-keras.txt"))
    assert len(folders) == 1
    assert "no such luck" in folders[0].read_text()
    broken.write_text(whole)


@pytest.mark.wide
def test_without_a_benchmark_up_only_brings_the_cluster_up(make_checkout: Callable[..., Checkout]) -> None:
    checkout = make_checkout(STACK.format(nodes=1).replace("{nodes: 1", "{enabled: false, nodes: 1"))
    up = checkout.cluster("up", check=True)
    assert "Result" not in up.stdout
    assert "benchmark_result" not in up.stdout
    assert "test-benchmark" not in up.stderr, "no resource of it"
    assert checkout.execute("squeue", "--noheader") == ""
