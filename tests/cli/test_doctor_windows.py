"""A checkout on Windows: which WSL it is, and which disk it is on. The rest of WSL is Linux."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli.doctor.finding import Severity
from cli.doctor.general import windows
from tests.support.checkout import ROOT

# As WSL prints them: microsoft/WSL#4555, and `mount` in WSL 2 and 1.
WSL1, WSL2, LINUX = "4.4.0-19041-Microsoft", "5.15.90.1-microsoft-standard-WSL2", "6.8.0-45-generic"
MOUNTS = """\
/dev/sdc / ext4 rw,relatime,discard 0 0
C:\\134 /mnt/c 9p rw,noatime,aname=drvfs;path=C:\\;uid=1000 0 0
D:\\134 /mnt/my\\040disk drvfs rw 0 0
"""


@pytest.mark.parametrize(
    ("release", "folder", "found"),
    [
        (LINUX, "/mnt/c/code", []),
        (WSL2, "/home/ana/slurm-stacks", []),
        (WSL2, "/mnt/c/Users/ana/slurm-stacks", [("windows.disk", Severity.WARNS)]),
        (WSL2, "/mnt/my disk/code", [("windows.disk", Severity.WARNS)]),
        (WSL2, "/mnt/cellar", []),
        (WSL1, "/home/ana/slurm-stacks", [("windows.wsl", Severity.STOPS)]),
    ],
)
def test_what_windows_adds_is_found(release: str, folder: str, found: list[tuple[str, Severity]]) -> None:
    said = list(windows(Path(folder), release, MOUNTS))
    assert [(one.check, one.severity) for one in said] == found
    assert all("docs/windows.md" in str(one.cure) for one in said)
    assert (ROOT / "docs" / "windows.md").exists()


def test_this_machine_is_asked_where_nothing_is_given() -> None:
    assert list(windows(ROOT, WSL2)) == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout of git")
@pytest.mark.parametrize("file", ["cluster", "examples/counting.sh", "Pulumi.local.yaml", "node/loader.py"])
def test_git_for_windows_keeps_the_ends_of_lines(file: str) -> None:
    """A `cluster` with Windows' line ends is no script for any shell."""
    asked = ["git", "-C", str(ROOT), "check-attr", "eol", "--", file]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("eol: lf")
