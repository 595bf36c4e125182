"""Tests of the training environment on the shared disk, which is made once from what is published."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from infra import bundle
from infra.clouds import shell
from infra.config import load_file
from infra.design import design as from_config
from infra.environments import lock_digest
from infra.instance_types.catalog import catalog
from node.bootstrap.command import CommandError
from node.bootstrap.context import Context, SkipStep
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import training
from node.design.model import ClusterDesign, Partition
from tests.support.checkout import ROOT
from tests.support.doubles import design
from tests.support.recorded import COMPUTE, T4, Recorder, machine


def head(folder: Path, partition: Partition = COMPUTE) -> tuple[Context, Recorder]:
    """A controller with its stack's published archive."""
    context, run = machine(folder, "controller", "controller", partitions=(partition,))
    with zipfile.ZipFile(io.BytesIO(bundle.node_archive(context.settings.design))) as archive:
        archive.extractall(folder / "root" / "opt/slurm-stacks/current")
    return context, run


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "NEEDED_MIB", {"cpu": 0, "gpu": 0, "own": 0})


def makes(run: Recorder, context: Context) -> None:
    """Fakes of uv and venv that make their files."""
    tools = context.at("opt/slurm-stacks/uv")

    def sync(*_argv: str) -> str:
        target = Path(run.options[-1]["env"]["UV_PROJECT_ENVIRONMENT"])
        (target / "bin").mkdir(parents=True)
        (target / "bin" / "python").touch()
        (target / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
        return ""

    run.answer("/usr/bin/python3 -m venv", lambda *_argv: tools.mkdir(parents=True) or "")  # type: ignore[func-returns-value]
    run.answer(f"{tools}/bin/uv sync", sync)


@pytest.mark.parametrize(("partition", "kind"), [(COMPUTE, "cpu"), (T4, "gpu")])
def test_it_is_made_where_the_benchmark_looks_for_it(tmp_path: Path, partition: Partition, kind: str) -> None:
    context, run = head(tmp_path, partition)
    makes(run, context)
    place = shell.shell_paths(context.settings.design).environment
    target = tmp_path / "root" / "apps" / "envs" / place
    assert place == lock_digest(ROOT, kind)
    assert training.prepare(context) == f"made {target}"
    assert (target / ".complete").exists()
    venv, pip, uv = run.calls
    assert venv == f"/usr/bin/python3 -m venv --clear {tmp_path}/root/opt/slurm-stacks/uv"
    assert "--require-hashes --requirement" in pip
    assert " sync --quiet --frozen --no-default-groups --python /usr/bin/python3 " in uv
    assert uv.endswith("opt/slurm-stacks/current/environment")
    assert run.options[-1]["env"]["UV_PYTHON_DOWNLOADS"] == "never"

    keras = target / "lib" / "python3.12" / "site-packages" / training.LEGACY_KERAS
    assert "TF_USE_LEGACY_KERAS" in keras.read_text()

    run.calls.clear()
    keras.unlink()
    assert training.prepare(context) == f"{target} is there"
    assert run.calls == []
    assert keras.exists(), "an environment that an earlier release has made gets it, too"


@pytest.mark.parametrize(("given", "kept"), [(None, "1"), ("0", "0"), ("1", "1")])
def test_python_chooses_keras_2_however_it_is_started(tmp_path: Path, given: str | None, kept: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "e")], check=True)
    training.choose_legacy_keras(tmp_path / "e")
    line = "import os; print(os.environ['TF_USE_LEGACY_KERAS'])"
    variables = {} if given is None else {"TF_USE_LEGACY_KERAS": given}
    python = [str(tmp_path / "e" / "bin" / "python"), "-c", line]
    assert (
        subprocess.run(python, env=variables, capture_output=True, text=True, check=True).stdout
        == f"{kept}\n"
    )


def test_uv_is_the_projects_own_by_its_hashes(tmp_path: Path) -> None:
    head(tmp_path)
    text = (tmp_path / "root/opt/slurm-stacks/current/environment/uv.txt").read_text()
    first, *rest = text.replace("\\\n", "").split()
    lock = (ROOT / "uv.lock").read_text()
    assert f'name = "uv"\nversion = "{first.removeprefix("uv==")}"' in lock
    assert len(rest) > 1
    assert all(word.removeprefix("--hash=") in lock for word in rest)


def test_a_build_that_failed_is_no_environment(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    makes(run, context)
    tools = tmp_path / "root/opt/slurm-stacks/uv"
    run.answer(f"{tools}/bin/uv", CommandError("uv sync: exit status 1\nno route to the index", 1))
    with pytest.raises(CommandError, match="no route"):
        training.prepare(context)
    assert not list((tmp_path / "root" / "apps" / "envs").glob("*/.complete"))
    again, run = machine(tmp_path, "controller", "controller", partitions=(COMPUTE,))
    makes(run, again)
    assert training.prepare(again).startswith("made ")
    assert len(run.calls) == 1, "uv itself is there"


def test_no_room_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, run = head(tmp_path, T4)
    monkeypatch.setattr(training, "NEEDED_MIB", {"cpu": 0, "gpu": 1 << 40})
    with pytest.raises(OSError, match=r"needs \d+ MiB in .*/apps/envs, and \d+ MiB are free .*size_gib"):
        training.prepare(context)
    assert run.calls == []


def test_two_boots_at_once_make_one(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    makes(run, context)
    said: list[str] = []
    boots = [threading.Thread(target=lambda: said.append(training.prepare(context))) for _ in range(3)]
    for boot in boots:
        boot.start()
    for boot in boots:
        boot.join(60)
    assert sorted(text.split()[0] for text in said)[-1] == "made"
    assert sum("sync" in call for call in run.calls) == 1


def test_local_archives_have_none_and_a_head_without_skips(tmp_path: Path) -> None:
    local: ClusterDesign = design()
    with zipfile.ZipFile(io.BytesIO(bundle.node_archive(local))) as archive:
        assert not [name for name in archive.namelist() if name.startswith("environment/")]
    context, _ = machine(tmp_path, "controller", "controller")
    with pytest.raises(SkipStep, match="no environment is published"):
        training.prepare(context)


def test_a_stack_without_a_benchmark_has_none(tmp_path: Path) -> None:
    """The environment is not published, and the controller makes none from an earlier archive."""
    context, run = head(tmp_path)
    plain = dataclasses.replace(context.settings.design, trains=False)
    context.settings = dataclasses.replace(context.settings, design=plain)
    with pytest.raises(SkipStep, match="no benchmark"):
        training.prepare(context)
    assert run.calls == []
    with zipfile.ZipFile(io.BytesIO(bundle.node_archive(plain))) as archive:
        assert not [name for name in archive.namelist() if name.startswith("environment/")]


@pytest.mark.parametrize(("said", "trains"), [("{enabled: false}", False), ("{partition: compute}", True)])
def test_the_stack_file_says_whether_there_is_one(tmp_path: Path, said: str, trains: bool) -> None:
    file = tmp_path / "Pulumi.aws-cpu.yaml"
    text, benchmark, _ = (ROOT / file.name).read_text().partition("  slurm-stacks:benchmark:")
    assert benchmark
    file.write_text(f"{text}{benchmark} {said}\n")
    assert from_config(load_file(file), catalog()).trains is trains


def test_the_limits_fit_into_the_step() -> None:
    (step,) = [step for step in STEPS if step.name == "environment"]
    assert step.timeout > training.SYNC_SECONDS
    assert step.roles == {"controller"}


def test_a_users_requirements_are_installed_into_an_environment_of_their_own(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    project = tmp_path / "root" / "opt/slurm-stacks/current/environment"
    (project / "uv.lock").unlink()
    (project / "requirements.txt").write_text("torch==2.9.1\n")
    tools = context.at("opt/slurm-stacks/uv")

    def venv(*argv: str) -> str:
        python = Path(argv[-1]) / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
        return ""

    run.answer("/usr/bin/python3 -m venv", lambda *_argv: tools.mkdir(parents=True) or "")  # type: ignore[func-returns-value]
    run.answer(f"{tools}/bin/uv venv", venv)
    target = tmp_path / "root" / "apps" / "envs" / training.requirements_digest(b"torch==2.9.1\n")
    assert training.prepare(context) == f"made {target}"
    assert (target / ".complete").exists()
    *_, make, install = run.calls
    assert make == f"{tools}/bin/uv venv --quiet --allow-existing --python /usr/bin/python3 {target}"
    assert install == (
        f"{tools}/bin/uv pip install --quiet --python {target}/bin/python "
        f"--requirement {project}/requirements.txt"
    )
    assert training.prepare(context) == f"{target} is there"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_an_environment_of_another_user_is_removed_and_made(tmp_path: Path, kind: str) -> None:
    """The disk may be older than the cluster, and jobs of all users run what is there."""
    context, run = head(tmp_path)
    makes(run, context)
    envs = tmp_path / "root" / "apps" / "envs"
    theirs, elsewhere = envs / lock_digest(ROOT, "cpu"), tmp_path / "elsewhere"
    for made in (elsewhere, theirs) if kind == "folder" else (elsewhere,):
        (made / "bin").mkdir(parents=True)
        (made / "bin" / "python").touch()
        (made / ".complete").touch()
    if kind == "link":
        envs.mkdir()
        theirs.symlink_to(elsewhere)
    (envs / f".{theirs.name}.lock").symlink_to(tmp_path / "new")
    for path in (envs, *envs.iterdir()):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    assert training.prepare(context) == f"made {theirs}"
    assert {path.lstat().st_uid for path in (envs, *envs.iterdir())} == {0}
    assert not theirs.is_symlink()
    assert (elsewhere / "bin" / "python").exists()
    assert not (tmp_path / "new").exists()
