"""Machines as namespaces: each with an address, a host name, files and processes of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from infra.local.cloud import init
from infra.local.cloud.machines import (
    CLUSTER_VARIABLE,
    GRACE_SECONDS,
    MACHINE_VARIABLE,
    Boot,
    of_cluster,
)
from infra.local.cloud.network import PREFIX, Network, read_hosts
from infra.node.processes import (
    ProcessId,
    end_all,
    freeze_tree,
    thaw_tree,
    with_descendants,
    with_environment,
)
from tests.support.namespaces import cgroups

SPACE = Path(__file__).with_name("space.py")
CODE = "/opt/slurm-stacks"
"""Where a machine has the node code: its own, as on a cloud."""
PYTHON = "/opt/slurm-stacks-python"
HOMES = Path("/home")
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of a machine's first process."""
DYING_SECONDS = 15.0


class NamespaceMaker:
    """A machine is a set of Linux namespaces, and ends when its first process does.

    Its files are this host's with a layer of its own above them, so that what it changes ends with it.

    Args:
        run: the cluster's run directory, which every machine sees at the same path.
        rootless: work in a user namespace of this user's; cgroups are not to be had there.
    """

    def __init__(self, run: Path, *, rootless: bool) -> None:
        self._run = run
        self._rootless = rootless
        self._hierarchies = [] if rootless else cgroups.hierarchies()
        for file in (Path(init.__file__), Path(init.__file__).with_name("hang.py"), SPACE):
            shutil.copyfile(file, run / "cloud" / file.name)
        self._network = Network(
            run / "cloud",
            environment={"PATH": SEARCH, CLUSTER_VARIABLE: str(run)},
        )
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._lock = threading.Lock()

    def start(self, boot: Boot) -> ProcessId:
        address = read_hosts(self._run / "cloud" / "hosts").get(boot.host)
        if address is None:
            raise OSError(f"{boot.host} has no address in {self._run}/cloud/hosts")
        folder = self._folder(boot)
        folder.mkdir(parents=True, exist_ok=True)
        plan = {
            "folder": str(folder),
            "host": boot.host,
            "address": f"{address}/{PREFIX.prefixlen}",
            "holder": self._network.holder(),
            "link": link_of(boot.id),
            "cgroups": [str(path) for path in cgroups.make(self._group(boot), self._hierarchies)],
            "hierarchies": [(h.kind, h.name, h.options) for h in self._hierarchies],
            "binds": [*binds(self._run), *_disk_binds(self._run, boot)],
            "rootless": self._rootless,
        }
        try:
            return self._launch(boot, plan)
        except OSError:
            self.clear(boot)
            raise

    def _launch(self, boot: Boot, plan: dict[str, object]) -> ProcessId:
        # Among the machine's own logs, as it sees them.
        log = disk(self._run, boot.host) / "log" / f"boot-{boot.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        bucket = str(self._run / "bucket")
        python = [str(self._run / "python3"), "-I", "-S"]
        first = f"{bucket}/loader.py" if boot.registers else str(self._run / "cloud" / "hang.py")
        loader = [first, "--bucket", bucket, "--code", CODE]
        init = [
            *python,
            str(self._run / "cloud" / "init.py"),
            *loader,
            "--role",
            boot.role,
            "--host",
            boot.host,
        ]
        with log.open("a") as errors, self._lock:
            child = subprocess.Popen(
                [
                    *self._network.enter(),
                    *python,
                    str(self._run / "cloud" / "space.py"),
                    json.dumps(plan),
                    *init,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd="/",
                env={
                    "PATH": SEARCH,
                    "HOME": "/root",
                    "LANG": "C.UTF-8",
                    MACHINE_VARIABLE: boot.id,
                    CLUSTER_VARIABLE: str(self._run),
                },
                start_new_session=True,
            )
            self._children[child.pid] = child
        assert child.stdout is not None
        with child.stdout as output:
            pid, *problem = output.read().splitlines() or [""]
        process = ProcessId.of(int(pid)) if pid.isdigit() else None
        if process is None or problem:
            raise OSError(f"{'; '.join(problem) or 'it ended at once'} (its output: {log})")
        return process

    def stop(self, boot: Boot, process: ProcessId) -> bool:
        with contextlib.suppress(ProcessLookupError):
            if process.alive():
                os.kill(process.pid, signal.SIGTERM)
        _wait_for_end(process, GRACE_SECONDS)
        return self._end(boot, process)

    def kill(self, boot: Boot, process: ProcessId) -> None:
        self._end(boot, process)

    def _end(self, boot: Boot, process: ProcessId) -> bool:
        """SIGKILL to a machine's first process ends all the others; then what it had goes."""
        with contextlib.suppress(ProcessLookupError):
            if process.alive():
                os.kill(process.pid, signal.SIGKILL)
        _wait_for_end(process, DYING_SECONDS)
        self.clear(boot)
        return not process.alive()

    def freeze(self, boot: Boot, process: ProcessId) -> None:
        freeze_tree(process)

    def thaw(self, boot: Boot, process: ProcessId) -> None:
        thaw_tree(process)

    def cut(self, boot: Boot, process: ProcessId) -> None:
        self._network.cut(link_of(boot.id))

    def join(self, boot: Boot, process: ProcessId) -> None:
        self._network.join(link_of(boot.id))

    def clear(self, boot: Boot) -> None:
        end_all(lambda: with_descendants(with_environment(MACHINE_VARIABLE, boot.id)))
        self.reap()
        self._network.unplug(link_of(boot.id))
        cgroups.remove(self._group(boot))
        remove_folder(self._folder(boot))

    def purge(self) -> None:
        end_all(lambda: of_cluster(self._run))
        remove_traces(self._run)
        self.reap()

    def reap(self) -> None:
        with self._lock:
            for pid, child in list(self._children.items()):
                if child.poll() is not None:
                    del self._children[pid]
        self._network.reap()

    def _folder(self, boot: Boot) -> Path:
        return self._run / "cloud" / "machines" / boot.id

    def _group(self, boot: Boot) -> str:
        return f"{_prefix(self._run)}{boot.id}"


def link_of(machine: str) -> str:
    """The name of a machine's cable on the bridge: an interface's name has at most 15 characters."""
    return f"v{hashlib.sha256(machine.encode()).hexdigest()[:12]}"


def _wait_for_end(process: ProcessId, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.01)


def binds(run: Path) -> list[tuple[str, str]]:
    """Folders of this host's which machines share, and where they see them: the run directory, the software,
    and this Python, wherever they lie."""
    python = Path(sys.base_prefix).resolve()
    folders = [run, python, *software(run)]
    # Where home directories are, machines have the cluster's own: the links there lead here.
    hidden = [(str(python), PYTHON)] if python.is_relative_to(HOMES) else []
    return [(str(path), str(path)) for path in folders if not path.is_relative_to("/usr")] + hidden


def disk(run: Path, host: str) -> Path:
    """What outlives a machine of this name, as the data disk of a controller does."""
    return run / "disk" / host


def _disk_binds(run: Path, boot: Boot) -> list[tuple[str, str]]:
    kept = {"log": "/var/log/slurm"}
    if boot.role == "controller":
        kept |= {"state": "/var/spool/slurmctld", "lib": "/var/lib/slurm-stacks"}
    for name in kept:
        (disk(run, boot.host) / name).mkdir(parents=True, exist_ok=True)
    return [(str(disk(run, boot.host) / name), place) for name, place in kept.items()]


def software(run: Path) -> list[Path]:
    """What lies in the cluster's /apps, and outlives the cluster."""
    apps = (run / "apps").resolve()
    return [] if apps.is_relative_to(run) or not apps.exists() else [apps]


def link_python(shared: Path) -> None:
    """Have this Python where it is sought on a machine, though the machine's /home is another one.

    Args:
        shared: the folder that is /home there.
    """
    python = Path(sys.base_prefix).resolve()
    if python.is_relative_to(HOMES):
        link = shared / python.relative_to(HOMES)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(PYTHON)


def _prefix(run: Path) -> str:
    """The beginning of the names of all the cluster's cgroups."""
    return f"slurm-stacks-{hashlib.sha256(os.fsencode(run)).hexdigest()[:12]}-"


def traces(run: Path) -> list[str]:
    """What the kernel still has of a cluster's machines, a line each, beside processes."""
    return [f"cgroup {path}" for path in cgroups.there(_prefix(run))]


def remove_traces(run: Path) -> list[str]:
    """Remove what a cluster's machines had, once their processes have ended. Returns what stays."""
    left = [f"cgroup {path}" for path in cgroups.remove(_prefix(run))]
    remove_folder(run / "cloud" / "machines")
    return left


def remove_folder(folder: Path) -> None:
    """Remove a machine's files; the kernel leaves folders there that even their owner may not read."""
    for path, names, _ in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                below = Path(path) / name
                if not below.is_symlink() and not os.access(below, os.R_OK | os.W_OK | os.X_OK):
                    below.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def enter(pid: int, *, rootless: bool, environment: Sequence[str], folder: str) -> list[str]:
    """The command that runs another one on a machine.

    Args:
        pid: of the machine's first process.
        environment: `NAME=value`; the command has nothing else.
        folder: in which it starts.
    """
    user = ["--user", "--preserve-credentials"] if rootless else []
    kinds = ["--mount", "--uts", "--ipc", "--net", "--pid", *([] if rootless else ["--cgroup"])]
    # Slurm runs there under the user's own name, and so must those who talk to it.
    name = ["unshare", "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}", "--"]
    plain = ["env", "-i", "-C", folder, *environment]
    return ["nsenter", f"--target={pid}", *user, *kinds, "--", *(name if rootless else []), *plain]
