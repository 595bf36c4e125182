"""The version of the distribution's package of Slurm."""

from __future__ import annotations

import pytest

from node.slurm import packaged
from node.system import subprocesses
from node.system.subprocesses import Ran


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("installed 24.11.5-4+deb13u1\ninstalled 24.11.5-4+deb13u1\n", "24.11.5-4+deb13u1"),
        ("installed 24.11.5-4\n", "24.11.5-4"),
        ("config-files 22.05.8-4\n", None),
        ("not-installed \n", None),
        ("", None),
    ],
)
def test_the_version_is_that_of_an_installed_package(
    monkeypatch: pytest.MonkeyPatch, output: str, version: str | None
) -> None:
    monkeypatch.setattr(subprocesses, "run", lambda *_: Ran(1, output))
    assert packaged.version() == version


def test_a_machine_without_dpkg_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Ran:
        raise FileNotFoundError("dpkg-query")

    monkeypatch.setattr(subprocesses, "run", missing)
    assert packaged.version() is None


def test_this_machine_has_the_package_that_its_tests_run() -> None:
    version = packaged.version()
    assert version is not None
    assert version[0].isdigit()
    assert set(packaged.status()) == {"version", "suite"}
