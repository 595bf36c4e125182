"""The doctor's checks of what exists already: this stack's cluster, leftovers, other clusters."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.engine import state
from cli.findings import Finding, Severity
from cli.providers import condition
from cli.providers.local.diagnosis import cluster
from infra.program import folders, locations, owner
from infra.program.stack import Stack
from localcloud.machines import CLUSTER_VARIABLE
from node.system import rpc
from operations.local import machine_access
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.checkout import until
from tests.support.fake_host import seen


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "Pulumi.yaml").touch()
    return tmp_path / "project"


@pytest.fixture
def run(project: Path) -> RunDirectory:
    """The run directory of a cluster that was brought up without the Pulumi CLI."""
    owner.claim(Stack(project, "test"), owner.EMBEDDED)
    made = RunDirectory.make(Stack(project, "test"))
    (made.path / "run").mkdir()
    return made


def the(project: Path) -> Finding:
    (found,) = cluster.present(Stack(project, "test"))
    return found


@contextmanager
def serving(socket: Path, answers: dict[str, Any]) -> Iterator[None]:
    server = rpc.Server(str(socket), lambda method, _: answers[method])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield
    finally:
        server.close()
        thread.join()


def machine(role: str, state: str = "running") -> dict[str, Any]:
    return {"state": state, "tags": {"role": role}}


@contextmanager
def process_of(run: Path) -> Iterator[int]:
    child = subprocess.Popen(["sleep", "300"], env={CLUSTER_VARIABLE: str(run)}, stdin=subprocess.DEVNULL)
    try:
        until(lambda: Path(f"/proc/{child.pid}/environ").read_bytes(), 60, "the process's environment")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def test_nothing_is_there(project: Path) -> None:
    assert the(project) == Finding("cluster.state", the(project).severity, "not up yet")
    assert seen([the(project)]) == {"cluster.state": "fine"}


def test_a_restart_has_taken_the_run_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "outputs", lambda *_: {"cluster": {}})
    assert seen([the(project)]) == {"cluster.state": "warns"}
    sentences.finding(the(project), "cluster.state", Severity.WARNS)


def test_processes_without_a_run_directory(project: Path) -> None:
    with process_of(locations.run_dir(Stack(project, "test"))) as pid:
        found = the(project)
        assert seen([found]) == {"cluster.leftovers": "warns"}
        line = "`./cluster down --stack test`"
        sentences.finding(found, "cluster.leftovers", Severity.WARNS, line, varies=[pid])
    assert seen([the(project)]) == {"cluster.state": "fine"}


def test_a_run_directory_without_an_owner(project: Path) -> None:
    run = folders.make_run_dir(Stack(project, "test"))
    found = the(project)
    assert seen([found]) == {"cluster.leftovers": "warns"}
    sentences.finding(found, "cluster.leftovers", Severity.WARNS)
    assert "processes" not in found.found
    with process_of(run) as pid:
        sentences.finding(the(project), "cluster.leftovers", Severity.WARNS, varies=[pid])


def test_long_lists_are_cut() -> None:
    assert cluster._listed([1, 2, 3]) == "1, 2, 3"
    assert cluster._listed([1, 2, 3, 4, 5]) == "1, 2, 3 and 2 more"


def test_a_cluster_whose_agent_is_dead(project: Path, run: RunDirectory) -> None:
    assert seen([the(project)]) == {"cluster.agent": "warns"}
    with serving(run.agent_socket, {}):
        assert seen([the(project)]) == {"cluster.agent": "warns"}, "it answers with an error"


def test_a_cluster_without_a_controller(project: Path, run: RunDirectory) -> None:
    left = [machine("compute"), machine("controller", "terminated")]
    with serving(run.agent_socket, {"list": {"machines": left}}):
        found = the(project)
    assert seen([found]) == {"cluster.controller": "warns"}
    sentences.finding(found, "cluster.controller", Severity.WARNS)


def test_a_cluster_whose_daemon_is_dead(project: Path, run: RunDirectory) -> None:
    with serving(run.agent_socket, {"list": {"machines": [machine("controller")]}}):
        assert seen([the(project)]) == {"cluster.daemon": "warns"}


def test_a_cluster_that_is_up(project: Path, run: RunDirectory) -> None:
    up = [
        machine("controller"),
        machine("compute"),
        machine("compute", "pending"),
        machine("compute", "terminated"),
    ]
    with (
        serving(run.agent_socket, {"list": {"machines": up}}),
        serving(run.path / "run" / "elastic.sock", {"ping": {}}),
    ):
        found = the(project)
    assert seen([found]) == {"cluster.state": "fine"}
    sentences.finding(found, "cluster.state", Severity.FINE)


QUIET: dict[str, Any] = {"partitions": [], "nodes": [], "reservations": [], "cost": {}}
"""The parts of a status that the doctor reads, with nothing to say."""


@pytest.mark.parametrize(
    ("used", "words"), [(0.79, None), (0.8, "80% of the budget is used"), (1.3, "is used up: no new node")]
)
def test_a_budget_that_is_nearly_used(
    project: Path, run: RunDirectory, used: float, words: str | None
) -> None:
    answers = {"ping": {}, "status": {**QUIET, "cost": {"budget": {"used": used}}}}
    with (
        serving(run.agent_socket, {"list": {"machines": [machine("controller")]}}),
        serving(run.path / "run" / "elastic.sock", answers),
    ):
        found = {f.check: f for f in cluster.present(Stack(project, "test"))}
    assert found.pop("cluster.state").severity.value == "fine"
    if words is None:
        assert found == {}
    else:
        (told,) = found.values()
        assert (told.check, told.severity.value) == ("cluster.budget", "warns")
        assert words in told.found
        sentences.finding(told, "cluster.budget", Severity.WARNS, "Pulumi.test.yaml")


@pytest.mark.parametrize(
    ("used", "words"),
    [(0.79, None), (0.8, "80% of the budget of account rest is used"), (1.0, "no job of it starts")],
)
def test_a_budget_of_an_account_that_is_nearly_used(used: float, words: str | None) -> None:
    found = [*condition.budget({"budget": None, "accounts": [{"account": "rest", "used": used}]}, "test")]
    assert [words in told.found for told in found if words] == ([] if words is None else [True])
    for told in found:
        sentences.finding(told, "account.budget", Severity.WARNS, "Pulumi.test.yaml")


def test_nodes_whose_devices_failed(project: Path, run: RunDirectory) -> None:
    nodes = [
        {"name": "gpu-0", "state": "MIXED+CLOUD+DRAIN", "reason": "slurm-stacks health: GPU 1: too hot"},
        {"name": "gpu-1", "state": "IDLE+CLOUD+DRAIN", "reason": "slurm-stacks health: GPU 1: too hot"},
        {"name": "gpu-2", "state": "IDLE+CLOUD+POWERED_DOWN", "reason": "slurm-stacks health: replaced"},
        {"name": "gpu-3", "state": "IDLE+CLOUD+DRAIN", "reason": None},
    ]
    with (
        serving(run.agent_socket, {"list": {"machines": [machine("controller")]}}),
        serving(run.path / "run" / "elastic.sock", {"ping": {}, "status": {**QUIET, "nodes": nodes}}),
    ):
        told, _ = cluster.present(Stack(project, "test"))
    sentences.finding(told, "cluster.health", Severity.WARNS, "0-1", "gpu-0")


def test_what_somebody_took_out_of_service(project: Path, run: RunDirectory) -> None:
    nodes = [{"name": "debug-0", "state": "IDLE+CLOUD+FAIL", "reason": "fan"}]
    with (
        serving(run.agent_socket, {"list": {"machines": [machine("controller")]}}),
        serving(run.path / "run" / "elastic.sock", {"ping": {}, "status": {**QUIET, "nodes": nodes}}),
    ):
        told, _ = cluster.present(Stack(project, "test"))
    sentences.finding(told, "cluster.service", Severity.WARNS, "debug-0")


def test_the_budget_where_machines_have_a_run_folder_of_their_own(
    project: Path, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = run.path / "run of the controller"
    monkeypatch.setattr(machine_access, "daemon_socket", lambda _: str(elsewhere))
    with (
        serving(run.agent_socket, {"list": {"machines": [machine("controller")]}}),
        serving(elsewhere, {"ping": {}, "status": {**QUIET, "cost": {"budget": {"used": 1.0}}}}),
    ):
        assert seen(cluster.present(Stack(project, "test"))) == {
            "cluster.budget": "warns",
            "cluster.state": "fine",
        }
