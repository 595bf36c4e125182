"""Clusters side by side: of two clones, of two stacks of one clone, of a clone that is moved or deleted."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from localcloud.machines import pids_of_cluster
from operations.local.agent import end_cluster
from operations.local.run_directory import RunDirectory
from tests.support.checkout import SMALL, Checkout
from tests.support.wide import wide

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


# By default the case of one clone, whose stacks share a folder, has all that keeps two clusters apart.
@pytest.mark.parametrize("clones", [1, *wide(2)])
def test_two_clones_and_two_stacks_never_meet(make_checkout: Make, clones: int) -> None:
    one = make_checkout(name="ein Klön %n #1")
    if clones == 1:
        two = copy.copy(one)
        two.stack = "other"
        two.write_stack(SMALL)
    else:
        two = make_checkout(name="a clone")
    both = (one, two)
    try:
        for checkout in both:
            checkout.cluster("up", check=True)
        assert one.run_directory != two.run_directory
        taken = [port for checkout in both for port in ports(checkout)]
        assert len(taken) == len(set(taken)), "two clusters would listen on one port"
        assert [where(checkout) for checkout in both] == [str(ports(checkout)[0]) for checkout in both]

        processes = [pid for checkout in both for pid in checkout.processes()]
        assert len(processes) == len(set(processes))
        one.cluster("down", check=True)
        assert one.processes() == []
        assert not one.run_directory.exists()
        assert where(two) == str(ports(two)[0]), "the other one goes on"
    finally:
        assert two.close() == []


@pytest.mark.wide
def test_a_clone_that_is_moved_takes_its_running_cluster_along(make_checkout: Make) -> None:
    checkout = make_checkout(name="first name")
    checkout.cluster("up", check=True)
    run, controller = checkout.run_directory, where(checkout)
    old = checkout.folder
    checkout.folder = old.rename(old.with_name("second name"))
    assert json.loads(checkout.cluster("status", "--json", check=True).stdout)["jobs"] == []
    # A machine that starts now belongs to a checkout that was moved.
    assert checkout.cluster("exec", "--", "srun", "-N5", "hostname", check=True).stdout.count("\n") == 5
    again = checkout.cluster("up", check=True)
    assert "created" not in again.stderr

    newcomer = make_checkout(name="first name")
    newcomer.env["XDG_STATE_HOME"] = checkout.env["XDG_STATE_HOME"]  # of the same user
    newcomer.cluster("up", check=True)
    assert newcomer.run_directory != run
    assert where(newcomer) != controller
    assert where(checkout) == controller
    for each in (newcomer, checkout):
        assert "nothing is left" in each.cluster("down", check=True).stderr
    assert not run.exists()
    assert checkout.processes() == []


@pytest.mark.wide
@pytest.mark.parametrize("what", ["checkout", "state"])
def test_a_cluster_whose_checkout_or_state_was_deleted_is_listed_and_ended(
    make_checkout: Make, what: str
) -> None:
    deleted, other = make_checkout(name="deleted"), make_checkout(name="other")
    deleted.env["XDG_STATE_HOME"] = other.env["XDG_STATE_HOME"]  # of the same user
    deleted.cluster("up", check=True)
    run, gone = deleted.run_directory, deleted.folder
    assert deleted.processes()
    try:
        (listed,) = listing(other)
        assert (listed["checkout"], listed["gone"], listed["state"]) == (str(gone), False, "up")
        wrong = other.cluster("down", "--cluster", listed["id"])
        assert wrong.returncode == 3
        assert "which is there: run" in wrong.stderr
        if what == "checkout":
            shutil.rmtree(gone)
            deleted.folder = other.folder  # the fixture takes the cluster down from a folder with a ./cluster
        else:
            shutil.rmtree(deleted.state.parent)  # git clean -xdf
            refused = deleted.cluster("up")
            assert refused.returncode == 3
            assert f"`./cluster down --cluster {listed['id']}` ends the cluster" in refused.stderr
        (listed,) = listing(other)
        assert (listed["gone"], listed["state"], listed["nodes"]) == (True, "up", 0)
        assert f"./cluster down --cluster {listed['id']}`" in other.cluster("status").stderr
        ended = other.cluster("down", "--cluster", listed["id"], check=True)
        assert ended.stderr.endswith("nothing is left\n")
        assert not run.exists()
    finally:
        if run.exists():
            end_cluster(RunDirectory(run))
    assert pids_of_cluster(run) == []
    assert listing(other) == []


def listing(checkout: Checkout) -> list[dict[str, Any]]:
    command = [str(checkout.folder / "cluster"), "list", "--json"]
    done = subprocess.run(command, env=checkout.env, capture_output=True, text=True, timeout=120, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
