"""Helpers for tests of mishaps: a benchmark that can wait, commands to kill, a terminal to press keys in."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.system.processes import ProcessId
from operations.local import machine_access
from operations.local.run_directory import RunDirectory
from tests.support.checkout import Checkout, until
from tests.support.processes import with_words

CTRL_C = "\x03"


def quick_benchmark(checkout: Checkout) -> Path:
    """Replace the training by one of a moment, in an existing environment.

    Returns:
        The path of a file. While the file exists, the training waits.
    """
    checkout.shorten_training()
    hold = checkout.folder.parent / "hold"
    train = checkout.folder / "workload" / "train.py"
    waiting = f"    while os.path.exists({str(hold)!r}):\n        time.sleep(0.05)\n"
    start = 'if __name__ == "__main__":\n'
    assert start in train.read_text()
    train.write_text(train.read_text().replace(start, start + waiting))
    return hold


def made(checkout: Checkout) -> dict[str, dict[str, Any]]:
    """Return what the state lists, by the end of the commands' names: `cloud`, `head`, …"""
    state = checkout.state / "state.json"
    content = json.loads(state.read_text()) if state.exists() else {"made": {}}
    return {urn.rpartition("-")[2]: each for urn, each in content["made"].items()}


def pids(checkout: Checkout, program: str) -> list[int]:
    """Return the cluster's processes with this text in their command line."""
    return with_words(checkout.processes(), program)


def until_saved(checkout: Checkout) -> None:
    """Wait until slurmctld, which saves every five seconds, has all present jobs on the disk."""
    run = RunDirectory(checkout.run_directory)
    folder = run.path / "state"
    if run.containers:
        folder = Path(f"/proc/{machine_access.controller(run)}/root/var/spool/slurmctld")
    file = folder / "job_state"
    since = time.time()
    # slurmctld saves only if something is new, and everything may have been saved just before.
    for job in checkout.execute("squeue", "--noheader", "--array", "--format=%i").split():
        checkout.execute("scontrol", "update", f"JobId={job}", f"Comment=changed at {since}")
    until(lambda: file.exists() and file.stat().st_mtime > since, 60, "the queue on the disk")


def kill_all(checkout: Checkout) -> None:
    """Send SIGKILL to every process of the cluster. Some end because others have ended."""
    for pid in checkout.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process and wait for its end."""
    process = ProcessId.of(pid)
    assert process is not None
    os.kill(pid, number)
    # Right after the signal the process would still be found alive.
    until(lambda: not process.alive(), 60, f"the end of {pid}", 0.01)


class Command:
    """`./cluster …` in the background, in a session of its own. Its output is collected."""

    def __init__(self, checkout: Checkout, *arguments: str) -> None:
        verb, *rest = arguments
        self.child = subprocess.Popen(
            [str(checkout.folder / "cluster"), verb, "--stack", checkout.stack, *rest],
            env=checkout.env,
            cwd=checkout.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.said += line

    def until(self, there: Callable[[], Any], what: str) -> None:
        """Wait for something that this command causes, with short pauses."""

        def ready() -> bool:
            # The order matters: what the command does last counts, too.
            if over := self.child.poll() is not None:
                self._reader.join(60)
            if there():
                return True
            assert not over, f"ended ({self.child.returncode}) before {what}\n{self.said}"
            return False

        until(ready, 240, what, 0.002)

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.said, text)

    def end(
        self, number: signal.Signals = signal.SIGKILL, *, group: bool = False, seconds: float = 120
    ) -> int:
        """Send a signal to the command or its process group. Returns the exit status."""
        if group:
            os.killpg(self.child.pid, number)
        else:
            self.child.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 120) -> int:
        status = self.child.wait(seconds)
        self._reader.join(60)
        return status


class Terminal:
    """A command in the foreground of a terminal of its own. All of its output is collected."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x32\x00\xa0\x00\x00\x00\x00\x00")  # 50 lines, 160 columns
        # A terminal becomes a session's when the session's first process opens it by its name.
        opened = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(slave), *argv]
        self.child = subprocess.Popen(opened, env={**env, "TERM": "xterm"}, cwd=cwd, start_new_session=True)
        # The slave end stays open until the child has opened it: otherwise the terminal would hang up.
        self._slave = slave
        self._raw = b""

    @classmethod
    def cluster(cls, checkout: Checkout, *arguments: str) -> Terminal:
        verb, *rest = arguments
        argv = [str(checkout.folder / "cluster"), verb, "--stack", checkout.stack, *rest]
        return cls(argv, checkout.env, checkout.folder)

    @property
    def text(self) -> str:
        """The output without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._raw.decode(errors="replace"))

    @property
    def cursor_is_shown(self) -> bool:
        return self._raw.rfind(b"\x1b[?25h") >= self._raw.rfind(b"\x1b[?25l")

    def until(self, text: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"waited for {text!r}:\n{self.text}"
            over = self.child.poll() is not None
            assert self._read(0.1) or not over, f"it ended before {text!r}:\n{self.text}"

    def look(self, seconds: float) -> None:
        """Read the command's output for a while."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def press(self, keys: str = CTRL_C) -> None:
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal's window."""
        os.close(self._master)
        os.close(self._slave)
        self._master = -1

    def end(self, seconds: float = 120) -> int:
        """Wait for the end. Returns the exit status, which is negative for a signal."""
        deadline = time.monotonic() + seconds
        while self.child.poll() is None:
            assert time.monotonic() < deadline, f"it goes on:\n{self.text}"
            self._read(0.05)
        if self._master >= 0:
            # The rest may still be on its way through the kernel: it has all come when nobody has the other
            # end any more. A second is for whoever keeps it open.
            os.close(self._slave)
            with contextlib.suppress(OSError):
                while self._read(1):
                    pass
            os.close(self._master)
            self._master = -1
        return int(self.child.returncode)

    def _read(self, seconds: float) -> bool:
        if self._master < 0:
            time.sleep(seconds)
            return False
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        data = os.read(self._master, 65536)
        self._raw += data
        return bool(data)
