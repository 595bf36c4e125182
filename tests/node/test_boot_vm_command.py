"""Tests of the runner with real commands: time limits, last lines, attempts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from node.bootstrap.command import TAIL_LINES, CommandError, run
from node.system.processes import with_environment
from tests.support.checkout import until


def test_output_input_and_environment() -> None:
    assert (
        run("sh", "-c", "cat; echo $GREETING; echo no >&2", stdin="a\n", env={"GREETING": "hi"}) == "a\nhi\n"
    )
    assert run("sh", "-c", "exit 2", allow=(0, 2)) == ""


def test_a_failure_has_the_command_its_status_and_its_last_lines() -> None:
    script = "seq 100; seq 200 >&2; exit 3"
    with pytest.raises(CommandError) as caught:
        run("sh", "-c", script)
    first, *tail = str(caught.value).splitlines()
    assert first == f"sh -c '{script}': exit status 3"
    assert tail == [str(number) for number in range(201 - TAIL_LINES, 201)]
    assert caught.value.status == 3
    with pytest.raises(CommandError, match="exit status 1\nonly this"):
        run("sh", "-c", "echo only this; exit 1")


def test_a_command_that_is_not_there_is_not_tried_again() -> None:
    # A second attempt would exceed the test's time limit.
    with pytest.raises(CommandError, match="no-such-program is not installed on this machine"):
        run("no-such-program", attempts=5, pause=3600)


def test_all_that_a_command_has_started_ends_with_its_time() -> None:
    mark = f"A4-{time.monotonic_ns()}"
    script = "sleep 600 & echo working; sleep 600"
    for seconds in (0.5, 5.0, 50.0):  # a busy machine needs some time to start a shell
        with pytest.raises(CommandError) as caught:
            run("sh", "-c", script, timeout=seconds, env={"MARK": mark})
        ended, *said = str(caught.value).splitlines()
        assert ended.endswith(f"not done after {seconds:g} s")
        if said:
            break
    assert said == ["working"]
    until(lambda: not with_environment("MARK", mark), 60, "the end of all", 0.02)


def test_a_daemon_that_is_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    try:
        assert run("sh", "-c", f"sleep 60 & echo $! > {pid}; echo done", timeout=50) == "done\n"
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_command_that_fails_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "tries"
    script = f'echo x >>{file}; [ "$(wc -l <{file})" -ge 3 ]'
    run("sh", "-c", script, attempts=3, pause=0.01)
    assert file.read_text() == "x\n" * 3
    file.unlink()
    with pytest.raises(CommandError):
        run("sh", "-c", script, attempts=2, pause=0.01)
