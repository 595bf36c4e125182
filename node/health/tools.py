"""Runs the tools that know a device's health. A tool that hangs is a finding, not an error of the check."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

KILL_SECONDS = 2.0
"""How long a killed tool may take to end. One that waits for a broken device in the kernel never does."""
OWN_FOLDERS = ("/opt/aws/neuron/bin",)
"""Folders of tools that are on no usual PATH."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended.

    Attributes:
        status: The exit status; `None` means that it did not end in time.
        output: Its standard output.
        errors: Its standard error.
    """

    status: int | None
    output: str = ""
    errors: str = ""

    def last_line(self) -> str:
        """Return the last line that it printed, or a word for none."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1].strip() if lines else "no output"


class Tool(Protocol):
    """Runs a tool. Tests use recorded outputs instead."""

    def __call__(self, *argv: str, seconds: float) -> Ran:
        """Run a tool within a time limit.

        Raises:
            FileNotFoundError: It is not installed.
        """
        ...


def runner(environment: Mapping[str, str]) -> Callable[..., Ran]:
    """Return a `Tool` whose tools get this environment and are found by its PATH."""

    def run(*argv: str, seconds: float) -> Ran:
        # Files and not pipes: what a tool leaves behind would keep a pipe open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environment), cwd="/",
                start_new_session=True,
            )  # fmt: skip
            try:
                status: int | None = child.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(KILL_SECONDS)
            out.seek(0)
            err.seek(0)
            return Ran(status, out.read().decode(errors="replace"), err.read().decode(errors="replace"))

    return run
