"""Clusters side by side: of two clones, of two stacks of one clone, of a clone that is moved or deleted."""

from __future__ import annotations

import copy
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.local.agent_lifecycle import end_cluster
from cli.local.run_directory import RunDirectory
from localcloud.machines import pids_of_cluster
from tests.support.checkout import SMALL, Checkout

Make = Callable[..., Checkout]


def ports(checkout: Checkout) -> range:
    kept = json.loads((checkout.run_directory / "ports.json").read_text())
    return range(kept["base"], kept["base"] + kept["count"])


def where(checkout: Checkout) -> str:
    """Run a job on two nodes, and return the cluster's controller as the job sees it."""
    seen = checkout.execute("srun", "-N2", "sh", "-c", "scontrol show config | grep SlurmctldPort")
    one, other = seen.splitlines()
    assert one == other
    return one.split()[-1]


def test_two_clones_and_two_stacks_never_meet(make_checkout: Make) -> None:
    one, two = make_checkout(name="a clone"), make_checkout(name="ein Klön %n #1")
    third = copy.copy(two)
    third.stack = "other"
    third.write_stack(SMALL)
    three = (one, two, third)
    try:
        for checkout in three:
            checkout.cluster("up", check=True)
        assert len({checkout.run_directory for checkout in three}) == 3
        taken = [port for checkout in three for port in ports(checkout)]
        assert len(taken) == len(set(taken)), "two clusters would listen on one port"
        assert [where(checkout) for checkout in three] == [str(ports(checkout)[0]) for checkout in three]

        processes = [pid for checkout in three for pid in checkout.processes()]
        assert len(processes) == len(set(processes))
        two.cluster("down", check=True)
        assert two.processes() == []
        assert not two.run_directory.exists()
        assert "is UP" in third.execute("scontrol", "ping"), "the other stack of the same clone goes on"
    finally:
        assert third.close() == []
    assert where(one) == str(ports(one)[0])


@pytest.mark.wide
def test_a_clone_that_is_renamed_keeps_its_cluster(make_checkout: Make) -> None:
    checkout = make_checkout(name="first name")
    checkout.cluster("up", check=True)
    run, controller = checkout.run_directory, where(checkout)
    old = checkout.folder
    checkout.folder = old.rename(old.with_name("second name"))
    assert checkout.run_directory == run
    # A machine that starts now belongs to a checkout that was moved.
    assert checkout.execute("srun", "-N5", "hostname").count("\n") == 5
    again = checkout.cluster("up", check=True)
    assert "created" not in again.stderr

    newcomer = make_checkout(name="first name")
    assert newcomer.run_directory == run, "who is at the old place now owns the cluster, and nobody else"
    assert checkout.run_directory != run
    assert checkout.cluster("status").returncode == 1
    shutil.rmtree(newcomer.folder)
    newcomer.folder = checkout.folder
    assert where(checkout) == controller
    done = checkout.cluster("down", check=True)
    assert "nothing is left" in done.stderr
    assert not run.exists()
    assert checkout.processes() == []


@pytest.mark.wide
def test_the_cluster_of_a_clone_that_was_deleted_is_named_and_ended(
    make_checkout: Make, tmp_path: Path
) -> None:
    deleted, other = make_checkout(name="deleted"), make_checkout(name="other")
    deleted.cluster("up", check=True)
    run, processes = deleted.run_directory, deleted.processes()
    assert processes
    wrong = other.cluster("down", "--checkout", str(deleted.folder))
    assert wrong.returncode == 3
    assert f"{deleted.folder} is there: run `./cluster down --stack test` in it" in wrong.stderr
    gone = deleted.folder
    shutil.rmtree(gone)
    # The fixture takes the cluster down from a folder that has a ./cluster.
    deleted.folder = other.folder
    try:
        for command in (("status",), ("down",)):
            said = other.cluster(*command).stderr
            assert f"./cluster down --stack test --checkout {shlex.quote(str(gone))}`" in said
        unknown = other.cluster("down", "--checkout", str(tmp_path / "never"))
        assert unknown.returncode == 1
        assert str(gone) in unknown.stderr

        # A checkout's state lies in the state folder of that checkout's user.
        state = {"XDG_STATE_HOME": deleted.env["XDG_STATE_HOME"]}
        other.cluster("down", "--checkout", str(gone), check=True, env=state)
        assert not run.exists()
    finally:
        if run.exists():
            end_cluster(RunDirectory(run))
    assert pids_of_cluster(run) == []
    assert not (Path(deleted.env["XDG_STATE_HOME"]) / "slurm-stacks" / run.name).exists()
    assert str(gone) not in other.cluster("status").stderr
