"""`down --checkout OLD`: the cluster of a checkout that is gone ends as one whose checkout is there."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from cli import main
from cli.changes.decision import ClusterControl
from cli.console.progress import Console
from cli.local import orphaned_clusters, running
from cli.local.agent_lifecycle import end_cluster
from cli.local.run_directory import RunDirectory
from cli.runner import lock
from infra import config
from infra.design import design
from infra.errors import EXIT_REFUSED, UserError
from infra.instance_types.catalog import catalog
from infra.program import locations, owner
from infra.program.stack import Stack
from tests.support.checkout import ROOT
from tests.support.job_lines import inner, told

JOBS = "held=debug\n7|ann|debug|debug-[0-1]|RUNNING||train\n8|ann|debug||PENDING||later\n"


class Slurm:
    """The cluster's Slurm: it records the lines that are run, and answers each with the same jobs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answer: str | UserError = JOBS

    def run(self, line: str, _seconds: float) -> str:
        self.lines.append(inner(line))
        if isinstance(self.answer, UserError):
            raise self.answer
        return told(self.answer)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(running, "control", lambda _run, _stack: ClusterControl(made.run))
    return made


@pytest.fixture
def gone(tmp_path: Path) -> Path:
    return tmp_path / "it's gone"


@pytest.fixture
def run(gone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The run directory of a cluster whose checkout is gone. None of its processes runs."""
    published = design(config.load_file(ROOT / "Pulumi.local.yaml"), catalog())
    monkeypatch.setattr(running, "published", lambda _run: published)
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "run" / "0123456789"
    folder.mkdir(parents=True)
    note = {"checkout": str(gone), "stack": "test", "identity": [1, 2]}
    (folder / locations.NOTE).write_text(json.dumps(note))
    (folder / owner.OWNER).write_text(f"{owner.EMBEDDED}\n")
    return RunDirectory(folder)


def down(gone: Path, *, yes: bool = False) -> None:
    main.down(Stack(ROOT, "test"), gone, yes)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., bool]) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(Console, "live", property(lambda _console: True))
    monkeypatch.setattr(typer, "confirm", answer)


def test_its_jobs_are_named_and_have_their_time(
    run: RunDirectory, gone: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    down(gone)
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == [
        "2 jobs end with the cluster:",
        "  job 7 train (ann, RUNNING on debug-[0-1])",
        "  job 8 later (ann, PENDING on debug)",
    ]
    assert "no further job starts" in said, "there is no ./cluster exec that would let them start again"
    hold, end = slurm.lines
    assert "State=DOWN" in hold
    assert end.startswith("scancel --quiet 7; "), "SIGTERM"
    assert "end=$(($(date +%s) + 45)); until" in end, "and the grace"
    assert said[-1] == "nothing is left"
    assert not run.path.exists()


def test_on_a_terminal_it_asks_and_who_keeps_the_jobs_keeps_the_cluster(
    run: RunDirectory, gone: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch, lambda *_arguments, **_options: False)
    with pytest.raises(UserError, match="the cluster of stack test and its jobs go on") as caught:
        down(gone)
    assert caught.value.exit_code == EXIT_REFUSED
    assert run.path.exists()
    assert "State=UP" in slurm.lines[-1]
    on_a_terminal(monkeypatch, lambda *_arguments, **_options: pytest.fail("it asks"))
    down(gone, yes=True)
    assert not run.path.exists()


def test_an_up_that_outlived_its_checkout_is_not_disturbed(
    run: RunDirectory, gone: Path, slurm: Slurm
) -> None:
    with lock.held(Stack(gone, "test"), "up"), pytest.raises(UserError) as caught:
        down(gone)
    assert caught.value.exit_code == EXIT_REFUSED
    assert f"`up` (pid {os.getpid()}) is working on stack test" in str(caught.value)
    assert (run.path.exists(), slurm.lines) == (True, [])
    down(gone)
    assert not locations.state_root().exists() or not list(locations.state_root().iterdir())


def test_a_cluster_that_does_not_answer_ends_all_the_same(
    run: RunDirectory, gone: Path, slurm: Slurm, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.answer = UserError("the controller is dead.\n`./cluster up` would start it")
    down(gone)
    assert capsys.readouterr().err.splitlines() == [
        "the cluster does not answer, so nobody knows which jobs run (the controller is dead); it is ended "
        "all the same",
        "taking the cluster down …",
        "nothing is left",
    ]
    assert not run.path.exists()


def test_what_is_left_is_named_and_another_call_finds_it(
    run: RunDirectory,
    gone: Path,
    slurm: Slurm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = "file:///elsewhere"
    (run.path / owner.OWNER).write_text(f"{backend}\n")

    def end_most(cluster: RunDirectory) -> None:
        for file in cluster.path.iterdir():
            file.unlink()

    monkeypatch.setattr(orphaned_clusters, "end_cluster", end_most)
    with pytest.raises(UserError) as caught:
        down(gone)
    assert caught.value.exit_code == 1
    assert str(caught.value).splitlines() == [
        "these are left of stack test:",
        f"  folder {run.path}",
        f"Run `./cluster down --stack test --checkout {shlex.quote(str(gone))}` again.",
    ]
    assert "nothing" not in capsys.readouterr().err
    monkeypatch.setattr(orphaned_clusters, "end_cluster", end_cluster)
    down(gone)
    said = capsys.readouterr().err.splitlines()
    assert said[-2] == "nothing else is left"
    assert said[-1].startswith(f"Pulumi's backend {backend} still has the stack")


def test_the_command_that_is_named_survives_a_shell(
    run: RunDirectory, gone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDirectory, "pids", lambda _run: [1])
    (message,) = orphaned_clusters.messages(ROOT)
    command = message.split("`")[-2]
    assert shlex.split(command) == ["./cluster", "down", "--stack", "test", "--checkout", str(gone)]
