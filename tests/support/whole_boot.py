"""A cloud's machine whose boot steps run here: fakes of what it must not really do, and its report."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.bootstrap import key_server, machine_steps
from node.bootstrap.context import Context, Step
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import disks, host_keys, machine, mounts, resolver
from node.system.codec import to_json

ME = pwd.getpwuid(os.getuid())
SLURM = "slurm-wlm 23.11.4"


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path that stands for `/`: sockets below it are limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="vm-") as folder:
        yield Path(folder)


def name_is_noted(monkeypatch: pytest.MonkeyPatch, first: str) -> list[str]:
    """Let nothing rename the host, which is called `first`, at 10.0.1.17. Returns the names that it gets."""
    given: list[str] = []
    monkeypatch.setattr(socket, "sethostname", given.append)
    monkeypatch.setattr(socket, "gethostname", lambda: given[-1] if given else first)
    # Otherwise the address would be that of this host's routes.
    monkeypatch.setattr(resolver, "address_towards", lambda _other: "10.0.1.17")
    return given


def users_are_me(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine, also root, is the user who runs the test. Nobody can log in."""
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: ME)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(host_keys, "SSHD", Path("/nonexistent/sshd"))


def keys_come_from(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """The controller gives out this munge key once the file exists. No request goes over a network."""

    def fetch(address: str) -> key_server.Given:
        if not file.exists():
            raise key_server.KeyUnavailableError(f"{address}: has no key yet")
        return key_server.Given(file.read_bytes(), time.time())

    monkeypatch.setattr(key_server, "fetch", fetch)


def nothing_is_mounted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", folder / "mountinfo")


WAITS = "nodes that are up read the new configuration later"


def nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are blank, servers answer, Slurm is installed, daemons are there."""
    monkeypatch.setattr(disks, "_blank", lambda _device: True)
    monkeypatch.setattr(mounts, "_reach", lambda *_server: None)
    monkeypatch.setattr(machine_steps, "_release", _release)
    for name in ("munged", "controller", "check_port", "wait"):
        monkeypatch.setattr(machine_steps.daemons, name, lambda *_a: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(machine_steps.daemons, "reconfigure", lambda _context: WAITS)  # type: ignore[attr-defined]


def _release(context: Context) -> str:
    context.report.content["facts"]["slurm"] = SLURM
    return SLURM


def begun(context: Context, folder: Path, bucket: str) -> None:
    """Let a machine report to the bucket from now on, with its settings in their file."""
    _, sink, _ = machine.begin(context.settings, context.host, bucket)
    context.report = BootReport(context.host, context.role, [file_sink(folder / "report.json"), sink])
    context.settings_file.write_text(json.dumps(to_json(context.settings)))


def steps(context: Context) -> list[Step]:
    return [step for step in STEPS if step.taken_by(context)]
