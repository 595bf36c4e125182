"""A limit of this machine that a program has reached is named, by the words that the programs really say."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from infra import host_limits
from infra.host_limits import named

REFUSED = "slurmctld: fatal: main: pthread_create error Resource temporarily unavailable"


def says(program: str, limit: str) -> str:
    """Return what a program says that this machine gives too little to."""
    command = ["bash", "-c", f"{limit}; exec {sys.executable} -c '{program}'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stderr


def test_open_files() -> None:
    said = says("import os; [os.pipe() for _ in range(40)]", "ulimit -n 32")
    here = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert f"ulimit -n is {here}: raise it in this shell" in str(named(said))
    # The lines are those of Debian 12's systemd on a host whose limit of 128 was used up.
    objects = "Failed to create control group inotify object: Too many open files"
    assert "As root: sysctl -w fs.inotify.max_user_instances=1024" in str(named(objects))


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    said = says("bytearray(2 ** 32)", "ulimit -v 2000000")
    assert named(said) is None, "this machine has no limit on them"
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (2**21, 2**21))
    assert "ulimit -v is 2048 KiB" in str(named(said))


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/docker/x", "pids.max"),
        ("0::/docker/x", "docker/pids.max"),
        ("9:pids:/x\n4:memory:/y", "pids/x/pids.max"),
        ("9:pids:/x", "pids/pids.max"),
    ],
    ids=["a container sees itself as the root", "a group above", "by controller", "by controller, above"],
)
def test_processes_name_the_lowest_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, file: str
) -> None:
    limits = {resource.RLIMIT_NPROC: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], 0))
    kernel = {"proc/sys/kernel/threads-max": "100", "proc/sys/kernel/pid_max": "max"}
    for name, text in {**kernel, "proc/self/cgroup": group, f"sys/fs/cgroup/{file}": "300\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert re.findall(r"(\S+) (?:of this container or service )?is (\d+)", str(named(REFUSED, tmp_path))) == [
        ("kernel.threads-max", "100"), ("pids.max", "300"),
    ]  # fmt: skip
    limits[resource.RLIMIT_NPROC] = 7
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "ulimit -u is 7 " in str(named(REFUSED, tmp_path))
    assert "pids.max" not in str(named(REFUSED, tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "ulimit -u" not in str(named(REFUSED, tmp_path)), "root has no such limit"


def test_the_words_are_the_systems() -> None:
    assert os.strerror(errno.EAGAIN) in host_limits.NO_PROCESS
    assert os.strerror(errno.EMFILE) == host_limits.NO_FILE
    assert os.strerror(errno.ENOMEM) in host_limits.NO_MEMORY
    assert named("no such file") is None
