"""Running one shell command of a resource: lines streamed, children signalled together, daemons tolerated."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.runner.events import Stream

QUIET_SECONDS = 0.2
"""After the command's end: how long its pipes must be silent before we stop reading them."""
DRAIN_SECONDS = 2.0
"""After the command's end: how long at most we read what its children still print."""
TERM_SECONDS = 5.0
"""Between asking processes to end and killing them."""

OnLine = Callable[[Stream, str], None]


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended; `returncode` is negative for a signal."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Processes:
    """The commands that are running now, so that an interrupt can reach them all."""

    def __init__(self) -> None:
        # Again for a handler of signals, which may interrupt its own thread in here.
        self._lock = threading.RLock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._sent: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to every running command and its children; how many commands there were.

        One that is started later gets it at its start: whoever was about to start it may not know of it yet.
        """
        with self._lock:
            self._sent.append(number)
            for process in self._running:
                signal_group(process, number)
            return len(self._running)

    @contextlib.contextmanager
    def watched(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Have every signal reach the process, those too that came before it."""
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
    """Signal a command and its children, unless it has ended: what it left behind is a daemon, on purpose."""
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

    It gets a session of its own: Ctrl-C in the terminal reaches it only through us, and a daemon that it
    leaves behind does not die with our terminal. We wait for the command, not for the end of its output: a
    daemon that keeps the pipes open does not hang us, as it would hang the real provider.

    Raises:
        OSError: the program or `cwd` does not exist.
    """
    with tempfile.TemporaryFile() as source:
        # A file and not a pipe: a command that never reads its input cannot block us.
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
    """Collects one stream and hands out its lines as they are completed."""

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
    """Read until the command has ended and its pipes are closed or silent; whether it was timed out."""
    deadline = None if timeout is None else time.monotonic() + timeout
    timed_out = False
    ended: float | None = None
    with selectors.DefaultSelector() as selector, _exit_descriptor(process.pid) as exited:
        for descriptor in readers:
            selector.register(descriptor, selectors.EVENT_READ)
        if exited is not None:
            selector.register(exited, selectors.EVENT_READ)
        while ended is None or (set(selector.get_map()) & set(readers)):
            wait = QUIET_SECONDS if ended is not None or exited is None else None
            if ended is None and deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                wait = left if wait is None else min(wait, left)
            ready = [key.fd for key, _ in selector.select(wait)]
            for descriptor in set(ready) & set(readers):
                if data := os.read(descriptor, 65536):
                    readers[descriptor].feed(data)
                else:
                    selector.unregister(descriptor)
            now = time.monotonic()
            if ended is None:
                if process.poll() is not None:
                    ended = now
                    if exited is not None:
                        selector.unregister(exited)
                elif deadline is not None and now >= deadline:
                    signal_group(process, signal.SIGKILL if timed_out else signal.SIGTERM)
                    timed_out, deadline = True, now + TERM_SECONDS
            elif not ready or now > ended + DRAIN_SECONDS:
                break
    return timed_out


@contextlib.contextmanager
def _exit_descriptor(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable at the process's end; None where the kernel has none (we poll)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def birth(pid: int) -> str | None:
    """When a process started, in the kernel's own units: with its pid, its identity. None: it is no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    # Fields are counted from the state (the third of proc(5)): 19 on is the start time, the 22nd.
    return None if fields[0] in "ZX" else fields[19]


def stop_stray(pid: int, born: str) -> bool:
    """End a command that a killed run left behind, with its children; whether it was still there."""
    if birth(pid) != born:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        deadline = time.monotonic() + TERM_SECONDS
        while birth(pid) == born and time.monotonic() < deadline:
            time.sleep(0.02)
    return True
