"""Programs that see another time: libfaketime, as the distribution has it.

A container has its host's clock, and a time namespace leaves the wall clock alone. So a library that comes
before the C library answers for the kernel. Monotonic clocks are off by as much, always alike: with
DONT_FAKE_MONOTONIC its `clock_nanosleep`, and so Python's `time.sleep`, fails.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.unpacked import file_of


def library() -> Path:
    return file_of("libfaketime", "usr/lib/*/faketime/libfaketime.so.1")


def environment(seconds: float, library: object) -> dict[str, str]:
    """What a program's environment needs for a clock that is ahead by these seconds.

    Args:
        seconds: less than this host has been up, where the clock is behind.
        library: where the program finds `library()`.
    """
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{seconds:+g}s"}
