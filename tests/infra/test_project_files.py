"""The reader of files that a stack file names: no path leaves the project, and what it reads is a file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from infra import bundle, environments
from infra.benchmark import Workload
from infra.config import ConfigError, parse
from infra.config.cluster import ClusterConfig
from infra.config.jobs import BenchmarkConfig
from infra.design import design
from infra.errors import UserError
from infra.instance_types.catalog import catalog
from infra.program import mode, project_files
from infra.program.project_files import ProjectFileError, Wrong
from tests.support.stack_values import BENCHMARK, CLUSTER, values

SECRET = b"a private key"
CONTENT = b"#!/bin/sh\n"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """The folder of a program that has clusters as components, and folders of other things beside it."""
    folder = tmp_path / "project"
    (folder / "hooks" / "deep").mkdir(parents=True)
    (folder / "hooks" / "a.sh").write_bytes(CONTENT)
    (folder / "hooks" / "a.sh").chmod(0o755)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    # Its name begins like the project's.
    (tmp_path / "project-of-others").mkdir()
    (tmp_path / "project-of-others" / "secret").write_bytes(SECRET)
    token = mode.FOLDER.set(folder)
    yield folder
    mode.FOLDER.reset(token)


def link(project: Path, name: str, target: str | Path) -> str:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).symlink_to(target)
    return name


def pipe(project: Path) -> str:
    os.mkfifo(project / "f")
    return "f"


def huge(project: Path) -> str:
    (project / "h").touch()
    os.truncate(project / "h", 1 << 40)
    return "h"


def listening(project: Path) -> str:
    """Make a socket. Its path would be too long from the root."""
    here = os.open(project, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/s")
    os.close(here)
    return "s"


INSIDE: dict[str, Callable[[Path], str]] = {
    "a file": lambda p: "hooks/a.sh",
    "written otherwise": lambda p: "./hooks//a.sh",
    "a link": lambda p: link(p, "l", "hooks/a.sh"),
    "a link upwards": lambda p: link(p, "hooks/deep/l", "../a.sh"),
    "a link through the folder above": lambda p: link(p, "hooks/l", "../hooks/./deep/../a.sh"),
    "a link to a link": lambda p: (link(p, "m", "hooks/a.sh"), link(p, "l", "m"))[-1],
    "an absolute link": lambda p: link(p, "hooks/deep/l", p / "hooks" / "a.sh"),
    "a folder that is a link": lambda p: link(p, "l", "hooks") + "/a.sh",
    "an absolute folder": lambda p: link(p, "hooks/deep/l", p / "hooks") + "/a.sh",
}


@pytest.mark.parametrize("case", INSIDE)
def test_links_within_the_project_are_followed(case: str, project: Path) -> None:
    found = project_files.read(project, INSIDE[case](project))
    assert (found.content, found.executable) == (CONTENT, True)


def test_the_project_itself_may_be_reached_by_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(project)
    link(project, "l", tmp_path / "alias" / "hooks" / "a.sh")
    assert project_files.read(tmp_path / "alias", "l").content == CONTENT


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "an absolute path": lambda p: str(p.parent / "outside" / "secret"),
    "an absolute path into the project": lambda p: str(p / "hooks" / "a.sh"),
    "dots": lambda p: "../outside/secret",
    "dots that come back": lambda p: "hooks/../hooks/a.sh",
    "an absolute link": lambda p: link(p, "l", p.parent / "outside" / "secret"),
    "a relative link": lambda p: link(p, "hooks/l", "../../outside/secret"),
    "a link out and back": lambda p: link(p, "l", f"../{p.name}/hooks/a.sh"),
    "a link with dots": lambda p: link(p, "l", p / ".." / "outside" / "secret"),
    "a link to a link": lambda p: (link(p, "m", "/etc/passwd"), link(p, "l", "m"))[-1],
    "a folder above": lambda p: link(p, "l", p.parent / "outside") + "/secret",
    "a folder further above": lambda p: link(p, "l", "..") + "/outside/secret",
    "a neighbour of a similar name": lambda p: link(p, "l", f"{p}-of-others/secret"),
    "a broken link out": lambda p: link(p, "l", "/no/such/file"),
    "the folder itself": lambda p: ".",
    "a link to the folder itself": lambda p: link(p, "hooks/l", ".."),
    "a process' files": lambda p: link(p, "l", "/proc/self/environ"),
    "a descriptor": lambda p: link(p, "l", "/dev/stdin"),
}
UNUSABLE: dict[str, tuple[Wrong, Callable[[Path], str]]] = {
    "nothing": (Wrong.MISSING, lambda p: "hooks/b.sh"),
    "below a file": (Wrong.MISSING, lambda p: "hooks/a.sh/b"),
    "a broken link": (Wrong.MISSING, lambda p: link(p, "l", "hooks/none")),
    "a NUL": (Wrong.MISSING, lambda p: "hooks/a.sh\0"),
    "half a character": (Wrong.MISSING, lambda p: "hooks/\ud800"),
    "a loop": (Wrong.UNREADABLE, lambda p: link(p, "l", "l")),
    "two in a loop": (Wrong.UNREADABLE, lambda p: (link(p, "l", "m"), link(p, "m", "l"))[-1]),
    "a long name": (Wrong.UNREADABLE, lambda p: "x" * 300),
    "a folder": (Wrong.FOLDER, lambda p: "hooks"),
    "a link to a folder": (Wrong.FOLDER, lambda p: link(p, "l", "hooks/deep")),
    "a pipe": (Wrong.KIND, pipe),
    "a link to a pipe": (Wrong.KIND, lambda p: (pipe(p), link(p, "l", "f"))[-1]),
    "a socket": (Wrong.KIND, listening),
    "a huge file": (Wrong.LARGE, huge),
}
WRONG = {f"outside: {name}": (Wrong.OUTSIDE, make) for name, make in OUTSIDE.items()} | UNUSABLE


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_file_of_the_project_is_not_read(case: str, project: Path) -> None:
    wrong, make = WRONG[case]
    name = make(project)
    with pytest.raises(ProjectFileError) as caught:
        project_files.read(project, name)
    assert caught.value.wrong is wrong, caught.value
    assert not [handle for handle in Path("/proc/self/fd").iterdir() if leads_into(handle, project)]


def leads_into(handle: Path, project: Path) -> bool:
    with contextlib.suppress(OSError):
        return handle.readlink().is_relative_to(project)
    return False


@pytest.mark.parametrize("exchanged", ["hooks/a.sh", "hooks"])
def test_a_link_that_comes_between_the_look_and_the_reading_leads_nowhere(
    exchanged: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file, or a folder on the way to it, is exchanged right before it is opened."""
    outside = project.parent / "outside"
    (outside / "a.sh").write_bytes(SECRET)
    opens = os.open

    def exchanging(word: Any, *rest: Any, **how: Any) -> int:
        if word == Path(exchanged).name:
            (project / exchanged).rename(project / "away")
            (project / exchanged).symlink_to(outside / "a.sh" if exchanged != "hooks" else outside)
        return opens(word, *rest, **how)

    monkeypatch.setattr(os, "open", exchanging)
    with pytest.raises(ProjectFileError):
        project_files.read(project, "hooks/a.sh")
    assert (project / exchanged).is_symlink()


# --- every key of a stack file that is a path on the engineer's machine ------------------------------------

DEB = {"source": "x.deb", "sha256": "a" * 64}
DIRECTORY = {"domain": "d.example", "uris": ["ldaps://d.example"], "search_base": "dc=d,dc=example"}
KEYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "hooks[0].source": lambda name: {"hooks": [{"role": "all", "source": name}]},
    "slurm.prolog.source": lambda name: {"slurm": {"prolog": {"source": name}}},
    "slurm.epilog.source": lambda name: {"slurm": {"epilog": {"source": name}}},
    "slurm.packages[0].source": lambda name: {"slurm": {"packages": [{**DEB, "source": name}]}},
    "containers.packages[0].source": lambda name: {
        "containers": {"runtime": "pyxis", "packages": [{**DEB, "source": name}]},
        "slurm": {"accept_unmaintained": "2026-11-26"},
    },
    "access.directory.ca_certificate": lambda name: {
        "access": {"directory": {**DIRECTORY, "ca_certificate": name}}
    },
    "script": lambda name: {"script": name},
    "files[0]": lambda name: {"script": "train.py", "files": [name]},
    "requirements": lambda name: {"script": "train.py", "requirements": name},
}


def given(key: str, name: str) -> dict[str, Any]:
    """Return a stack file's values with a path under a key."""
    found = values("aws")
    change = KEYS[key](name)
    if key.startswith(("script", "files", "requirements")):
        return {**found, BENCHMARK: change}
    return {**found, CLUSTER: {**found[CLUSTER], **change}}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("target", ["file", "folder"])
def test_no_key_follows_a_link_out_of_the_project(key: str, target: str, project: Path) -> None:
    """The check refuses it, and so does what publishes, for a link that was put there after the check."""
    (project / "train.py").write_text("print(1)\n")
    suffix = (
        ".deb"
        if "packages" in key
        else ".txt"
        if key == "requirements"
        else ".pem"
        if "certificate" in key
        else ".py"
    )
    # What Linux starts names its interpreter.
    content = b"numpy\n" if suffix == ".txt" else b"#!/bin/sh\n"
    outside = project.parent / "outside"
    (outside / f"x{suffix}").write_bytes(content)
    name = f"x{suffix}" if target == "file" else f"in/x{suffix}"
    place = project / ("in" if target == "folder" else name)
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_bytes(content)

    stack = given(key, name)
    if "packages" in key:
        section = stack[CLUSTER]["slurm" if key.startswith("slurm") else "containers"]
        section["packages"][0]["sha256"] = hashlib.sha256(content).hexdigest()
    config = parse(stack, "aws", project=project)
    made = design(config, catalog())
    publish(key, made, project, name)
    place.rename(project / "before")
    place.symlink_to(outside / place.name if target == "file" else outside)
    with pytest.raises(ConfigError) as caught:
        parse(stack, "aws", project=project)
    prefix = BENCHMARK if key in ("script", "files[0]", "requirements") else CLUSTER
    assert [mistake.path for mistake in caught.value.mistakes] == [f"{prefix}.{key}"]
    with pytest.raises(UserError):
        publish(key, made, project, name)


def publish(key: str, made: Any, project: Path, name: str) -> None:
    """Read what a key names as it is done to publish it."""
    if key == "requirements":
        environments.read(project, name)
    elif key in ("script", "files[0]"):
        Workload.of(project, ["train.py", name] if key == "files[0]" else [name])
    else:
        archive = zipfile.ZipFile(io.BytesIO(bundle.node_archive(made, project)))
        assert any(archive.read(entry) == (project / name).read_bytes() for entry in archive.namelist())


def models(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Return a model and all models of its fields."""
    if model in seen:
        return seen
    seen.add(model)
    for field in model.model_fields.values():
        pending = [field.annotation]
        while pending:
            kind = pending.pop()
            pending += getattr(kind, "__args__", ())
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                models(kind, seen)
    return seen


def test_every_key_that_speaks_of_a_path_in_the_project_is_tried_here() -> None:
    keys = {
        f"{model.__name__}.{name}"
        for model in models(ClusterConfig, set()) | models(BenchmarkConfig, set())
        for name, field in model.model_fields.items()
        if re.search(r"[Pp]ath in this project|relative to this file", field.description or "")
    }
    assert keys == {
        "HookConfig.source", "JobScriptConfig.source", "PackageConfig.source",
        "DirectoryConfig.ca_certificate",
        "BenchmarkConfig.script", "BenchmarkConfig.files", "BenchmarkConfig.requirements",
    }  # fmt: skip
    places = {
        (model.__name__, name)
        for model in models(ClusterConfig, set())
        for name, field in model.model_fields.items()
        if re.search(r"HookConfig|JobScriptConfig|PackageConfig", str(field.annotation))
    }
    assert places == {
        ("ClusterConfig", "hooks"), ("SlurmConfig", "prolog"), ("SlurmConfig", "epilog"),
        ("SlurmConfig", "packages"), ("ContainersConfig", "packages"),
    }  # fmt: skip
