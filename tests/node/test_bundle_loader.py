"""Tests of the node archive, whose name is a digest of its content, and of the loader that fetches it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from infra import bundle
from infra.benchmark import Workload
from infra.errors import EXIT_USAGE
from node import loader
from node.design.containers import Containers, Package
from node.design.model import Hook, Settings
from node.system.codec import from_json
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.doubles import design, settings

HOOKS = (Hook("compute", "hooks/driver.sh"), Hook("all", "hooks/other/driver.sh", ("x",)))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a little node code, a workload and hooks."""
    root = tmp_path / "project"
    for name in ("node/elastic", "workload", "hooks/other"):
        (root / name).mkdir(parents=True)
    (root / "infra").mkdir()
    (root / "infra" / "design.py").write_text("not for nodes\n")
    for name in ("__init__.py", "b.py", "a.py", "elastic/__init__.py"):
        (root / "node" / name).write_text(f"# {name}\n")
    (root / "workload" / "train.py").write_text("print()\n")
    (root / "hooks" / "driver.sh").write_text("#!/bin/sh\n")
    (root / "hooks" / "other" / "driver.sh").write_text("#!/bin/sh\nexit 1\n")
    return root


def archive(root: Path, *hooks: Hook) -> bytes:
    return bundle.node_archive(design(hooks=tuple(hooks)), root)


def names(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_a_package_of_the_project_travels_by_its_hash_and_another_content_is_refused(project: Path) -> None:
    content = b"a package"
    (project / "pyxis.deb").write_bytes(content)
    package = Package("pyxis.deb", hashlib.sha256(content).hexdigest())
    away = Package("https://h/enroot.deb", "0" * 64)
    packed = bundle.node_archive(design(containers=Containers("pyxis", (package, away))), project)
    assert [name for name in names(packed) if name.startswith("packages/")] == [package.archived()]
    wrong = dataclasses.replace(package, sha256="1" * 64)
    with sentences.raises("bundle.hash", package.sha256, "packages[0].source", "pyxis.deb"):
        bundle.node_archive(design(containers=Containers("pyxis", (wrong,))), project)


# --- the bundle ------------------------------------------------------------------------------------------


def test_the_archive_holds_the_node_code_and_the_hooks(project: Path) -> None:
    content = archive(project, *HOOKS)
    assert names(content) == [
        "hooks/0-driver.sh",
        "hooks/1-driver.sh",
        "node/__init__.py",
        "node/a.py",
        "node/b.py",
        "node/elastic/__init__.py",
    ]
    entries = zipfile.ZipFile(io.BytesIO(content))
    assert entries.read("hooks/1-driver.sh") == b"#!/bin/sh\nexit 1\n"
    assert {info.compress_type for info in entries.infolist()} == {zipfile.ZIP_STORED}


def test_equal_content_has_an_equal_digest(project: Path, tmp_path: Path) -> None:
    first, tree = archive(project, *HOOKS), Workload.of(project).digest
    # Another checkout, with a different order, time and permissions of files, that has been used.
    other = tmp_path / "elsewhere" / "clone"
    for path in sorted(project.rglob("*"), reverse=True):
        if path.is_file():
            target = other / path.relative_to(project)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            os.utime(target, (1, 1))
            target.chmod(0o600)
    for rest in ("node/__pycache__/a.pyc", "node/b.pyc", "workload/__pycache__/t.pyc"):
        (other / rest).parent.mkdir(exist_ok=True)
        (other / rest).write_text("left by Python")
    (other / "workload" / ".venv" / "lib").mkdir(parents=True)
    (other / "workload" / ".venv" / "lib" / "x.py").write_text("")
    assert archive(other, *HOOKS) == first
    assert Workload.of(other).digest == tree
    assert bundle.digest(first) == hashlib.sha256(first).hexdigest()


def test_a_change_of_content_name_or_hook_is_a_change(project: Path) -> None:
    seen = {archive(project, *HOOKS), archive(project, *HOOKS[:1]), archive(project, *HOOKS[::-1])}
    (project / "hooks" / "driver.sh").write_text("#!/bin/sh\ntrue\n")
    seen.add(archive(project, *HOOKS))
    (project / "node" / "a.py").rename(project / "node" / "c.py")
    seen.add(archive(project, *HOOKS))
    assert len(seen) == 5
    trees = {Workload.of(project).digest}
    for name, text in (("train.py", "print(1)\n"), ("a", "x"), ("b", "")):
        (project / "workload" / name).write_text(text)
        trees.add(Workload.of(project).digest)
    # The digest separates a name from its content: `a` with "x" differs from `ax` with nothing.
    (project / "workload" / "a").rename(project / "workload" / "ax")
    (project / "workload" / "ax").write_text("")
    trees.add(Workload.of(project).digest)
    assert len(trees) == 5


def test_a_hook_that_is_not_there_is_a_mistake_in_the_stack_file(project: Path) -> None:
    with sentences.raises("bundle.no-file", "cluster.hooks[1].source", "hooks/no.sh") as caught:
        archive(project, HOOKS[0], Hook("all", "hooks/no.sh"))
    assert caught.value.exit_code == EXIT_USAGE
    with sentences.raises("bundle.no-file", "hooks[0].source"):
        archive(project, Hook("all", "hooks"))


def test_the_real_node_code_runs_from_its_archive_alone(tmp_path: Path) -> None:
    """The archive needs only the standard library, and nothing else of the project."""
    with zipfile.ZipFile(io.BytesIO(archive(ROOT))) as content:
        content.extractall(tmp_path)
    modules = [
        "node.bootstrap.main", "node.elastic.daemon", "node.elastic.drivers.local",
        "node.command_line", "node.slurm.conf", "node.loader",
    ]  # fmt: skip
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    subprocess.run([sys.executable, "-IS", "-c", code], check=True, cwd="/", timeout=60)


def test_settings_and_pointer_have_their_shape(tmp_path: Path) -> None:
    made = settings(tmp_path)
    text = bundle.settings_object(made)
    assert from_json(Settings, json.loads(text)) == made
    assert bundle.settings_object(dataclasses.replace(made)) == text
    pointer = bundle.current(b"code", text)
    assert pointer == {
        "apiVersion": "slurm-stacks/bundle/v1",
        "code": {
            "key": f"code/{hashlib.sha256(b'code').hexdigest()[:16]}.zip",
            "sha256": hashlib.sha256(b"code").hexdigest(),
        },
        "settings": {
            "key": f"settings/{hashlib.sha256(text).hexdigest()[:16]}.json",
            "sha256": hashlib.sha256(text).hexdigest(),
        },
    }


# --- the loader ------------------------------------------------------------------------------------------


class Bucket:
    """A cluster's bucket in a folder."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder, self.project = folder, project

    def publish(self, name: str = "t") -> dict[str, Any]:
        code = archive(self.project)
        text = bundle.settings_object(settings(self.folder, design(name=name)))
        pointer = bundle.current(code, text)
        for entry, blob in ((pointer["code"], code), (pointer["settings"], text)):
            (self.folder / entry["key"]).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / entry["key"]).write_bytes(blob)
        (self.folder / "current.json").write_text(json.dumps(pointer))
        return pointer


@pytest.fixture
def bucket(tmp_path: Path, project: Path) -> Bucket:
    return Bucket(tmp_path / "bucket", project)


def read(code: Path) -> tuple[str, str]:
    """Returns a file's content in the current code, and the cluster's name in the current settings."""
    answer = json.loads((code / "settings.json").read_text())
    return (code / "current" / "node/a.py").read_text(), answer["design"]["name"]


def test_install_unpacks_once_and_follows_what_is_published(bucket: Bucket, tmp_path: Path) -> None:
    code = tmp_path / "opt"
    pointer = bucket.publish()
    folder = loader.install(str(bucket.folder), code)
    assert folder == code / pointer["code"]["sha256"][:16]
    assert read(code) == ("# a.py\n", "t")
    inode = (folder / "node").stat().st_ino
    shutil.rmtree(bucket.folder / "code")
    loader.install(str(bucket.folder), code)
    assert (folder / "node").stat().st_ino == inode, "what is there is not fetched again"

    (bucket.project / "node/a.py").write_text("# new\n")
    bucket.publish("renamed")
    assert loader.install(str(bucket.folder), code) != folder
    assert read(code) == ("# new\n", "renamed")
    assert (folder / "node/a.py").read_text() == "# a.py\n", "running programs keep their code"
    kept = sorted(p.name[:9] for p in code.iterdir() if not p.is_symlink())
    assert len(kept) == 4, "two revisions of code and of settings, and no drafts"

    (bucket.project / "node/a.py").write_text("# a.py\n")
    bucket.publish()
    assert loader.install(str(bucket.folder), code) == folder, "back again"
    assert read(code) == ("# a.py\n", "t")


def test_code_that_a_power_cut_would_empty_has_no_name_yet(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ext4 a name may be on the disk before the content, so the content goes there first."""
    code = tmp_path / "opt"
    names: list[list[str]] = []

    def look(*_: object) -> None:
        names.append(sorted(p.name for p in code.iterdir() if not p.name.startswith(("tmp", "."))))

    monkeypatch.setattr(os, "sync", look)
    monkeypatch.setattr(os, "fsync", look)
    bucket.publish()
    folder = loader.install(str(bucket.folder), code, durable=True)
    assert names == [[], [folder.name]], "one sync before the code has its name, one before the settings"
    loader.install(str(bucket.folder), code, durable=True)
    assert len(names) == 2, "a later boot, which finds both, syncs nothing"
    loader.install(str(bucket.folder), tmp_path / "another")
    assert len(names) == 2, "a node syncs nothing"


@pytest.mark.parametrize("part", ["code", "settings"])
def test_an_object_with_another_digest_is_refused(bucket: Bucket, tmp_path: Path, part: str) -> None:
    code = tmp_path / "opt"
    bucket.publish()
    loader.install(str(bucket.folder), code)
    before = sorted(p.name for p in code.iterdir())
    (bucket.project / "node/a.py").write_text("# new\n")
    pointer = bucket.publish("renamed")
    tampered = bucket.folder / pointer[part]["key"]
    tampered.write_bytes(tampered.read_bytes().replace(b"new", b"bad").replace(b"renamed", b"evil"))
    with pytest.raises(SystemExit, match=f"{pointer[part]['key']}: digest .* but current.json names"):
        loader.install(str(bucket.folder), code)
    assert read(code) == ("# a.py\n", "t"), "what ran before still runs"
    if part == "code":
        assert sorted(p.name for p in code.iterdir()) == before


def test_machines_of_one_disk_install_at_the_same_time(bucket: Bucket, tmp_path: Path) -> None:
    for number in range(200):
        (bucket.project / "node" / f"m{number}.py").write_text("x = 1\n" * 50)
    bucket.publish()
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom node import loader\n"
        "print('ready', flush=True)\nsys.stdin.readline()\n"
        f"print(loader.install({str(bucket.folder)!r}, Path({str(tmp_path / 'opt')!r})))\n"
    )
    machines = [
        subprocess.Popen(
            [sys.executable, "-IS", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for machine in machines:
        assert machine.stdout is not None
        assert machine.stdout.readline() == "ready\n"
    for machine in machines:
        assert machine.stdin is not None
        machine.stdin.write("\n")
        machine.stdin.flush()
    folders = [machine.communicate(timeout=60)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0] * 4
    assert len(set(folders)) == 1
    assert len(list((tmp_path / "opt" / "current" / "node").glob("m*.py"))) == 200
    assert len(list((tmp_path / "opt").iterdir())) == 4, "code, settings and the two links"


def test_the_loader_hands_over_to_the_code_that_it_fetched(bucket: Bucket, tmp_path: Path) -> None:
    boot = bucket.project / "node/bootstrap"
    boot.mkdir()
    (boot / "__init__.py").touch()
    (boot / "main.py").write_text("def bootstrap(*arguments, power_off):\n    print(*arguments, power_off)\n")
    bucket.publish()
    shutil.copy(loader.__file__, bucket.folder / "loader.py")
    command = [sys.executable, "-IS", str(bucket.folder / "loader.py"), "--bucket", str(bucket.folder)]
    command += ["--role", "compute", "--host", "debug-7", "--code", str(tmp_path / "opt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd="/")
    assert done.stdout.split() == [
        str(tmp_path / "opt" / "settings.json"), "compute", "debug-7", str(bucket.folder),
        "False",
    ]  # fmt: skip
