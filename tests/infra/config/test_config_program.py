"""A program of the user as the benchmark: the stack file, what is staged, and its script."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra import bundle, environments
from infra.benchmark import BenchmarkRun, Workload
from infra.config import ConfigError, parse
from infra.design import benchmark_design, design
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from infra.local import LocalShell
from infra.program import mode
from node.bootstrap.vm.training import requirements_digest
from tests.support import sentences
from tests.support.aws_mocks import aws_design
from tests.support.checkout import ROOT
from tests.support.doubles import design as local_design
from tests.support.stack_values import BENCHMARK, CLUSTER, values
from workload.program import LAUNCHER


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the launcher and a program."""
    folder = tmp_path / "a project"
    for name in ("workload/envs/cpu/uv.lock", "uv.lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    for name in [*LAUNCHER, "train.py"]:
        (folder / "workload" / name).write_bytes((ROOT / "workload" / name).read_bytes())
    write(folder, "train.py", "print(1)\n")
    write(folder, "code/model.py", "x = 1\n")
    write(folder, "code/__pycache__/model.pyc", "x")
    write(folder, "code/.git/config", "x")
    write(folder, "run.sh", "#!/bin/sh\n").chmod(0o755)
    write(folder, "package/__main__.py", "print(2)\n")
    write(folder, "requirements.txt", "# ours\ntorch==2.9.1\n--extra-index-url https://example.org/cpu\n")
    return folder


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(said: dict[str, Any], project: Path | None, stack: str = "local") -> Any:
    return parse({**values(stack), BENCHMARK: said}, stack, project=project)


def mistakes(said: dict[str, Any], project: Path | None) -> dict[str, str]:
    """Return the mistakes: path below the benchmark -> code."""
    with pytest.raises(ConfigError) as caught:
        read(said, project)
    return {m.path.removeprefix(f"{BENCHMARK}."): m.code for m in caught.value.mistakes}


# --- the stack file --------------------------------------------------------------------------------------


def test_a_program_and_all_that_it_may_have(project: Path) -> None:
    said = {
        "script": "train.py",
        "files": ["code", "run.sh"],
        "arguments": ["--epochs", 10, "--lr", 0.1, "two words"],
        "requirements": "requirements.txt",
        "nodes": 2,
    }
    config = read(said, project)
    cluster_design = design(config, catalog())
    training = benchmark_design(config, cluster_design)
    assert training is not None
    assert training.own
    assert training.staged == ("train.py", "code", "run.sh")
    assert training.arguments == ("--epochs", "10", "--lr", "0.1", "two words")
    assert cluster_design.requirements == training.requirements == "requirements.txt"
    built_in = read({"nodes": 2}, project)
    found = benchmark_design(built_in, design(built_in, catalog()))
    assert found is not None
    assert (found.own, found.staged, found.script) == (False, (), "keras-mnist")


@pytest.mark.parametrize(
    "said",
    [
        # A folder that is no package, and what lies elsewhere than beside the script, takes no place.
        {"script": "train.py", "files": ["code"]},
        {"script": "code/talk.py", "files": ["numpy.py"]},
        {"script": "run.sh", "files": ["numpy.py"]},
    ],
)
def test_a_name_of_a_package_that_python_does_not_import(said: dict[str, Any], project: Path) -> None:
    write(project, "numpy.py", "x = 1\n")
    write(project, "code/talk.py", "x = 1\n")
    assert read(said, project).benchmark.script == said["script"]


# benchmark, path of the one mistake and its code
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"script": "none.py"}, "script", "benchmark.file"),
    ({"script": "/etc/passwd"}, "script", "benchmark.path-outside"),
    ({"script": "../train.py"}, "script", "benchmark.path-outside"),
    ({"script": "-x.py"}, "script", "benchmark.path-outside"),
    ({"script": "https://example.org/train.py"}, "script", "benchmark.path-outside"),
    ({"script": "."}, "script", "benchmark.path-outside"),
    ({"script": "code"}, "script", "benchmark.file"),
    ({"script": "notes.txt"}, "script", "benchmark.file"),
    ({"script": "crlf.sh"}, "script", "benchmark.file"),
    ({"script": "late.sh"}, "script", "benchmark.file"),
    ({"script": "keras.py"}, "script", "benchmark.shadows-package"),
    ({"script": "train.py", "files": ["random.py"]}, "files[0]", "benchmark.shadows-package"),
    ({"script": "train.py", "files": ["code", "torch"]}, "files[1]", "benchmark.shadows-package"),
    ({"script": "latin.py"}, "script", "benchmark.file"),
    ({"script": "out.py"}, "script", "benchmark.file"),
    ({"script": "train.py", "files": ["linked"]}, "files[0]", "benchmark.file"),
    ({"script": "train.py", "files": ["code", "big"]}, "files[1]", "benchmark.file"),
    ({"script": "train.py", "files": ["empty"]}, "files[0]", "benchmark.file"),
    ({"script": "train.py", "files": ["pipe"]}, "files[0]", "benchmark.file"),
    ({"script": "train.py", "requirements": "no.txt"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "nothing.txt"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "more.txt"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "local.txt"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "uv.lock"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "environment.yml"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "requirements": "latin.py"}, "requirements", "benchmark.requirements"),
    ({"script": "train.py", "tasks_per_node": 2}, "tasks_per_node", "benchmark.too-many-tasks"),
    ({"script": "train.py", "tasks_per_node": 0}, "tasks_per_node", "value.range"),
    ({"script": "train.py", "arguments": ["a\nb"]}, "arguments[0]", "benchmark.argument"),
    ({"script": "train.py", "container": "/home/b"}, "container", "benchmark.container-needs-runtime"),
    ({"container": "/home/b"}, "container", "benchmark.program-only"),
    ({"script": "train.py", "epochs": 8}, "epochs", "benchmark.built-in-only"),
    ({"script": "train.py", "learning_rate": 0.1}, "learning_rate", "benchmark.built-in-only"),
    ({"script": "train.py", "profile": "sync"}, "profile", "benchmark.built-in-only"),
    ({"arguments": ["--x"]}, "arguments", "benchmark.program-only"),
    ({"tasks_per_node": 1}, "tasks_per_node", "benchmark.program-only"),
    ({"requirements": "requirements.txt"}, "requirements", "benchmark.program-only"),
    ({"files": []}, "files", "benchmark.program-only"),
]


@pytest.fixture
def odd_files(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the project with files that cannot be staged."""
    monkeypatch.setattr("infra.benchmark.MOST_BYTES", 1 << 20)
    write(project, "notes.txt", "no program\n")
    write(project, "crlf.sh", "#!/bin/sh\r\necho hi\r\n")
    write(project, "late.sh", "# Copyright Example\n#!/bin/sh\necho hi\n")
    write(project, "environment.yml", "dependencies:\n  - python=3.11\n  - numpy\n")
    for name in ("keras.py", "random.py", "torch/__init__.py"):
        write(project, name, "x = 1\n")
    write(project, "latin.py", b"# \xe9\n")
    write(project, "big/data.bin", b"x" * (1 << 20))
    (project / "empty" / "__pycache__").mkdir(parents=True)
    outside = write(project.parent, "outside.py", "x")
    (project / "out.py").symlink_to(outside)
    (project / "linked").mkdir()
    (project / "linked" / "a.py").symlink_to(outside)
    os.mkfifo(project / "pipe")
    write(project, "nothing.txt", "# none\n\n")
    write(project, "more.txt", "torch\n-r other.txt\n")
    write(project, "local.txt", "mine @ ./mine\n")
    return project


@pytest.mark.parametrize(("benchmark", "path", "code"), REFUSED)
def test_what_a_plan_refuses(odd_files: Path, benchmark: dict[str, Any], path: str, code: str) -> None:
    assert mistakes(benchmark, odd_files) == {path: code}


def test_the_sentences(odd_files: Path, pytestconfig: pytest.Config) -> None:
    def texts() -> Iterator[str]:
        for benchmark, *_ in REFUSED:
            with pytest.raises(ConfigError) as caught:
                read(benchmark, odd_files)
            yield from map(str, caught.value.mistakes)
        program = {"script": "train.py", "container": "bundle", "requirements": "requirements.txt"}
        for runtime in ("oci", "pyxis"):
            with pytest.raises(ConfigError) as caught:
                with_containers({**program, "tasks_per_node": 2}, odd_files, runtime=runtime)
            yield from map(str, caught.value.mistakes)

    sentences.check(
        pytestconfig, __file__, (text.replace(str(odd_files), "/path/of/the/project") for text in texts())
    )


def with_containers(said: dict[str, Any], project: Path, **more: Any) -> Any:
    cluster = values("local")
    cluster[CLUSTER] |= {"containers": {"runtime": "oci", **more}, "local": {"isolation": "container"}}
    return parse({**cluster, BENCHMARK: said}, "local", project=project)


def test_a_container_is_a_bundle_on_the_cluster_and_brings_the_packages(project: Path) -> None:
    config = with_containers({"script": "train.py", "container": "/home/a bundle"}, project)
    cluster_design = design(config, catalog())
    training = benchmark_design(config, cluster_design)
    assert training is not None
    script = BenchmarkRun.of(cluster_design, training, LocalShell("local"), project).script
    assert script.count("--container='/home/a bundle'") == 2, "of the step and of the record"
    assert " python3 -P -m workload.launcher launch" in script
    for path in ("bundle", "docker://pytorch/pytorch", "/home/../etc", "/"):
        with pytest.raises(ConfigError) as caught:
            with_containers({"script": "train.py", "container": path}, project)
        (mistake,) = caught.value.mistakes
        assert mistake.code == "benchmark.container-path"
    said = {"requirements": "requirements.txt", "tasks_per_node": 2}
    with pytest.raises(ConfigError) as caught:
        with_containers({"script": "train.py", "container": "/home/b", **said}, project)
    found = {m.path.removeprefix(f"{BENCHMARK}.") for m in caught.value.mistakes}
    assert found >= said.keys()
    package = {"source": "pyxis.deb", "sha256": "0" * 64}
    (project / "pyxis.deb").write_text("x")
    with pytest.raises(ConfigError) as caught:
        with_containers(
            {"script": "train.py", "container": "/home/b"}, project, runtime="pyxis", packages=[package]
        )
    assert [m.code for m in caught.value.mistakes] == ["benchmark.container-needs-oci"]


def test_all_mistakes_come_at_once(project: Path) -> None:
    said = {"script": "no.py", "epochs": 3, "data": "mnist", "requirements": "no.txt", "nodes": 9}
    assert set(mistakes(said, project)) == {"script", "epochs", "data", "requirements", "nodes"}


def test_without_the_projects_folder_only_the_text_is_checked() -> None:
    """A Pulumi program gets the values without the file."""
    assert read({"script": "none.py", "requirements": "none.txt"}, None).benchmark.script == "none.py"
    assert set(mistakes({"script": "../x.py"}, None)) == {"script"}


# --- what is staged --------------------------------------------------------------------------------------


def archived(workload: Workload) -> dict[str, int]:
    """Return an archive's content: name -> mode."""
    with tarfile.open(fileobj=io.BytesIO(workload.archive())) as tar:
        return {member.name: member.mode for member in tar}


def test_a_program_is_staged_with_the_launcher_alone(project: Path) -> None:
    made = Workload.of(project, ["train.py", "code", "run.sh", "code/model.py"])
    files = {"files/train.py": 0o644, "files/code/model.py": 0o644, "files/run.sh": 0o755}
    launcher = dict.fromkeys(LAUNCHER, 0o644)
    assert archived(made) == {f"workload/{name}": mode for name, mode in {**files, **launcher}.items()}
    assert "train.py" not in LAUNCHER, "the built-in training is not staged with it"


def test_names_contents_and_modes_are_a_change_and_nothing_else(project: Path) -> None:
    own = ["train.py", "run.sh"]
    first = Workload.of(project, own).digest
    (project / "workload" / "train.py").write_text("another built-in training\n")
    (project / "code" / "model.py").write_text("not among the files\n")
    (project / "train.py").touch()
    assert Workload.of(project, own).digest == first
    found = {first, Workload.of(project, ["train.py"]).digest}
    (project / "run.sh").chmod(0o644)
    found.add(Workload.of(project, own).digest)
    (project / "train.py").write_text("print(3)\n")
    found.add(Workload.of(project, own).digest)
    write(project, "workload/launcher.py", "another launcher\n")
    found.add(Workload.of(project, own).digest)
    assert len(found) == 5


def test_the_digest_is_of_all_names_lengths_modes_and_contents(tmp_path: Path) -> None:
    """Files that only AWS Batch's container has are not staged, so their changes start no training."""
    shutil.copytree(ROOT / "workload", tmp_path / "workload")
    for folder in ("batch", "resnet"):
        shutil.rmtree(tmp_path / "workload" / folder)
    # The names, lengths and contents, in order, decide whether a running stack's training starts again.
    total = hashlib.sha256()
    for name, content in bundle.tree(tmp_path / "workload"):
        total.update(f"{name}\0{len(content)}\0-\0".encode() + content)
    assert Workload.of().digest == total.hexdigest()


def test_a_file_that_is_missing_ends_the_program_in_one_sentence(project: Path) -> None:
    with pytest.raises(UserError, match=r"^slurm-stacks:benchmark: 'no\.py' cannot be staged: a file or"):
        Workload.of(project, ["train.py", "no.py"])
    with pytest.raises(UserError, match=r"^slurm-stacks:benchmark.requirements: 'no\.txt' cannot be used"):
        environments.read(project, "no.txt")


def test_the_run_names_the_program_its_arguments_and_its_environment(project: Path) -> None:
    said = {"script": "train.py", "arguments": ["--name", "it's"], "nodes": 2}
    config = read(said, project)
    cluster_design = design(config, catalog())
    training = benchmark_design(config, cluster_design)
    assert training is not None
    run = BenchmarkRun.of(cluster_design, training, LocalShell("local"), project)
    assert run.own == ("train.py",)
    assert shlex.join(["train.py", "--name", "it's"]) in run.script
    assert "#SBATCH --job-name=train\n" in run.script
    assert "#SBATCH --ntasks-per-node=1\n" in run.script
    assert f"SLURM_STACKS_WORKLOAD_DIGEST={run.workload_digest}\n" in run.script
    other = BenchmarkRun.of(cluster_design, replace(training, arguments=()), LocalShell("local"), project)
    assert other.staged == run.staged
    assert other.folder != run.folder


# --- its packages ----------------------------------------------------------------------------------------


def test_an_environment_is_named_by_the_files_text(project: Path) -> None:
    content = (project / "requirements.txt").read_bytes()
    first = environments.digest("cpu", "requirements.txt", project)
    assert first == environments.digest("gpu", "requirements.txt", project) == requirements_digest(content)
    assert first != environments.digest("cpu", None, project) == environments.lock_digest(project, "cpu")
    write(project, "requirements.txt", "torch==2.9.2\n")
    assert environments.digest("cpu", "requirements.txt", project) != first


def test_a_clouds_controller_gets_the_requirements_instead_of_the_lock(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "node").symlink_to(ROOT / "node")
    made = replace(aws_design(), trains=True, requirements="requirements.txt", hooks=())
    with zipfile.ZipFile(io.BytesIO(bundle.node_archive(made, project))) as archive:
        names = {name for name in archive.namelist() if name.startswith("environment/")}
        text = archive.read("environment/requirements.txt")
    assert names == {"environment/requirements.txt", "environment/uv.txt"}
    assert bundle.training_digest(made, project) == requirements_digest(text)


def test_the_local_stack_builds_the_environment_that_the_script_names(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "folder", lambda: project)
    shell = LocalShell("local", requirements="requirements.txt")
    assert shell.environment == environments.digest("cpu", "requirements.txt", project)
    assert local_design().requirements is None
