"""Logs on a terminal: each under its heading, and what comes to them, as `tail -F` does it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from infra.node.logs.find import Cluster, UnknownNameError
from infra.node.logs.sources import Source

PAUSE_SECONDS = 0.2
INTERRUPTED = 130


def run(cluster: Cluster, what: str, *, lines: int, follow: bool) -> int:
    """`slurm-stacks logs`: on standard output; a name that there is not is said on standard error.

    Returns:
        The exit status.
    """
    # A log may hold what the terminal's encoding has not.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    if follow:
        # At once and without a word, wherever it comes: nothing here needs an orderly end.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        sources = cluster.sources(what)
    except UnknownNameError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        show(sources, lines, sys.stdout)
        if follow:
            keep_on(sources, sys.stdout)
    except BrokenPipeError:
        # The reader has gone, as `| head` does; nothing more is written as the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def show(sources: Sequence[Source], lines: int, out: TextIO) -> None:
    """The end of each."""
    before: list[str] = []
    for source in sources:
        if found := source.last(lines):
            print(*before, f"==> {source.heading} <==", *found, sep="\n", file=out)
            before = [""]
    out.flush()


def keep_on(sources: Sequence[Source], out: TextIO) -> None:
    """What comes to any of them, until the reader has gone or somebody interrupts."""
    speaking: Source | None = sources[-1] if sources else None
    while not _gone(out):
        for source in sources:
            new = source.more()
            if not new:
                continue
            if source is not speaking:
                print("", f"==> {source.heading} <==", sep="\n", file=out)
                speaking = source
            print(*new, sep="\n", file=out)
        out.flush()
        time.sleep(PAUSE_SECONDS)


def _gone(out: TextIO) -> bool:
    """Whether nobody reads any more: with nothing to write, only asking tells."""
    try:
        poll = select.poll()
        poll.register(out.fileno(), 0)
    except (OSError, ValueError):  # no descriptor
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
