"""Starts a machine's daemons in their order, and waits until each of them works."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from pathlib import Path

from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.system import ports, rpc
from node.system.processes import ProcessId
from node.system.waiting import wait_at_most

LOG_LINES = 10
PORT_SECONDS = 3.0
RENEW_SECONDS = 60.0
RECONFIGURE_SECONDS = 60.0
RECORD_SECONDS = 30.0


def munged(context: Context, run: Path, lib: Path, log: Path, *options: str) -> None:
    """Start munged and waits for its socket.

    Args:
        run: The folder of munged's pid file.
        lib: The folder of munged's seed.
        log: The folder of munged's own log.
    """
    socket = context.path(context.folders.munge_socket)
    output = context.path(context.folders.log) / "munged.out"
    # A socket that a killed munged or a reboot left must not pass for that of the new munged.
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
    """Start the elastic daemon and slurmctld. Both answer when this returns."""
    # Imported late, because no node needs it.
    from node.elastic import programs

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
            str(programs.record_changes(context.settings)),
            programs.holds_state(context.settings),
        )
    )
    wait("slurmctld", lambda: _controls(context), log / "slurmctld.log", slurmctld)
    _renew(context)


def _controls(context: Context) -> bool:
    # Imported late, because no node needs it.
    from node.slurm.control import Control, SlurmError

    try:
        return " is UP" in Control(context.folders.slurm_conf).run("scontrol", "ping")
    except SlurmError:
        return False


def _renew(context: Context) -> None:
    """Give new lines in slurm.conf to nodes whose hardware has changed, if they are off.

    This happens before the cluster is reported as up, because no job starts in these partitions before. If it
    takes too long, the elastic daemon continues.
    """
    from node.slurm import hardware

    lib = context.path(context.folders.elastic)

    def settled() -> bool:
        # In process mode this process restarts daemons that end, but not while it is busy with the boot.
        context.services.tend()
        record = hardware.read(lib)
        looked_at = record is None or record.kept(context.settings.design).keys() <= set(record.seen)
        return looked_at and not (lib / hardware.RENEWAL).exists() and _controls(context)

    record = hardware.read(lib)
    if record is None or not record.kept(context.settings.design):
        return
    print("waiting for slurmctld to know the new hardware of nodes", file=sys.stderr, flush=True)
    with contextlib.suppress(rpc.RpcError, rpc.RpcUnavailableError):
        rpc.call(str(context.folders.daemon_socket), "renew", RENEW_SECONDS)
    wait_at_most(settled, RENEW_SECONDS, 0.1)


def record_changes(context: Context) -> None:
    """Have a running elastic daemon record what people have changed in Slurm, before slurm.conf is new."""
    with contextlib.suppress(rpc.RpcError, rpc.RpcUnavailableError):
        rpc.call(str(context.folders.daemon_socket), "record", RECORD_SECONDS)


def reconfigure(context: Context) -> str:
    """Have the nodes that are up read Slurm's present configuration, by the elastic daemon.

    Returns:
        Why that waits; empty if it is done. The daemon goes on trying, also after a failure.
    """
    try:
        answer = rpc.call(str(context.folders.daemon_socket), "reconfigure", RECONFIGURE_SECONDS)
    except (rpc.RpcError, rpc.RpcUnavailableError) as error:
        return f"nodes that are up have not read the new configuration yet: {error}"
    return str(answer["waits"])


def check_port(context: Context, port: int) -> None:
    """Raise OSError if another program has the port, because the daemon would end and restart for ever."""
    # A machine that has just ended, such as this node's last one, releases the port within a moment.
    if wait_at_most(lambda: ports.free(port), PORT_SECONDS, 0.05):
        return
    taken = f"port {port} of {context.host} is taken by {ports.holder(port)}"
    if not context.process:
        raise OSError(f"{taken}: end it, and see that nothing starts it at boot")
    if context.role == "controller":
        raise OSError(f"{taken}; `up` chooses others when it runs again")
    raise OSError(f"{taken}: end it; or `down` and `up` choose other ports")


def wait(what: str, is_ready: Callable[[], bool], log: Path, pid: int | None = None) -> None:
    """Wait until `there` returns true.

    The step's time limit may end the wait; then the report has the log's last lines.

    Args:
        what: The daemon's name for messages.
        pid: The daemon's pid. If the daemon ends, the wait ends with an error.
    """
    print(f"waiting for {what} (log: {log})", file=sys.stderr, flush=True)
    process = ProcessId.of(pid) if pid is not None else None

    def works() -> bool:
        if is_ready():
            return True
        if process is not None and not process.alive():
            raise RuntimeError(f"{what} ended as it started")
        return False

    try:
        wait_at_most(works, math.inf)
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
