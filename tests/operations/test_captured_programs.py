"""Programs that run to their end, whose output is captured or shown, whatever becomes of them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from operations.programs import CANNOT_RUN, TIMED_OUT, Output, capture, show


def test_input_output_status_and_environment_are_the_programs() -> None:
    script = "read word; echo $word $NAME; echo bad >&2; exit 3"
    done = capture(["/bin/sh", "-c", script], text="in\n", env={"NAME": "here"})
    assert done == Output(3, "in here\n", "bad\n")
    assert done.failed


def test_both_outputs_may_be_one() -> None:
    assert capture(["/bin/sh", "-c", "echo a; echo b >&2; echo c"], merged=True) == Output(0, "a\nb\nc\n")


def test_without_text_there_is_no_input() -> None:
    assert capture(["cat"], seconds=60) == Output(0)


def test_output_that_is_no_text_is_replaced() -> None:
    write = "import sys; sys.stdout.buffer.write(b'\\xff!')"
    assert capture([sys.executable, "-c", write]).out == "\ufffd!"


def test_a_program_that_is_missing_or_takes_too_long_has_failed() -> None:
    missing = capture(["/nowhere/program"])
    assert (missing.status, missing.failed) == (CANNOT_RUN, True)
    assert "/nowhere/program" in missing.err
    assert capture(["sleep", "60"], seconds=0.05) == Output(TIMED_OUT, err="no answer within 0.05 s")


def test_names_of_files_keep_their_bytes_and_descriptors_are_inherited(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff")
    (tmp_path / name).write_text("x")
    handle = os.open(tmp_path, os.O_PATH | os.O_CLOEXEC)
    try:
        listed = capture(["ls", f"/proc/self/fd/{handle}/"], errors="surrogateescape", handles=[handle])
    finally:
        os.close(handle)
    assert listed == Output(0, f"{name}\n")


def test_a_program_apart_ends_with_all_that_it_has_started() -> None:
    """Its child holds the pipe of its output: to wait for that would take a minute."""
    began = time.monotonic()
    done = capture(["/bin/sh", "-c", "sleep 120 & echo $!; wait"], seconds=0.5, apart=True)
    assert done == Output(TIMED_OUT, err="no answer within 0.5 s")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("apart", [True, False])
def test_a_program_apart_has_a_session_of_its_own(apart: bool) -> None:
    done = capture([sys.executable, "-c", "import os; print(os.getsid(0))"], apart=apart)
    assert (int(done.out) != os.getsid(0)) is apart


def test_what_is_shown_goes_where_our_output_goes(capfd: pytest.CaptureFixture[str]) -> None:
    script = "echo out; echo bad >&2; exit 3"
    assert show(["/bin/sh", "-c", script]) == Output(3)
    assert capfd.readouterr() == ("out\n", "bad\n")
    assert show(["/bin/sh", "-c", script], errors=False) == Output(3, err="bad\n")
    assert capfd.readouterr() == ("out\n", "")
    assert show(["cat"], seconds=60) == Output(0), "it reads nothing of ours"
    assert show(["/nowhere/program"]).status == CANNOT_RUN
    assert show(["sleep", "60"], seconds=0.05) == Output(TIMED_OUT, err="no end within 0.05 s")
