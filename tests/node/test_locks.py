"""Locks on files: whoever has one keeps the others out until its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.system.locks import acquire, locked, locked_folder


def test_the_second_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    order: list[str] = []
    waiting, over = threading.Event(), threading.Event()

    def second() -> None:
        with locked(tmp_path / "lock", busy=waiting.set):
            order.append("second")
        over.set()

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(60)
        order.append("first")
    assert over.wait(60)
    thread.join()
    assert order == ["first", "second"]


def test_who_does_not_wait_gets_an_error(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as handle:
        with pytest.raises(BlockingIOError, match="lock"), locked(tmp_path / "lock", wait=False):
            pass
        assert acquire(handle, wait=False), "its owner has it"
    with locked(tmp_path / "lock", wait=False):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import time; from node.system.locks import acquire; acquire(0); print(flush=True); time.sleep(600)"
    )
    file = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=file, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    os.close(file)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"\n"
    with pytest.raises(BlockingIOError), locked(tmp_path / "lock", wait=False):
        pass
    child.kill()
    child.wait()
    with locked(tmp_path / "lock", wait=False):
        pass


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_lock_is_for_one_at_a_time_and_leaves_nothing(tmp_path: Path) -> None:
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        waits.set()
        with locked_folder(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked_folder(tmp_path):
        thread.start()
        assert waits.wait(60)
        thread.join(0.05)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), locked_folder(tmp_path / "missing"):
        pass


def test_shared_locks_exclude_only_others(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as one, path.open() as two:
        assert acquire(one.fileno(), wait=False, shared=True)
        assert acquire(two.fileno(), wait=False, shared=True)
        with pytest.raises(BlockingIOError), locked(path, wait=False):
            pass
    with locked(path, wait=False), path.open() as one:
        assert not acquire(one.fileno(), wait=False, shared=True)
