"""Short programs, whose output is captured whatever becomes of them."""

from __future__ import annotations

import sys

from operations.programs import CANNOT_RUN, TIMED_OUT, Output, capture


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
