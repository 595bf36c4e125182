"""Shows logs on a terminal, each under its heading, and follows them as `tail -F` does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from node.logs.find import Cluster, UnknownNameError
from node.logs.sources import Source

PAUSE_SECONDS = 0.2
INTERRUPTED = 130


def run(cluster: Cluster, what: str, *, lines: int, follow: bool) -> int:
    """Run `slurm-stacks logs`. Logs go to standard output, an unknown name to standard error.

    Returns:
        The exit status.
    """
    # A log may hold characters that the terminal's encoding lacks.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    if follow:
        # Ctrl-C ends the process at once and without a message: nothing here needs an orderly end.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        sources = cluster.sources(what)
    except UnknownNameError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        show(sources, lines, sys.stdout)
        if follow:
            follow_all(sources, sys.stdout)
    except BrokenPipeError:
        # The reader has ended, as `head` does. The interpreter must not write to the pipe when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def show(sources: Sequence[Source], lines: int, out: TextIO) -> None:
    """Print the end of each log."""
    before: list[str] = []
    for source in sources:
        if ending := source.last(lines):
            print(*before, f"==> {source.heading} <==", *ending, sep="\n", file=out)
            before = [""]
    out.flush()


def follow_all(sources: Sequence[Source], out: TextIO) -> None:
    """Print new lines of all logs, until the reader ends or the user interrupts."""
    last_shown: Source | None = sources[-1] if sources else None
    while not _reader_ended(out):
        for source in sources:
            new = source.more()
            if not new:
                continue
            if source is not last_shown:
                print("", f"==> {source.heading} <==", sep="\n", file=out)
                last_shown = source
            print(*new, sep="\n", file=out)
        out.flush()
        time.sleep(PAUSE_SECONDS)


def _reader_ended(out: TextIO) -> bool:
    """Return whether the reader has closed the pipe. Without new lines to write, only `poll` can tell."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
    except (OSError, ValueError):  # `out` has no file descriptor
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
