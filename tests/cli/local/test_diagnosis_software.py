"""The doctor's checks of the distribution's programs: Linux, Slurm and munge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.findings import Finding, Severity
from cli.providers.local.diagnosis import software
from cli.providers.local.diagnosis.host import Host
from operations.local import system_packages
from tests.support import sentences
from tests.support.fake_host import ANSWERS, host, seen

STAT = {"/proc/self/stat": "1 (x) S 0"}


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """All needed packages are installed, with a real Slurm."""
    monkeypatch.setattr(system_packages, "missing", list)
    monkeypatch.setattr(system_packages, "unsuitable", lambda: None)


def the(findings: Any) -> Finding:
    (found,) = findings
    assert isinstance(found, Finding)
    return found


def test_linux_with_proc(tmp_path: Path) -> None:
    assert seen(software.system(host(tmp_path), "darwin")) == {"system.linux": "stops"}
    assert seen(software.system(host(tmp_path), "linux")) == {"system.proc": "stops"}
    files = {
        **STAT,
        "/etc/os-release": 'ID=x\nPRETTY_NAME="Some Linux 9"\n',
        "/proc/sys/kernel/osrelease": "6.1\n",
    }
    found = the(software.system(host(tmp_path, files), "linux"))
    sentences.finding(found, "system.linux", Severity.FINE, "6.1")


@pytest.mark.parametrize(
    ("facts", "severity", "named"),
    [
        ({"uid": 0}, "stops", "apt-get"),
        ({"uid": 0, "found": {"apt-get": "/usr/bin/apt-get"}}, "fine", "`up`"),
        (
            {"uid": 1, "found": {"apt-get": "/usr/bin/apt-get"}},
            "stops",
            "apt-get install --no-install-recommends --no-remove slurmd munge",
        ),
        (
            {"uid": 1, "found": {"apt-get": "/usr/bin/apt-get"}, "answers": {"sudo": (0, "")}},
            "fine",
            "`up`",
        ),
    ],
    ids=["no apt-get", "root", "nobody", "by sudo"],
)
def test_packages_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], severity: str, named: str
) -> None:
    monkeypatch.setattr(system_packages, "missing", lambda: ["slurmd", "munge"])
    found = the(software.installed(host(tmp_path, **facts)))
    sentences.finding(found, "packages.missing", Severity(severity), "slurmd, munge", named)


@pytest.mark.parametrize(
    ("missing", "facts", "expected", "words"),
    [
        ([], {}, "accounting.installed fine", "slurmdbd and MariaDB 10.11.19"),
        ([], {"answers": {}}, "accounting.broken stops", "mariadbd does not run: no such program"),
        (["slurmdbd"], {"found": {"apt-get": "/usr/bin/apt-get"}}, "accounting.missing stops", "root"),
        (["slurmdbd"], {}, "accounting.missing stops", "there is no apt-get here"),
        (
            ["slurmdbd"],
            {"uid": 0, "found": {"apt-get": "/usr/bin/apt-get"}},
            "accounting.missing fine",
            "`up` does it by apt-get",
        ),
    ],
)
def test_what_accounting_needs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: list[str],
    facts: dict[str, Any],
    expected: str,
    words: str,
) -> None:
    answers = {"/usr/sbin/mariadbd": (0, "/usr/sbin/mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for x")}
    monkeypatch.setattr(system_packages, "missing", lambda _purpose: missing)
    found = the(software.accounting(host(tmp_path, **{"answers": answers, **facts})))
    assert f"{found.check} {found.severity.value}" == expected
    assert words in found.found


def test_packages_that_work(tmp_path: Path, complete: None) -> None:
    found = the(software.installed(host(tmp_path)))
    sentences.finding(found, "packages.installed", Severity.FINE, "22.05", "munge-0.5.15")


def test_a_slurm_that_runs_no_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: None) -> None:
    sentence = "/usr/sbin/slurmctld is Slurm's emulator, which runs no jobs. Have it removed."
    monkeypatch.setattr(system_packages, "unsuitable", lambda: sentence)
    found = the(software.installed(host(tmp_path)))
    assert seen([found]) == {"packages.slurm": "stops"}
    sentences.finding(found, "packages.slurm", Severity.STOPS)


@pytest.mark.parametrize("program", sorted(ANSWERS))
def test_a_program_that_does_not_run(tmp_path: Path, complete: None, program: str) -> None:
    answers = {**ANSWERS, program: (127, "error while loading shared libraries: libx.so")}
    found = the(software.installed(host(tmp_path, answers=answers)))
    assert seen([found]) == {"packages.broken": "stops"}
    assert program in found.found
    sentences.finding(found, "packages.broken", Severity.STOPS, "libx.so")
    if not program.endswith("munged"):
        answers = {**ANSWERS, program: (0, "hello")}
        assert seen(software.installed(host(tmp_path, answers=answers))) == {"packages.broken": "stops"}


def test_releases_that_do_not_fit(tmp_path: Path, complete: None) -> None:
    newer = (0, "slurm 24.11.5")
    mixed = {**ANSWERS, "/usr/sbin/slurmd": newer}
    found = the(software.installed(host(tmp_path, answers=mixed)))
    assert seen([found]) == {"packages.releases": "stops"}
    sentences.finding(
        found,
        "packages.releases",
        Severity.STOPS,
        "/usr/sbin/slurmctld",
        "22.05",
        "/usr/sbin/slurmd",
        "24.11",
    )
    both = {**mixed, "/usr/sbin/slurmctld": newer}
    assert seen(software.installed(host(tmp_path, answers=both))) == {"packages.installed": "fine"}
    newest = dict.fromkeys(("/usr/sbin/slurmctld", "/usr/sbin/slurmd"), (0, "slurm 26.11.0"))
    assert seen(software.installed(host(tmp_path, answers={**ANSWERS, **newest}))) == {
        "packages.release": "warns"
    }


def test_another_slurm_in_front(tmp_path: Path, complete: None) -> None:
    """slurm.conf is written for the slurmctld that PATH finds first, and /usr/sbin's reads it."""
    program = "/usr/local/sbin/slurmctld"
    found = {"slurmctld": program}
    other = {**ANSWERS, program: (0, "slurm 23.11.4")}
    assert seen(software.installed(host(tmp_path, answers=other, found=found))) == {
        "packages.releases": "stops"
    }
    same = {**ANSWERS, program: (0, "slurm 22.05.8")}
    assert seen(software.installed(host(tmp_path, answers=same, found=found))) == {
        "packages.installed": "fine"
    }
    ours = {"slurmctld": "/usr/sbin/slurmctld"}
    assert seen(software.installed(host(tmp_path, found=ours))) == {"packages.installed": "fine"}
    assert seen(software.installed(host(tmp_path, found=found))) == {"packages.installed": "fine"}, (
        "does not run"
    )


def test_commands_that_cannot_be_run_are_an_answer(tmp_path: Path) -> None:
    assert Host().run([str(tmp_path / "no-such")])[0] == 127
    assert Host().run(["sh", "-c", "echo out; echo err >&2; exit 3"]) == (3, "out\nerr")
    assert Host().text("/no/such") is None
