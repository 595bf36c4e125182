"""Locks on files: whoever has one keeps the others out until its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.locks import acquire, locked


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
    program = "import time; from node.locks import acquire; acquire(0); print(flush=True); time.sleep(600)"
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
