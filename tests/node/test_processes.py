"""Tests of process trees: which processes live, which belong to a machine, and that all of them end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.system import processes
from node.system.processes import (
    ProcessId,
    caller,
    descendants,
    end_all,
    end_tree,
    having,
    kill_together,
    with_descendants,
    with_environment,
)
from tests.support.checkout import until

# A machine's first process in the local cloud is the subreaper of its tree.
REAPER = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
for number in (signal.SIGTERM,) if "deaf" in sys.argv else ():
    signal.signal(number, signal.SIG_IGN)
# A daemon that leaves its parent and its session, as slurmstepd does, and will not hear SIGTERM.
subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM; sleep 300 & wait"]).pid
subprocess.run(["sh", "-c", "setsid sleep 301 &"])
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture
def tree() -> Iterator[Callable[..., tuple[ProcessId, list[int]]]]:
    """Starts a tree and returns its root and the pids below it."""
    started: list[subprocess.Popen[str]] = []
    below: list[int] = []

    def start(*arguments: str) -> tuple[ProcessId, list[int]]:
        child = subprocess.Popen(
            [sys.executable, "-c", REAPER, *arguments], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        root = ProcessId.of(child.pid)
        assert root is not None
        until(lambda: len(descendants(child.pid)) == 3, 60, "the tree")
        below.extend(descendants(child.pid))
        return root, list(below)

    yield start
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for child in started:
        child.kill()
        child.communicate()


def alive(pid: int) -> bool:
    process = ProcessId.of(pid)
    return process is not None and process.alive()


@pytest.mark.parametrize("arguments", [(), ("deaf",)], ids=["polite init", "init that is deaf"])
def test_everything_below_a_root_ends_with_it(
    tree: Callable[..., tuple[ProcessId, list[int]]], arguments: tuple[str, ...]
) -> None:
    root, below = tree(*arguments)
    assert len({os.getsid(pid) for pid in below}) == 2, "sessions of their own"
    assert end_tree(root, 0.3) is True
    assert not root.alive()
    if arguments:
        # They were killed while their root lived. Later nobody could have found them.
        assert [pid for pid in below if alive(pid)] == []


def test_ending_what_is_gone_is_done_at_once() -> None:
    child = subprocess.Popen(["true"])
    process = ProcessId.of(child.pid)
    child.wait()
    assert process is not None
    # It would wait longer than the test may take.
    assert end_tree(process, 3600.0) is True


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    process = ProcessId.of(child.pid)
    assert process is not None
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z", 60, "the zombie")
    assert not process.alive()
    assert child.pid not in descendants(os.getpid())
    child.wait()
    assert ProcessId.of(child.pid) is None


def test_another_process_with_the_same_pid_is_not_taken_for_it() -> None:
    mine = ProcessId.of(os.getpid())
    assert mine is not None
    assert mine.alive()
    assert not ProcessId(mine.pid, mine.started - 1).alive()
    child = subprocess.Popen(["sleep", "300"])
    try:
        assert end_tree(ProcessId(child.pid, 1), 0.1) is True
        assert child.poll() is None, "a stranger was killed"
    finally:
        child.kill()
        child.wait()


def test_a_commands_name_may_hold_anything(tmp_path: Path) -> None:
    strange = tmp_path / "a) R 1 (b"
    strange.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(strange), "300"])
    try:
        assert child.pid in descendants(os.getpid())
        process = ProcessId.of(child.pid)
        assert process is not None
        assert process.alive()
    finally:
        child.kill()
        child.wait()


def test_processes_are_found_by_a_variable_of_their_environment(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(["sleep", "300"], env={"A": "1", "SLURM_STACKS_RUN": value})
        for value in (str(tmp_path), f"{tmp_path}2", f"x{tmp_path}")
    ]
    try:
        until(lambda: with_environment("SLURM_STACKS_RUN", str(tmp_path)), 60, "the process")
        assert with_environment("SLURM_STACKS_RUN", str(tmp_path)) == [children[0].pid]
        assert with_environment("A", str(tmp_path)) == []
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_becomes_another_program_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the kernel shows an empty environment, and on a busy machine reads are far apart."""
    monkeypatch.setattr(processes, "FILLING_SECONDS", 0.0)
    # All processes of this machine are examined, so the value must be unique to this test.
    this = str(tmp_path)
    child = subprocess.Popen(["sleep", "300"], env={"SLURM_STACKS_RUN": this})
    empty = [b"", b"", b""]
    read = Path.read_bytes

    def becoming(path: Path) -> bytes:
        ours = str(path) == f"/proc/{child.pid}/environ"
        return empty.pop() if ours and empty else read(path)

    try:
        until(lambda: with_environment("SLURM_STACKS_RUN", this), 60, "the process")
        monkeypatch.setattr(Path, "read_bytes", becoming)
        assert with_environment("SLURM_STACKS_RUN", this) == [child.pid]
        assert empty == []
    finally:
        child.kill()
        child.wait()


def test_an_end_is_one_only_when_two_looks_find_nothing() -> None:
    child = subprocess.Popen(["sleep", "300"])
    looks = iter([[], [child.pid]])
    try:
        assert end_all(lambda: next(looks, [])) == []
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_a_process_without_an_environment_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BECOMING_SECONDS", 3600.0)
    child = subprocess.Popen(["sleep", "300"], env={})
    try:
        until(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(b"sleep"), 60, "its start")
        # There is no wait as for a process in execve. Other processes of this machine are left out.
        monkeypatch.setattr(processes, "_pids", lambda: [child.pid])
        assert having(lambda _pid, environment: bool(environment)) == []
    finally:
        child.kill()
        child.wait()


def test_our_own_process_is_spared() -> None:
    """A `down` inside a job of the cluster ends all processes but itself."""
    child = subprocess.Popen(["sh", "-c", "sleep 300 & wait"])
    try:
        until(lambda: descendants(child.pid), 60, "the tree")
        ours = {child.pid, *descendants(child.pid)}
        found = with_descendants([os.getpid()])
        assert os.getpid() not in found
        # This process may have further children, of other tests.
        assert ours <= set(found)
    finally:
        for pid in descendants(child.pid):
            os.kill(pid, signal.SIGKILL)
        child.kill()
        child.wait()


@pytest.mark.parametrize("when", ["later", "already"])
def test_a_process_ends_with_its_caller(when: str) -> None:
    code = (
        "import os, sys, time; from node.system.processes import end_with_parent\n"
        "end_with_parent(sys.argv[1]); print(os.getpid(), flush=True); time.sleep(60)"
    )
    start = "import subprocess as s, sys; print(s.call(sys.argv[1:]))"
    identity = caller(os.getpid()) if when == "later" else "1-1"
    parent = subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, "-c", code, identity],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    if when == "later":
        process = ProcessId.of(int(parent.stdout.readline()))
        assert process is not None
        assert process.alive()
        parent.kill()
        until(lambda: not process.alive(), 60, "its end")
    else:
        assert parent.stdout.read() == f"{-signal.SIGTERM}\n", "ended, and had not begun"
    parent.communicate()


def test_nobody_is_killed_before_all_threads_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    still = iter([False, True, False])

    def stands(pid: int) -> bool:
        done.append(f"look at {pid}")
        return next(still, True)

    monkeypatch.setattr(processes, "_stands_still", stands)
    monkeypatch.setattr(os, "kill", lambda pid, number: done.append(f"{signal.Signals(number).name} {pid}"))
    kill_together([11, 12])
    looks = ["look at 11", "look at 11", "look at 12", "look at 11", "look at 12"]
    assert done == ["SIGSTOP 11", "SIGSTOP 12", *looks, "SIGKILL 12", "SIGKILL 11"]
