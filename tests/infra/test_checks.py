"""`./cluster test`: what it runs, in which environment, and that nothing failed goes unsaid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from infra import checks
from infra.errors import UserError
from infra.local import packages, training

PROJECT = Path("/project")


class Commands:
    """Takes the place of every command; those with a failing word in them fail."""

    def __init__(self) -> None:
        self.run: list[list[str]] = []
        self.env: dict[str, str] = {}
        self.failing: set[str] = set()

    def __call__(self, command: Any, _project: Path, env: dict[str, str]) -> int:
        self.run.append([str(part) for part in command])
        self.env = env
        return 1 if self.failing & set(self.run[-1]) else 0


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(checks, "_run", made)
    monkeypatch.setattr(packages, "ensure", lambda _say, **_options: None)
    monkeypatch.setattr(training, "build", lambda *_arguments, **_more: Path("/trainer"))
    return made


def modules(commands: Commands) -> list[tuple[str, str]]:
    """(interpreter, module) of each command."""
    return [(command[0], command[2]) for command in commands.run]


def test_everything_is_run_each_with_its_own_interpreter(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checks.run_checks(tmp_path, []) == 0
    assert modules(commands) == [
        (sys.executable, "ruff"),
        (sys.executable, "ruff"),
        (sys.executable, "mypy"),
        (sys.executable, "pytest"),
        ("/trainer/bin/python", "pytest"),
        (sys.executable, "coverage"),
    ]
    first, second = commands.run[3:5]
    # Between them the two see every test exactly once.
    assert first[3:5] == ["--ignore", "tests/workload"]
    assert second[3] == "tests/workload"
    assert "--cov-append" in first
    assert "--cov-append" in second
    # A module's tests share a cluster.
    assert first[-3:-1] == ["--dist", "loadfile"]
    assert capsys.readouterr().out.endswith("== all passed\n")


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("format", "ruff format --check"),
        ("mypy", "mypy --strict"),
        ("--ignore", "tests"),
        ("tests/workload", "tests of the workload"),
    ],
)
def test_a_failure_is_named_and_does_not_hide_the_rest(
    commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, named: str
) -> None:
    commands.failing = {word}
    assert checks.run_checks(tmp_path, []) == 1
    assert len(commands.run) == 6
    last = capsys.readouterr().out.splitlines()[-1]
    assert named in last
    assert last.startswith("== failed: ")


def test_arguments_are_pytests_and_nothing_else_runs(commands: Commands, tmp_path: Path) -> None:
    assert checks.run_checks(tmp_path, ["tests/node", "-k", "x"]) == 0
    assert commands.run == [[sys.executable, "-m", "pytest", "tests/node", "-k", "x"]]
    commands.failing = {"-k"}
    assert checks.run_checks(tmp_path, ["tests/node", "-k", "x"]) == 1


def test_nothing_of_the_callers_leads_the_tests_elsewhere(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_CONF", "SLURM_STACKS_RUNNER", "PULUMI_CONFIG_PASSPHRASE"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    checks.run_checks(tmp_path, ["x"])
    assert {k for k in commands.env if k.startswith(("SLURM_", "PULUMI_CONFIG"))} == {"SLURM_STACKS_PROJECT"}
    assert (commands.env["PYTHONPATH"], commands.env["SLURM_STACKS_PROJECT"]) == (str(tmp_path),) * 2
    assert "PATH" in commands.env


def test_old_coverage_does_not_count_and_no_configuration_is_lost(commands: Commands, tmp_path: Path) -> None:
    for name in (".coverage", ".coverage.host.1.x", ".coveragerc"):
        (tmp_path / name).touch()
    checks.run_checks(tmp_path, [])
    assert [p.name for p in tmp_path.iterdir()] == [".coveragerc"]


def test_without_slurm_the_rest_still_runs(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_say: Any, *, accounting: bool = False) -> None:
        raise UserError(f"only root can install {'slurmdbd' if accounting else 'slurmctld'}")

    monkeypatch.setattr(packages, "ensure", refuse)
    assert checks.run_checks(tmp_path, []) == 0
    told = capsys.readouterr().out
    assert "tests of a real cluster are skipped: only root can install slurmctld" in told
    assert "tests of accounting are skipped: only root can install slurmdbd" in told
    assert len(commands.run) == 6


def test_the_real_thing_runs_where_the_project_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os, sys; sys.exit(len(os.environ['A']) + len(os.listdir()))"]
    assert checks._run(command, tmp_path, {"A": "abc"}) == 3
