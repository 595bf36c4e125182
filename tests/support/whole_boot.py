"""A cloud's machine that takes its steps here: what it must not do for real, and what it says of itself."""

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

from node.bootstrap import key_server, machine_slurm, sshd
from node.bootstrap.context import Context, Step
from node.bootstrap.report import BootReport, file_sink
from node.bootstrap.steps import STEPS
from node.bootstrap.vm import disks, machine, mounts, names
from node.codec import to_json

ME = pwd.getpwuid(os.getuid())
SLURM = "slurm-wlm 23.11.4"


@contextmanager
def short_folder() -> Iterator[Path]:
    """For a folder that stands for `/`: sockets below it must stay within 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="vm-") as folder:
        yield Path(folder)


def name_is_noted(monkeypatch: pytest.MonkeyPatch, first: str) -> list[str]:
    """The host is not renamed, and is at 10.0.1.17. Returns its names; before, it is called `first`."""
    given: list[str] = []
    monkeypatch.setattr(socket, "sethostname", given.append)
    monkeypatch.setattr(socket, "gethostname", lambda: given[-1] if given else first)
    # Else by the ways that this host has.
    monkeypatch.setattr(names, "address_towards", lambda _other: "10.0.1.17")
    return given


def users_are_me(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine is whoever runs the test, and root; nobody can log in."""
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: ME)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sshd, "SSHD", Path("/nonexistent/sshd"))


def keys_come_from(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """The controller hands out this munge key, once it is there. Nobody is asked over a network."""

    def fetch(address: str) -> key_server.Given:
        if not file.exists():
            raise key_server.KeyUnavailableError(f"{address}: has no key yet")
        return key_server.Given(file.read_bytes(), time.time())

    monkeypatch.setattr(key_server, "fetch", fetch)


def nothing_is_mounted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", folder / "mountinfo")


def nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are blank, servers answer, Slurm is installed, daemons are there."""
    monkeypatch.setattr(disks, "_blank", lambda _device: True)
    monkeypatch.setattr(mounts, "_reach", lambda *_server: None)
    monkeypatch.setattr(machine_slurm, "_release", _release)
    for name in ("munged", "controller", "check_port", "wait"):
        monkeypatch.setattr(machine_slurm.daemons, name, lambda *_a: None)  # type: ignore[attr-defined]


def _release(context: Context) -> str:
    context.report.content["facts"]["slurm"] = SLURM
    return SLURM


def begun(context: Context, folder: Path, bucket: str) -> None:
    """Have a machine report to the bucket from now on, with its settings in their file."""
    _, sink, _ = machine.begin(context.settings, context.host, bucket)
    context.report = BootReport(context.host, context.role, [file_sink(folder / "report.json"), sink])
    context.settings_file.write_text(json.dumps(to_json(context.settings)))


def steps(context: Context) -> list[Step]:
    return [step for step in STEPS if step.taken_by(context)]
