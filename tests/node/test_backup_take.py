"""A backup is of one moment: slurmctld stands still for it, and goes on whatever happens to the backup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.backup import take
from node.backup.archive import BackupError
from node.system.processes import children
from node.system.waiting import wait_until
from tests.support.checkout import ROOT

# Writes as slurmctld does: each file by a draft, which takes its place. A change is in both files, the one
# after the other.
WRITER = """
import os, sys
folder, number = sys.argv[1], 0
while True:
    number += 1
    for name in ("job_state", "node_state"):
        with open(f"{folder}/{name}.new", "w") as draft:
            draft.write(f"{number:09d}" * 20_000)
        os.replace(f"{folder}/{name}.new", f"{folder}/{name}")
"""
KEEPS_STILL = """
import sys, time
sys.path.insert(0, {root!r})
from node.backup.take import standing_still
with standing_still(int(sys.argv[1])):
    print("still", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Slurm's folder, and the process that writes there."""
    state = tmp_path / "state"
    state.mkdir()
    with subprocess.Popen([sys.executable, "-IS", "-c", WRITER, str(state)]) as child:
        wait_until((state / "node_state").exists, 60, "the writer")
        yield state, child.pid
        child.kill()


def number(file: Path) -> int:
    text = file.read_text()
    assert text == text[:9] * 20_000, "whole"
    return int(text[:9])


def goes_on(state: Path) -> bool:
    before = number(state / "job_state")
    wait_until(lambda: number(state / "job_state") > before, 60, "the writer to go on")
    return True


def test_the_copy_is_of_one_moment(writer: tuple[Path, int], tmp_path: Path) -> None:
    state, pid = writer
    for run in range(5):
        copy = tmp_path / f"copy-{run}"
        with take.standing_still(pid):
            present = {name: (state / name).read_bytes() for name in ("job_state", "node_state")}
            take.copy_state(state, copy, time.time() + 60)
            time.sleep(0.2)
            assert {name: (state / name).read_bytes() for name in present} == present
        assert sorted(path.name for path in copy.iterdir()) == ["job_state", "node_state"], "no draft"
        # One change at most is in the first file and not yet in the second, as in a power loss.
        assert number(copy / "job_state") - number(copy / "node_state") in (0, 1)
        assert goes_on(state)


def test_slurmctld_goes_on_if_the_backup_fails(writer: tuple[Path, int]) -> None:
    state, pid = writer
    with pytest.raises(BackupError), take.standing_still(pid):
        raise BackupError("backup.database", "the dump failed")
    assert goes_on(state)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_slurmctld_goes_on_if_the_backup_is_killed(writer: tuple[Path, int], how: signal.Signals) -> None:
    state, pid = writer
    program = [sys.executable, "-IS", "-c", KEEPS_STILL.format(root=str(ROOT)), str(pid)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "still\n"
        before = number(state / "job_state")
        time.sleep(0.2)
        assert number(state / "job_state") == before
        if how != signal.SIGKILL:  # systemd ends a unit by a signal to all of its processes
            for other in children(child.pid):
                os.kill(other, how)
        child.send_signal(how)
    assert goes_on(state)


def test_a_slurmctld_that_has_ended_is_an_error(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(BackupError) as error, take.standing_still(child.pid):
        pass
    assert error.value.code == "backup.no-slurmctld"


def test_only_slurms_own_files_are_copied(tmp_path: Path) -> None:
    state = tmp_path / "state"
    script = state / "hash.3" / "job.13" / "script"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    for name in ("job_state", "job_state.old", "job_state.new", ".held"):
        (state / name).write_text(name)
    (state / take.WORK).mkdir()
    (state / "elsewhere").symlink_to("/etc/passwd")
    copy = tmp_path / "state" / take.WORK / "copy"
    take.copy_state(state, copy, time.time() + 60)
    found = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert found == ["hash.3/job.13/script", "job_state", "job_state.old"]
    # What Slurm never writes again is not copied, but named twice: it takes no time and no space.
    same = copy / "hash.3" / "job.13" / "script"
    assert script.samefile(same)
    assert not (state / "job_state").samefile(copy / "job_state")


def test_a_copy_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "job_state").write_text("x")
    with pytest.raises(BackupError) as error:
        take.copy_state(state, tmp_path / "copy", time.time() - 1)
    assert error.value.code == "backup.too-slow"
