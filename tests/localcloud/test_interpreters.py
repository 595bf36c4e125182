"""The interpreters of this host that machines which boot can see."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localcloud import interpreters


def interpreter(prefix: Path, version: str = "3.12") -> Path:
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / f"python{version}").touch()
    (prefix / "bin" / "python3").symlink_to(f"python{version}")
    (prefix / "lib" / f"python{version}").mkdir(parents=True)
    (prefix / "lib" / f"python{version}" / "os.py").touch()
    (prefix / "lib" / f"libpython{version}.so.1.0").touch()
    return prefix


def environment(envs: Path, name: str, home: object, version: str = "version_info = 3.12.3") -> None:
    (envs / name).mkdir(parents=True)
    (envs / name / "pyvenv.cfg").write_text(f"home = {home}\n{version}\n")


@pytest.fixture
def envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    folder = tmp_path / "apps" / "envs"
    folder.mkdir(parents=True)
    return folder


def targets(envs: Path | None) -> dict[str, Path]:
    found = interpreters.interpreter_binds(envs)
    assert all(bind.read_only for bind in found)
    return {str(bind.target): bind.source for bind in found}


def test_the_distributions_interpreter_needs_no_mount(envs: Path) -> None:
    environment(envs, "one", "/usr/bin", f"version = {'.'.join(map(str, sys.version_info[:3]))}")
    assert targets(envs) == targets(None) == targets(envs / "none") == {}


def test_this_interpreter_is_mounted(envs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    prefix = interpreter(tmp_path / "own", version)
    monkeypatch.setattr(sys, "base_prefix", str(prefix))
    found = targets(None)
    assert found[f"{prefix}/bin/python3"] == prefix / "bin" / f"python{version}"
    assert found[f"{prefix}/lib/libpython{version}.so.1.0"].exists()


def test_the_interpreter_of_another_checkouts_environment_is_mounted(envs: Path, tmp_path: Path) -> None:
    """The cache is shared: a checkout with another Python has made the training environment."""
    prefix = interpreter(tmp_path / "3.12.3")
    (tmp_path / "3.12").symlink_to(prefix)
    environment(envs, "one", prefix / "bin")
    environment(envs, "two", tmp_path / "3.12" / "bin", "version = 3.12.3")
    expected = {
        f"{place}/{part}": prefix / real
        for place in (prefix, tmp_path / "3.12")
        for part, real in (
            ("bin/python3", "bin/python3.12"),
            ("bin/python3.12", "bin/python3.12"),
            ("lib/python3.12", "lib/python3.12"),
            ("lib/libpython3.12.so.1.0", "lib/libpython3.12.so.1.0"),
        )
    }
    assert targets(envs) == expected


def test_what_is_no_interpreter_is_not_mounted(envs: Path, tmp_path: Path) -> None:
    """Users of the cluster may write to the folder, and the mounts are made by root."""
    prefix = interpreter(tmp_path / "elsewhere")
    environment(envs, "gone", tmp_path / "gone" / "bin")
    environment(envs, "inside", interpreter(envs / "mine") / "bin")
    environment(envs, "another-folder", prefix / "lib")
    environment(envs, "relative", "bin")
    environment(envs, "version", prefix / "bin", "version = 3.13.1")
    environment(envs, "no-version", prefix / "bin", "")
    environment(envs, "no-text", prefix / "bin")
    (envs / "no-text" / "pyvenv.cfg").write_bytes(b"\xff\xfe")
    (envs / "empty").mkdir()
    (envs / ".one.lock").touch()
    assert targets(envs) == {}
