"""The doctor's checks of folders: the run directory, and the cache with the training environment."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from cli.findings import Severity, examine
from cli.providers.local import diagnosis, host_checks
from cli.providers.local.diagnosis import cluster_folders
from infra import os_errors
from infra.environments import digest, lock_digest
from infra.program import folders, locations
from infra.program.stack import Stack
from node.bootstrap.vm.training import COMPLETE
from node.design.model import BenchmarkDesign, Partition
from operations.local import environment_builds
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.doubles import design
from tests.support.fake_host import seen

DESIGN = design()
TRAINED = BenchmarkDesign("keras-mnist", "debug", 2, 0, 1, "sync", "auto")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose lock file is the real one; run root, cache and state below the test's folder."""
    lock = tmp_path / "project" / "workload" / "envs" / "cpu" / "uv.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text((ROOT / "workload" / "envs" / "cpu" / "uv.lock").read_text())
    monkeypatch.setattr(locations, "run_root", lambda: tmp_path / "runs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(os_errors, "noexec", lambda _: False)
    monkeypatch.setattr(os_errors, "free_mib", lambda _: 50_000)
    monkeypatch.setattr(cluster_folders, "_unsafe", lambda _: [])
    # A test's folder has a long name.
    monkeypatch.setattr(cluster_folders, "_too_long", lambda *_: None)
    return tmp_path / "project"


def of_run(project: Path) -> dict[str, str]:
    return seen(cluster_folders.run_folder(Stack(project, "test"), DESIGN))


def test_a_user_with_and_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(cluster_folders.user()) == {"user.name": "fine"}
    monkeypatch.setattr(host_checks, "unnamed_user", lambda: "user 7 has no name. Have a line added.")
    assert seen(cluster_folders.user()) == {"user.name": "stops"}


def test_a_run_directory_that_may_be(project: Path) -> None:
    assert of_run(project) == {"run.folder": "fine"}
    folders.make_run_dir(Stack(project, "test"))
    assert of_run(project) == {"run.folder": "fine"}


def test_a_run_directory_that_is_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path)
    checks = [
        check for check in diagnosis.checks(Stack(project, "test"), DESIGN, None) if check.name == "run"
    ]
    (found,) = examine(checks)
    assert seen([found]) == {"run": "stops"}
    sentences.finding(found, "run", Severity.STOPS)


def test_a_run_directory_where_nothing_can_be_executed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os_errors, "noexec", lambda _: True)
    (found,) = cluster_folders.run_folder(Stack(project, "test"), DESIGN)
    assert seen([found]) == {"run.folder": "stops"}
    sentences.finding(found, "run.folder", Severity.STOPS)


def test_a_run_directory_that_cannot_be_made(project: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    assert seen(
        examine([c for c in diagnosis.checks(Stack(project, "test"), DESIGN, None) if c.name == "run"])
    ) == {"run": "stops"}


def test_room_in_the_run_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_errors, "free_mib", lambda _: 64)
    assert of_run(project) == {"run.folder": "fine"}
    monkeypatch.setattr(os_errors, "free_mib", lambda _: 63)
    assert of_run(project) == {"run.folder": "stops"}


def test_folders_above_in_which_others_could_exchange_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "tmp" / "runs" / "abc"
    run.parent.mkdir(parents=True)

    def unsafe() -> dict[str, str]:
        # The folders of pytest itself are for their owner alone.
        above = {str(folder) for folder in tmp_path.parents}
        return seen(
            f for f in cluster_folders._unsafe(run) if f.found.split()[0] not in above | {str(tmp_path)}
        )

    for mode, expected in (
        (0o1777, {}),
        (0o755, {}),
        (0o777, {"run.parents": "stops"}),
        (0o775, {"run.parents": "stops"}),
        # Nobody else need come in.
        (0o1770, {}),
        (0o700, {}),
    ):
        (tmp_path / "tmp").chmod(mode)
        assert unsafe() == expected, oct(mode)
    (tmp_path / "tmp").chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert ("run.parents" in unsafe()) is (os.getuid() != 0), "root's folders are anybody's to rely on"
    if os.getuid() == 0:
        os.chown(tmp_path / "tmp", 4712, -1)
        assert unsafe() == {"run.parents": "stops"}


def test_sockets_whose_names_would_be_too_long(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    short = Path("/tmp/slurm-stacks-4294967295/0123456789")
    assert cluster_folders._too_long(short, DESIGN) is None
    long = design(Partition("p" * 40, "local.small", 1, 100, 0, 2))
    assert "bytes too long" in (cluster_folders._too_long(short, long) or "")
    monkeypatch.setattr(locations, "run_root", lambda: short.parent)
    found = {f.check: f for f in cluster_folders.run_folder(Stack(project, "test"), long)}
    assert seen([found["run.path"]]) == {"run.path": "stops"}
    assert "p" * 40 in found["run.path"].found


def test_the_training_environment(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(cluster_folders.training_environment(project, None)) == {"training.environment": "fine"}
    (found,) = cluster_folders.training_environment(project, TRAINED)
    assert seen([found]) == {"training.environment": "fine"}
    sentences.finding(found, "training.environment", Severity.FINE, "`up`")

    target = locations.cache_root() / "apps" / "envs" / lock_digest(project, "cpu")
    (target / "bin").mkdir(parents=True)
    (target / COMPLETE).touch()
    (found,) = cluster_folders.training_environment(project, TRAINED)
    sentences.finding(found, "training.environment", Severity.FINE, "`up`")
    (target / "bin" / "python").touch()
    (found,) = cluster_folders.training_environment(project, TRAINED)
    sentences.finding(found, "training.environment", Severity.FINE, target)
    monkeypatch.setattr(os_errors, "free_mib", lambda _: 1)
    assert seen(cluster_folders.training_environment(project, TRAINED)) == {"training.environment": "fine"}


def test_a_cache_that_will_not_do(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_errors, "free_mib", lambda _: environment_builds.NEEDED_MIB - 1)
    assert seen(cluster_folders.training_environment(project, TRAINED)) == {"training.space": "stops"}
    monkeypatch.setattr(os_errors, "free_mib", lambda _: environment_builds.NEEDED_MIB)
    assert "training.space" not in seen(cluster_folders.training_environment(project, TRAINED))
    monkeypatch.setattr(os_errors, "noexec", lambda _: True)
    assert seen(cluster_folders.training_environment(project, TRAINED)) == {"training.noexec": "stops"}
    (tmp_path / "cache").touch()
    (found,) = cluster_folders.training_environment(project, TRAINED)
    assert seen([found]) == {"training.cache": "stops"}
    sentences.finding(found, "training.cache", Severity.STOPS)


def test_a_program_of_the_users_is_asked_for_its_own_environment(project: Path) -> None:
    (project / "requirements.txt").write_text("torch==2.9.1\n")
    program = dataclasses.replace(TRAINED, script="train.py", requirements="requirements.txt")
    (found,) = cluster_folders.training_environment(project, program)
    assert seen([found]) == {"training.environment": "fine"}
    sentences.finding(found, "training.environment", Severity.FINE, "`up`", "requirements.txt")
    target = locations.cache_root() / "apps" / "envs" / digest("cpu", "requirements.txt", project)
    (target / "bin").mkdir(parents=True)
    (target / "bin" / "python").touch()
    (target / COMPLETE).touch()
    (found,) = cluster_folders.training_environment(project, program)
    sentences.finding(found, "training.environment", Severity.FINE, target)
