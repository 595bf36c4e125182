"""A login machine behind a real sshd: folders with awkward names and the cluster's own command."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import bundle
from tests.support import fake_tool
from tests.support.doubles import settings
from tests.support.sshd import Agent, Sshd, kill_tree

ENVIRONMENT = "0123456789abcdef"


@contextlib.contextmanager
def login_machines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LoginMachine]]:
    """Makes login machines. The environment has the SSH agent of the first one, with its key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    made: list[LoginMachine] = []

    def make(name: str = "machine") -> LoginMachine:
        made.append(LoginMachine(folder / name))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(made[0].agent.socket))
        return made[-1]

    try:
        yield make
    finally:
        for machine in made:
            machine.close()


class LoginMachine:
    """The machine that the benchmark reaches over SSH. It has the training environment.

    Attributes:
        shared, apps, tool: paths with spaces and quotes in them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sshd = Sshd(folder / "sshd")
        try:
            self.agent = Agent(folder / "agent", self.sshd.client_key)
        except BaseException:
            self.sshd.close()
            raise
        self._home = folder / 'it\'s a "login" $machine'
        self._home.mkdir()
        self.shared, self.apps = self._home / "shared", self._home / "apps"
        self.tool = self._home / "slurm-stacks"
        site: dict[str, Any] = {"shared": str(self.shared), "apps": str(self.apps)}
        (self._home / "settings.json").write_bytes(bundle.settings_object(settings(self._home, **site)))
        words = [sys.executable, fake_tool.__file__, str(self._home)]
        self.tool.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        self.tool.chmod(0o755)
        self.finish_environment()

    def finish_environment(self) -> None:
        complete = self.apps / "envs" / ENVIRONMENT / ".complete"
        complete.parent.mkdir(parents=True, exist_ok=True)
        complete.touch()

    @property
    def endpoint(self) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.sshd.port,
            "user": self.sshd.user,
            "host_keys": [self.sshd.host_key],
        }

    @property
    def place(self) -> dict[str, Any]:
        return {
            "apps": str(self.apps),
            "shared": str(self.shared),
            "environment": ENVIRONMENT,
            "tool": str(self.tool),
            "wait": 3,
        }

    def queue(self) -> dict[int, str]:
        """Return the states of jobs."""
        return {job: state for job, (state, _) in fake_tool.Queue(self._home).read().items()}

    def calls(self) -> list[list[str]]:
        """Return the calls of the cluster's command since the last time."""
        log = self._home / "calls"
        found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return found

    def staged(self) -> dict[str, dict[str, bytes]]:
        """Return the staged workloads: name of the folder -> file -> content."""
        return {
            folder.name: dict(bundle.tree(folder / "workload"))
            for folder in sorted(self.shared.glob("bench/*"))
            if (folder / "workload").is_dir()
        }

    def litter(self) -> list[str]:
        """Return the files that unfinished staging has left."""
        return [path.name for path in self.shared.glob("bench/.*")]

    def close(self) -> None:
        self.sshd.close()
        self.agent.stop()
        # Remote commands outlive their connection. They are found by the name of a folder below ours.
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                pid = int(command.parent.name)
                if str(self._folder).encode() in command.read_bytes() and pid != os.getpid():
                    kill_tree(pid)
