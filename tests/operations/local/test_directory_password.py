"""The password for a directory of users on the local stack: a file outside of the project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.design.directory import SECRET, Directory
from node.design.model import Access, ClusterDesign
from operations.local.cluster import take_password
from operations.local.run_directory import RunDirectory
from tests.support import sentences
from tests.support.doubles import design


def asking(file: Path | None) -> ClusterDesign:
    secret = None if file is None else str(file)
    directory = Directory("corp", ("ldaps://a",), "dc=a", bind_dn="cn=r", password_secret=secret)
    return replace(design(), access=Access(directory=directory))


def test_it_goes_into_the_clusters_store_and_nowhere_else(tmp_path: Path) -> None:
    run, project, file = RunDirectory(tmp_path / "run"), tmp_path / "project", tmp_path / "password"
    run.path.mkdir()
    project.mkdir()
    file.write_text("secret\n")
    file.chmod(0o600)
    take_password(run, asking(file), project)
    store = run.path / "secrets"
    assert (store.stat().st_mode & 0o777, (store / SECRET).stat().st_mode & 0o777) == (0o700, 0o600)
    assert [path.name for path in run.path.rglob("*") if path.is_file()] == [SECRET]
    # Another password, and none any longer.
    file.write_text("another\n")
    take_password(run, asking(file), project)
    assert (store / SECRET).read_text() == "another\n"
    take_password(run, asking(None), project)
    assert list(store.iterdir()) == []


def test_a_file_that_others_could_read_is_refused(tmp_path: Path) -> None:
    run, project = RunDirectory(tmp_path / "run"), tmp_path / "project"
    run.path.mkdir()
    project.mkdir()
    with sentences.raises("directory.password-file", tmp_path / "none"):
        take_password(run, asking(tmp_path / "none"), project)
    for file, mode in ((tmp_path / "open", 0o640), (project / "password", 0o600)):
        file.write_text("secret\n")
        file.chmod(mode)
        with sentences.raises("directory.password-file", file):
            take_password(run, asking(file), project)
    assert list(run.path.iterdir()) == []
