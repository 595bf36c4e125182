"""The steps of a boot, in their order; a role is the steps that apply to it.

Each is idempotent, has a time limit, and says in one line what it did. A step that fails raises, and the
machine does not register: a node is one that has its mounts and its accelerators.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infra.node import ports, rpc
from infra.node.bootstrap.registration import start_slurmd
from infra.node.bootstrap.report import BootReport
from infra.node.bootstrap.services import Service, Services
from infra.node.elastic import programs
from infra.node.model import Folders, Settings
from infra.node.processes import ProcessId
from infra.node.slurm import gres, version

MIN_FREE_MIB = 64
VERSION_FILE = "version"
"""Beside slurm.conf: the release that it was rendered for."""
LOG_LINES = 10
PORT_SECONDS = 3.0


class SkipStep(Exception):  # noqa: N818 - not an error: the step has nothing to do here
    """The step does not apply to this machine; the text says why."""


@dataclass(slots=True)
class Context:
    """A machine during its boot."""

    settings: Settings
    settings_file: Path
    role: str
    host: str
    folders: Folders
    services: Services
    report: BootReport

    @property
    def process(self) -> bool:
        return self.folders.process

    def path(self, pure: object) -> Path:
        return Path(str(pure))


@dataclass(frozen=True, slots=True)
class Step:
    """`run` returns a line on what it did, or raises."""

    name: str
    timeout: float
    roles: frozenset[str]
    run: Callable[[Context], str]


ALL = frozenset({"controller", "login", "compute"})


def users(context: Context) -> str:
    # By the user database, as Slurm does: $USER may name anybody.
    user = pwd.getpwuid(os.getuid()).pw_name
    if user != context.settings.site.user:
        # slurmd as one user cannot become another: a foreign job would run as the cluster's owner.
        raise PermissionError(
            f"this cluster belongs to {context.settings.site.user}; {user} cannot run a machine of it"
        )
    return f"Slurm runs as {user}"


def hosts(_context: Context) -> str:
    raise SkipStep("all machines share this host's name and address")


def secrets(context: Context) -> str:
    """The munge key: made on the controller, never seen by Pulumi."""
    key = context.path(context.folders.munge_key)
    if key.exists() and key.stat().st_size >= 32:
        return "the munge key is there"
    if context.role != "controller":
        raise FileNotFoundError(f"{key}: the controller makes it before any other machine starts")
    draft = key.with_suffix(".new")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(handle, "wb") as stream:
        stream.write(os.urandom(1024))
    draft.replace(key)
    return "made the munge key"


def disks(context: Context) -> str:
    root = context.path(context.folders.root)
    free = shutil.disk_usage(root).free // 2**20
    if free < MIN_FREE_MIB:
        raise OSError(f"{root}: {free} MiB are free, {MIN_FREE_MIB} are needed; make room there")
    return f"{free} MiB free"


def mounts(context: Context) -> str:
    site = context.settings.site
    for folder in (site.shared, site.apps):
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(f"{path} is not writable for {site.user}")
    return f"{site.shared} and {site.apps} are there"


def slurm(context: Context) -> str:
    """Configuration, rendered on the controller for the Slurm that is installed there."""
    folders = context.folders
    if context.role == "controller":
        # Here and not above: a compute node of the same host renders nothing, and boots in half the time.
        from infra.node.slurm import conf

        text = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.strip()
        context.report.content["facts"]["slurm"] = text
        for folder in (folders.etc, folders.run, folders.log, folders.state, folders.spool, folders.lib):
            context.path(folder).mkdir(parents=True, exist_ok=True)
        # munge refuses sockets in a folder that others cannot enter, and a umask may have made it one.
        context.path(folders.run).chmod(0o755)
        programs.write(context.settings, context.settings_file)
        for name, content in conf.render(context.settings, version.parse(text)).items():
            target = context.path(folders.etc) / name
            draft = target.with_suffix(".new")
            draft.write_text(content)
            draft.replace(target)
        (context.path(folders.etc) / VERSION_FILE).write_text(text)
        return text
    if not context.path(folders.slurm_conf).exists():
        raise FileNotFoundError(f"{folders.slurm_conf}: the controller has not made it yet")
    return "the controller's configuration is there"


def accelerators(context: Context) -> str:
    partition = context.settings.design.partition_of(context.host)
    accelerator = partition.accelerator if partition else None
    if accelerator is None:
        raise SkipStep("this machine has none")
    if accelerator.simulated:
        return f"{accelerator.count} simulated {accelerator.type}"
    devices = gres.devices(accelerator)
    missing = [d for d in devices if not Path(d).exists()]
    if missing:
        raise FileNotFoundError(f"accelerator devices are missing: {' '.join(missing)}")
    return f"{accelerator.count} {accelerator.type}"


def hooks(context: Context) -> str:
    mine = [
        (number, hook)
        for number, hook in enumerate(context.settings.design.hooks)
        if hook.role in ("all", context.role)
    ]
    if not mine:
        raise SkipStep("the stack file has none for this role")
    for number, hook in mine:
        script = context.path(context.folders.code) / "hooks" / f"{number}-{Path(hook.source).name}"
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        log = context.path(context.folders.log) / f"hook-{number}-{context.host}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # A file and no pipe: a service that the hook leaves behind would hold a pipe open for ever.
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    [str(script), *hook.args],
                    stdout=output,
                    stderr=output,
                    timeout=hook.timeout,
                    stdin=subprocess.DEVNULL,
                    check=False,
                    env={**os.environ, "SLURM_STACKS_ROLE": context.role, "SLURM_STACKS_HOST": context.host},
                ).returncode
                ended = f"ended with status {status}"
            except subprocess.TimeoutExpired:
                status, ended = None, f"was not done after {hook.timeout} s"
        if status != 0:
            raise RuntimeError("\n".join([f"{hook.source} {ended}; the end of {log}:", *_end(log)]))
    return f"ran {len(mine)}"


def ready(context: Context) -> str:
    """Start the role's daemons; a compute node registers here and not before."""
    if context.role == "controller":
        return _controller(context)
    if context.role == "compute":
        return _compute(context)
    return "nothing to start"


def _controller(context: Context) -> str:
    folders, log = context.folders, context.path(context.folders.log)
    run = context.path(folders.run)
    _see_port(context, context.settings.site.slurmctld_port)
    # Left by one that was killed, or by a reboot: it must not pass for the one that is started now.
    context.path(folders.munge_socket).unlink(missing_ok=True)
    munged = context.services.start(
        Service(
            "munged",
            (
                "/usr/sbin/munged", "--foreground",
                f"--socket={folders.munge_socket}", f"--key-file={folders.munge_key}",
                f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed",
                f"--log-file={log}/munged.log",
            ),
            log / "munged.out",
        )
    )  # fmt: skip
    _wait("munged", lambda: Path(str(folders.munge_socket)).exists(), log / "munged.out", munged)
    elastic = context.services.start(programs.daemon_service(context.settings, context.settings_file))
    _wait("the elastic daemon", lambda: _answers(str(folders.daemon_socket)), log / "elastic.log", elastic)
    slurmctld = context.services.start(
        Service(
            "slurmctld",
            ("/usr/sbin/slurmctld", "-D", "-f", str(folders.slurm_conf)),
            log / "slurmctld.out",
            {"SLURM_CONF": str(folders.slurm_conf)},
        )
    )
    ping = ["/usr/bin/scontrol", "ping"]
    env = {**os.environ, "SLURM_CONF": str(folders.slurm_conf)}
    _wait(
        "slurmctld",
        lambda: b" is UP" in subprocess.run(ping, env=env, capture_output=True, check=False).stdout,
        log / "slurmctld.log",
        slurmctld,
    )
    return "munged, slurmctld and the elastic daemon run"


def _compute(context: Context) -> str:
    # Here: on a machine of its own a compute node needs nothing of it.
    from infra.node.slurm.conf import slurmd_ports

    folders, log = context.folders, context.path(context.folders.log)
    _see_port(context, slurmd_ports(context.settings)[context.host])
    # %n of SlurmdSpoolDir is a folder that slurmd makes, its parent is not.
    context.path(folders.spool).mkdir(parents=True, exist_ok=True)
    release = version.parse((context.path(folders.etc) / VERSION_FILE).read_text())
    start_slurmd(
        context.services,
        Service(
            "slurmd",
            # -b: without it the node registers but stays "powering up" until ResumeTimeout, because its
            # boot time, which is this host's, is older than the request.
            ("/usr/sbin/slurmd", "-D", "-b", "-N", context.host, "-f", str(folders.slurm_conf)),
            log / f"slurmd-{context.host}.out",
            {"SLURM_CONF": str(folders.slurm_conf)},
        ),
        context.host,
        folders,
        release,
    )
    return "slurmd runs"


def _see_port(context: Context, port: int) -> None:
    """Refuse a port that another program has: the daemon would end and be started again for ever."""
    # A machine that ended a moment ago, this node's last one too, gives it back within a few moments.
    deadline = time.monotonic() + PORT_SECONDS
    while not ports.free(port):
        if time.monotonic() > deadline:
            taken = f"port {port} of {context.host} is taken by {ports.holder(port)}"
            if context.role == "controller":
                raise OSError(f"{taken}; `up` chooses others when it runs again")
            raise OSError(f"{taken}: end it; or `down` and `up` choose other ports")
        time.sleep(0.05)


def _answers(socket: str) -> bool:
    try:
        rpc.call(socket, "ping", 1.0)
    except rpc.RpcUnavailableError:
        return False
    return True


def _wait(what: str, there: Callable[[], bool], log: Path, pid: int | None = None) -> None:
    """Until `there`; the step's own time limit ends it otherwise, with the log's end on the report.

    Args:
        pid: the daemon that it is about: once that has ended there is nothing to wait for.
    """
    print(f"waiting for {what} (log: {log})", file=sys.stderr, flush=True)
    process = ProcessId.of(pid) if pid is not None else None
    try:
        while not there():
            if process is not None and not process.alive():
                raise RuntimeError(f"{what} ended as it started")
            time.sleep(0.02)
    except Exception as error:
        error.add_note("\n".join([f"waited for {what}; the end of {log}:", *_end(log)]))
        raise


def _end(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else ["(no log)"]


STEPS: tuple[Step, ...] = (
    Step("users", 30, ALL, users),
    Step("hosts", 30, ALL, hosts),
    Step("secrets", 120, ALL, secrets),
    Step("disks", 120, ALL, disks),
    Step("mounts", 300, ALL, mounts),
    Step("slurm", 300, ALL, slurm),
    Step("accelerators", 900, frozenset({"compute"}), accelerators),
    Step("hooks", 3600, ALL, hooks),
    Step("ready", 60, ALL, ready),
)
