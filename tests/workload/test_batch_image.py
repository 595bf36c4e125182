"""The container's Dockerfile: its parts are pinned and exist, and its programs need nothing else."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.batch_job import ROOT

CONTEXT = ROOT / "workload"
FILE = CONTEXT / "batch" / "Dockerfile"
HOME = "/opt/slurm-stacks/workload"


def instructions() -> list[tuple[str, str]]:
    """Return every instruction with its arguments on one line, in order."""
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(name, rest.strip()) for name, _, rest in split]


def of(kind: str) -> list[str]:
    return [rest for name, rest in instructions() if name == kind]


def ignored(path: Path) -> bool:
    """Return whether the build leaves a file of the context out."""
    name = path.relative_to(CONTEXT).as_posix()
    lines = FILE.with_name(f"{FILE.name}.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    folders = [name, *map(str, Path(name).parents)]
    return any(
        fnmatch.fnmatch(part, pattern.removeprefix("**/"))
        for pattern in patterns
        for part in (path.parts if pattern.startswith("**/") else folders)
    )


def test_the_base_is_pinned_by_its_digest_and_the_same_day_as_the_packages() -> None:
    given = dict(arg.partition("=")[::2] for arg in of("ARG"))
    found = re.fullmatch(r"debian:bookworm-(\d{8})-slim@sha256:[0-9a-f]{64}", given["BASE"])
    assert found
    assert given["SNAPSHOT"] == f"{found[1]}T000000Z"
    stages = [re.fullmatch(r"(\S+)(?: AS (\w+))?", rest) for rest in of("FROM")]
    bases = [stage[1] for stage in stages if stage]
    assert bases == ["${BASE}", "base", "base"]


def test_every_package_has_a_version() -> None:
    """Versions of Debian's packages have a star only for the revision, which the snapshot's date fixes."""
    installs = [part for run in of("RUN") for part in run.split("&&") if "apt-get install" in part]
    packages = [word for part in installs for word in part.split()[2:] if not word.startswith("--")]
    assert len(packages) >= 7
    assert [one for one in packages if not re.fullmatch(r"[a-z0-9.-]+=\S*\d\S*", one)] == []
    pips = [part for run in of("RUN") for part in run.split("&&") if "pip install" in part]
    assert len(pips) == 1
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (uv,) = (package for package in lock["package"] if package["name"] == "uv")
    (wheel,) = (one["hash"] for one in uv["wheels"] if "-manylinux_2_17_x86_64." in one["url"])
    (named,) = (part for run in of("RUN") for part in run.split("&&") if "> /opt/uv.txt" in part)
    assert named.split()[1:-2] == [f'"uv=={uv["version"]}', f'--hash={wheel}"'], "the project's own"
    assert pips[0].split()[-3:] == ["--require-hashes", "--requirement", "/opt/uv.txt"]
    (sync,) = (run for run in of("RUN") if " sync " in run)
    assert "--frozen" in sync


def test_files_that_the_image_copies_exist() -> None:
    for rest in of("COPY"):
        *sources, target = rest.split()
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            assert (CONTEXT / source).exists(), source
            assert source == "." or not ignored(CONTEXT / source), source
        if sources == ["."]:
            assert target == HOME
    copied = [path.name for path in CONTEXT.rglob("*") if path.is_file() and not ignored(path)]
    assert {"entry.py", "train.py", "resize.py", "rendezvous.py"} <= set(copied)
    assert [name for name in copied if name.endswith(".pyc") or name.startswith("Dockerfile")] == []


def test_no_host_key_is_in_the_image() -> None:
    (run,) = (run for run in of("RUN") if "openssh-server" in run)
    assert run.endswith("/etc/ssh/ssh_host_*")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The image's folder with our code, and nothing else."""
    home = tmp_path / "opt" / "slurm-stacks" / "workload"
    for path in CONTEXT.rglob("*"):
        if path.is_file() and not ignored(path):
            target = home / path.relative_to(CONTEXT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return home.parent


def test_the_entry_point_runs_in_the_image_on_the_standard_library_alone(image: Path, tmp_path: Path) -> None:
    (given,) = of("ENTRYPOINT")
    tini, dashes, python, *rest = json.loads(given)
    assert (tini, dashes, python) == ("/usr/bin/tini", "--", "python3")
    (variables,) = of("ENV")
    assert "PYTHONPATH=/opt/slurm-stacks" in variables.split()
    env = {
        "PYTHONPATH": str(image),
        "JOB_DIR": str(tmp_path),
        "SCRATCH_DIR": str(tmp_path),
        "PATH": "/bin:/usr/bin",
    }
    # -S: none of this environment's packages.
    command = [sys.executable, "-S", *rest, "sh", "-c", 'echo \'{"loss": 1}\' >"$SLURM_STACKS_RESULT"']
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line.removeprefix("RESULT "))["loss"] == 1


@pytest.mark.tensorflow
def test_the_default_program_is_in_the_image(image: Path) -> None:
    command = [sys.executable, "-m", "workload.resnet.train", "--help"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(image)}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "--checkpoint-steps" in done.stdout
