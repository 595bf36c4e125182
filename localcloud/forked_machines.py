"""The agent's side of the fork server (`fork_server.py`): it starts the server, and machines by it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from node.system import subprocesses
from node.system.processes import ProcessId

ANSWER_SECONDS = 5.0
"""The longest wait for a machine. It includes the server's own start."""
PAUSE_SECONDS = 60.0
"""Seconds without a further attempt after a new server forked no machine."""


class ForkServer:
    """Forks process machines. It starts with the first machine, and ends with its agent.

    It is not thread-safe.

    Args:
        run: The cluster's run directory.
        python: The machines' interpreter.
        env: The environment that all machines have.
    """

    def __init__(self, run: Path, python: str, env: Mapping[str, str]) -> None:
        self._program = run / "cloud" / "fork_server.py"
        shutil.copyfile(Path(__file__).with_name(self._program.name), self._program)
        self._argv = [python, "-I", "-S", str(self._program), str(run / "bucket"), str(run / "code")]
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._not_before = 0.0

    def pid(self) -> int | None:
        """Return the server's pid if it runs, and collect one that has ended."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def fork(
        self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], prepare: Callable[[int], None]
    ) -> ProcessId | None:
        """Start a machine.

        Args:
            argv: `[python, "-I", "-S", program, …]`.
            env: The whole environment.
            prepare: Called with the machine's pid before the machine runs.

        Returns:
            `None` if there is no machine. Nothing of it runs then, nor will.
        """
        if self.pid() is None:
            self.close()
        if time.monotonic() < self._not_before:
            return None
        is_new = self._channel is None
        process = self._try_to_fork(argv, env, output, prepare)
        if process is None and is_new:
            self._not_before = time.monotonic() + PAUSE_SECONDS
        return process

    def close(self) -> None:
        """End the server. Its machines go on."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._channel = self._process = None

    def _try_to_fork(
        self, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes], prepare: Callable[[int], None]
    ) -> ProcessId | None:
        request = json.dumps({"argv": argv, "env": env}).encode()
        gate, machines_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with gate:
            gate.settimeout(ANSWER_SECONDS)
            try:
                with machines_end:
                    socket.send_fds(self._connected(), [request], [output.fileno(), machines_end.fileno()])
                process = ProcessId.of(int(gate.recv(32)))
                if process is None:
                    raise ProcessLookupError("it has ended at once")
                prepare(process.pid)
                gate.send(b"1")
            except (OSError, ValueError) as error:  # an empty answer: the machine, or the server, has ended
                print(f"the fork server does not start a machine: {error}; see {self._log()}", flush=True)
                self.close()
                return None
        return process

    def _connected(self) -> socket.socket:
        if self._channel is None:
            self._channel, servers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._channel.settimeout(ANSWER_SECONDS)
            with servers_end, self._log().open("ab") as log:
                self._process = subprocesses.start(self._argv, self._env, log, stdin=servers_end.fileno())
        return self._channel

    def _log(self) -> Path:
        return self._program.with_suffix(".log")
