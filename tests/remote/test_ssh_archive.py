"""The workload's archive: the same files always give the same bytes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from infra import bundle
from infra.benchmark import Workload
from tests.support.checkout import ROOT


def files(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_it_holds_the_workload_and_nothing_that_python_leaves_there() -> None:
    assert files(Workload.of(ROOT).archive()) == {
        f"workload/{file.name}": file.content for file in Workload.of().files
    }


def test_time_owner_and_byte_code_are_no_change(tmp_path: Path) -> None:
    folder = tmp_path / "workload"
    (folder / "envs").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    (folder / "envs" / "b").write_text("2")
    content = Workload.of(tmp_path).archive()
    os.utime(folder / "a.py", (1, 1))
    (folder / "a.py").chmod(0o600)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert Workload.of(tmp_path).archive() == content
    (folder / "envs" / "b").write_text("3")
    assert bundle.digest(Workload.of(tmp_path).archive()) != bundle.digest(content)


def cached(content: bytes, *, write: bool = True) -> Path:
    return bundle.cached_file("workload", ".tar", content, write=write)


def test_archives_are_cached_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not cached(b"one", write=False).exists()
    path = cached(b"one")
    assert path == cached(b"one", write=False)
    assert path.read_bytes() == b"one"
    assert cached(b"two") != path
    path.write_bytes(b"on")  # as after a full disk
    assert cached(b"one").read_bytes() == b"one"
    assert len(list(path.parent.iterdir())) == 2
