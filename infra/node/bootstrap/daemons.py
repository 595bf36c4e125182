"""Starting a machine's daemons in their order, and waiting until each is of use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from infra.node import ports, rpc
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service
from infra.node.elastic import programs
from infra.node.processes import ProcessId

LOG_LINES = 10
PORT_SECONDS = 3.0


def munged(context: Context, run: Path, lib: Path, log: Path, *options: str) -> None:
    """Start munged and wait for its socket.

    Args:
        run: the folder of its pid file.
        lib: the folder of its seed.
        log: the folder of its own log.
    """
    socket = context.path(context.folders.munge_socket)
    output = context.path(context.folders.log) / "munged.out"
    # Left by one that was killed, or by a reboot: it must not pass for the one that is started now.
    socket.unlink(missing_ok=True)
    pid = context.services.start(
        Service(
            "munged",
            (
                "/usr/sbin/munged", "--foreground",
                f"--socket={socket}", f"--key-file={context.folders.munge_key}",
                f"--pid-file={run}/munged.pid", f"--seed-file={lib}/munged.seed",
                f"--log-file={log}/munged.log", *options,
            ),
            output,
            user=context.munge_user,
        )
    )  # fmt: skip
    wait("munged", socket.exists, output, pid)


def controller(context: Context) -> None:
    """Start the elastic daemon and slurmctld; both are there when this returns."""
    folders, log = context.folders, context.path(context.folders.log)
    service = programs.daemon_service(context.settings, context.settings_file, context.slurm_user)
    elastic = context.services.start(service)
    wait("the elastic daemon", lambda: _answers(str(folders.daemon_socket)), log / "elastic.log", elastic)
    slurmctld = context.services.start(
        Service(
            "slurmctld",
            ("/usr/sbin/slurmctld", "-D", "-f", str(folders.slurm_conf)),
            log / "slurmctld.out",
            {"SLURM_CONF": str(folders.slurm_conf)},
            context.slurm_user,
        )
    )
    ping = ["/usr/bin/scontrol", "ping"]
    env = {**os.environ, "SLURM_CONF": str(folders.slurm_conf)}
    wait(
        "slurmctld",
        lambda: b" is UP" in subprocess.run(ping, env=env, capture_output=True, check=False).stdout,
        log / "slurmctld.log",
        slurmctld,
    )


def see_port(context: Context, port: int) -> None:
    """Refuse a port that another program has: the daemon would end and be started again for ever."""
    # A machine that ended a moment ago, this node's last one too, gives it back within a few moments.
    deadline = time.monotonic() + PORT_SECONDS
    while not ports.free(port):
        if time.monotonic() > deadline:
            taken = f"port {port} of {context.host} is taken by {ports.holder(port)}"
            if not context.process:
                raise OSError(f"{taken}: end it, and see that nothing starts it at boot")
            if context.role == "controller":
                raise OSError(f"{taken}; `up` chooses others when it runs again")
            raise OSError(f"{taken}: end it; or `down` and `up` choose other ports")
        time.sleep(0.05)


def wait(what: str, there: Callable[[], bool], log: Path, pid: int | None = None) -> None:
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
        error.add_note("\n".join([f"waited for {what}; the end of {log}:", *end_of(log)]))
        raise


def end_of(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else ["(no log)"]


def _answers(socket: str) -> bool:
    try:
        rpc.call(socket, "ping", 1.0)
    except rpc.RpcUnavailableError:
        return False
    return True
