"""Runs what may take long: streams its lines, signals its process group, and lets its daemons run on."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from node.system.processes import ProcessId
from operations import waiting

QUIET_SECONDS = 0.2
"""Seconds for which the pipes must be silent, after the command has ended, before reading stops."""
DRAIN_SECONDS = 2.0
"""Most seconds for which output of its children is read after the command has ended."""
TERM_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""

Stream = Literal["stdout", "stderr"]
OnLine = Callable[[Stream, str], None]


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command; `returncode` is negative if a signal ended it."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Processes:
    """The running commands, so that an interrupt can signal them all."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may interrupt its own thread while it holds the lock.
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._sent: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to every running command and its children, and return the number of commands.

        A command that starts later gets the signal at its start, because the thread that starts it may not
        know of the interrupt yet.
        """
        with self._lock:
            self._sent.append(number)
            for process in self._running:
                signal_group(process, number)
            return len(self._running)

    @contextlib.contextmanager
    def watched(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Send every signal to the process for the body, also signals that came before it started."""
        with self._lock:
            self._running.add(process)
            for number in self._sent:
                signal_group(process, number)
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(process)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a command and its children, unless it has ended: then the children are daemons, on purpose."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: str,
    on_line: OnLine,
    processes: Processes,
    on_start: Callable[[int], None] = lambda _pid: None,
    timeout: float | None = None,
) -> Finished:
    """Run a command to its end.

    It gets its own session: Ctrl-C in the terminal reaches it only through this program, and its daemons do
    not end with the terminal. This waits for the command, not for the end of its output, so a daemon that
    keeps the pipes open does not block it; the real provider would hang.

    Raises:
        OSError: The program or `cwd` does not exist.
    """
    with tempfile.TemporaryFile() as source:
        # A file, not a pipe: a command that never reads its input must not block this program.
        source.write(stdin.encode())
        source.seek(0)
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(env),
            stdin=source if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    with process, processes.watched(process):
        on_start(process.pid)
        assert process.stdout is not None
        assert process.stderr is not None
        readers: dict[int, _Reader] = {
            process.stdout.fileno(): _Reader("stdout", on_line),
            process.stderr.fileno(): _Reader("stderr", on_line),
        }
        timed_out = _read(process, readers, timeout)
        out, err = readers.values()
        return Finished(process.wait(), out.finish(), err.finish(), timed_out)


class _Reader:
    """Collects the output of one stream and reports each line when it is complete."""

    def __init__(self, stream: Stream, on_line: OnLine) -> None:
        self._stream: Stream = stream
        self._on_line = on_line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text: list[str] = []
        self._partial = ""

    def feed(self, data: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        self._text.append(text)
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._on_line(self._stream, line.rstrip("\r"))

    def finish(self) -> str:
        self.feed(b"", final=True)
        if self._partial:
            self._on_line(self._stream, self._partial)
        return "".join(self._text)


def _read(process: subprocess.Popen[bytes], readers: dict[int, _Reader], timeout: float | None) -> bool:
    """Read until the command has ended and its pipes are closed or silent.

    Returns:
        Whether the command was ended because of the timeout.
    """
    limit = _TimeLimit(process, None if timeout is None else time.monotonic() + timeout)
    ended: float | None = None
    with selectors.DefaultSelector() as selector, _exit_descriptor(process.pid) as exited:
        ends = () if exited is None else (exited,)
        for descriptor in (*readers, *ends):
            selector.register(descriptor, selectors.EVENT_READ)
        while ended is None or (set(selector.get_map()) & set(readers)):
            quiet = QUIET_SECONDS if ended is not None or exited is None else None
            ready = [key.fd for key, _ in selector.select(quiet if ended is not None else limit.left(quiet))]
            _feed(selector, readers, ready)
            now = time.monotonic()
            if ended is not None:
                if not ready or now > ended + DRAIN_SECONDS:
                    break
            elif process.poll() is None:
                limit.enforce(now)
            else:
                ended = now
                for descriptor in ends:
                    selector.unregister(descriptor)
    return limit.passed


def _feed(selector: selectors.BaseSelector, readers: dict[int, _Reader], ready: Iterable[int]) -> None:
    """Give each reader what has come for it. One whose stream was closed is looked at no more."""
    for descriptor in set(ready) & set(readers):
        if data := os.read(descriptor, 65536):
            readers[descriptor].feed(data)
        else:
            selector.unregister(descriptor)


@dataclass(slots=True)
class _TimeLimit:
    """Ends a command when its time is over: by SIGTERM first, and by SIGKILL if that does not help.

    Attributes:
        deadline: When the next signal is sent, in seconds of the monotonic clock; `None` means never.
        passed: Whether one was sent.
    """

    process: subprocess.Popen[bytes]
    deadline: float | None
    passed: bool = False

    def left(self, most: float | None) -> float | None:
        """Return the seconds until the next signal, at most `most`; `None` means no limit."""
        if self.deadline is None:
            return most
        left = max(0.0, self.deadline - time.monotonic())
        return left if most is None else min(most, left)

    def enforce(self, now: float) -> None:
        """Send the signal if its time has come."""
        if self.deadline is not None and now >= self.deadline:
            signal_group(self.process, signal.SIGKILL if self.passed else signal.SIGTERM)
            self.passed, self.deadline = True, now + TERM_SECONDS


@contextlib.contextmanager
def _exit_descriptor(pid: int) -> Iterator[int | None]:
    """Open a descriptor that becomes readable when the process ends; `None` if the kernel has none."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def end_leftover(command: ProcessId) -> bool:
    """End a command that a killed run left behind, with its children. Returns whether it was running."""
    if not command.alive():
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, number)
        waiting.wait_until(lambda: not command.alive(), TERM_SECONDS, 0.02)
    return True
