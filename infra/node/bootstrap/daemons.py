"""Starting a machine's daemons in their order, and waiting until each is of use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from infra.node import ports, rpc
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.services import Service
from infra.node.processes import ProcessId

LOG_LINES = 10
PORT_SECONDS = 3.0
RENEW_SECONDS = 60.0


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
    # Here and not above: no node needs it.
    from infra.node.elastic import programs

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
            str(programs.configure(context.settings)),
        )
    )
    wait("slurmctld", lambda: _controls(context), log / "slurmctld.log", slurmctld)
    _renew(context)


def _controls(context: Context) -> bool:
    conf = str(context.folders.slurm_conf)
    ping, env = ["/usr/bin/scontrol", "ping"], {**os.environ, "SLURM_CONF": conf}
    return b" is UP" in subprocess.run(ping, env=env, capture_output=True, check=False).stdout


def _renew(context: Context) -> None:
    """Have nodes whose hardware has changed get their new lines, as far as they are off.

    Before anybody is told that the cluster is up: until then no job starts in their partitions. Should it
    take too long, the elastic daemon goes on with it.
    """
    from infra.node.slurm import hardware

    lib = context.path(context.folders.lib)

    def settled() -> bool:
        # Who keeps the daemons running is busy with this boot.
        context.services.tend()
        record = hardware.read(lib)
        looked_at = record is None or record.kept(context.settings.design).keys() <= set(record.seen)
        return looked_at and not (lib / hardware.RENEWAL).exists() and _controls(context)

    record = hardware.read(lib)
    if record is None or not record.kept(context.settings.design):
        return
    print("waiting for slurmctld to know the new hardware of nodes", file=sys.stderr, flush=True)
    deadline = time.monotonic() + RENEW_SECONDS
    with contextlib.suppress(rpc.RpcError, rpc.RpcUnavailableError):
        rpc.call(str(context.folders.daemon_socket), "renew", RENEW_SECONDS)
    while not settled() and time.monotonic() < deadline:
        time.sleep(0.1)


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
