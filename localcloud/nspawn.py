"""A machine that boots: systemd in a container (`systemd-nspawn`), with a disk, an address and user data.

A machine's first process on this host is its *launcher*. Processes and mounts are in the launcher's
namespaces and end with it; the network is in a namespace that the caller holds. Only cgroups outlive the
launcher; `clear` removes them. Nothing is registered with this host, so the host needs no systemd.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from localcloud import cgroups, cores
from localcloud.boot_files import write_boot_files
from localcloud.container_machine import Machine
from node.system import foreign, subprocesses
from node.system.processes import ProcessId, descendants, with_descendants
from node.system.subprocesses import SEARCH
from node.system.waiting import wait_at_most

POWER_OFF = signal.SIGRTMIN + 4
"""The signal that means `systemctl poweroff` to systemd as a first process."""
AGAIN_SECONDS = 1.0
START_SECONDS = 60.0
ENDING_SECONDS = 15.0

# The arguments are the machine's folder, its disk's folder, the image's layers, the disk's size in MiB or
# an empty word, the cgroups, and then the command line of systemd-nspawn. The script ends when the machine is
# off. Status 133 means that the machine asked for a reboot.
_LAUNCH = """
folder=$1 disk=$2 layers=$3 size=$4 groups=$5
shift 5
mount -t tmpfs -o mode=755 tmpfs /run/systemd 2>/dev/null || {
    mkdir -p /run/systemd && mount -t tmpfs -o mode=755 tmpfs /run/systemd || exit 1; }
[ -z "$size" ] || mount -t tmpfs -o "mode=755,size=${size}m" tmpfs "$disk" || exit 1
mkdir -p "$disk/upper" "$disk/work" "$folder/root"
cp -a "$folder/seed/." "$disk/upper/" || exit 1
rm -rf "$folder/seed"
options=lowerdir=$layers,upperdir=$disk/upper,workdir=$disk/work
mount -t overlay -o "$options" overlay "$folder/root" || exit 1
status=133
while [ "$status" = 133 ]; do
    ( for group in $groups; do echo 0 >"$group/cgroup.procs" || exit 1; done
      exec "$@" "--directory=$folder/root" ) </dev/null
    status=$?
done
exit "$status"
"""


_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""The prefix of a command that must end with its parent, however the parent ends."""


def start(machine: Machine, *, die_with_parent: bool = False) -> subprocess.Popen[bytes]:
    """Power a machine on.

    Args:
        die_with_parent: Whether the machine loses its power when this process ends.

    Returns:
        The launcher, which runs until the machine is off.

    Raises:
        OSError: The machine cannot be started.
    """
    machine.folder.mkdir(parents=True, exist_ok=True)
    disk = _disk(machine)
    write_boot_files(machine)
    cgroups.make(group(machine.id), machine.cores)
    # Also those of version 1 for jobs: /proc/PID/cgroup on the machine then has the paths that it mounts.
    groups = cgroups.of(group(machine.id))
    # The launcher's child is PID 1 of the machine's processes: when it is killed, all of them are.
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    apart += ["--mount-proc", "--"]
    if machine.cores:
        # The machine's processes inherit this. Cgroups of version 2 limit the cores, too, if they have
        # cpusets.
        apart = ["taskset", "--cpu-list", cores.in_words(machine.cores), *apart]
    if machine.card is not None:
        apart = ["nsenter", f"--net={machine.card.namespace}", "--", *apart]
    command = [
        *(_DIE_WITH_PARENT if die_with_parent else ()),
        *apart,
        *("sh", "-c", _LAUNCH, "sh"),
        *(str(machine.folder), str(disk), ":".join(str(layer) for layer in machine.layers)),
        *(str(machine.disk_mib or ""), " ".join(str(path) for path in groups)),
        *_nspawn(machine),
    ]
    # The folder is a user's of the machine, who could have put a link to a file of this host there.
    env = {"PATH": SEARCH, "HOME": "/root", "LANG": "C.UTF-8", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with foreign.log(machine.console) as console:
        return subprocesses.start(command, {**env, **machine.environment}, console)


def _disk(machine: Machine) -> Path:
    """Return the folder of the disk. A disk that was written above another image is removed first."""
    disk = machine.disk or machine.folder / "disk"
    note, layers = disk / "layers", "\n".join(map(str, machine.layers))
    if disk.exists() and not (note.exists() and note.read_text() == layers):
        remove_folder(disk)
    disk.mkdir(parents=True, exist_ok=True)
    note.write_text(layers)
    return disk


def _nspawn(machine: Machine) -> list[str]:
    options = [
        *("--quiet", "--register=no", "--keep-unit", "--boot", "--settings=no", "--link-journal=no"),
        *(f"--machine={_short(machine.id)}", f"--hostname={machine.host}", "--timezone=off"),
        f"--kill-signal={POWER_OFF}",
        *(bind.option() for bind in machine.binds),
    ]
    if machine.card is None:
        options += ["--resolv-conf=copy-host"]
    else:
        options += [f"--network-bridge={machine.card.bridge}", "--resolv-conf=off"]
    return ["systemd-nspawn", *options, *machine.options]


def _short(identity: str) -> str:
    """Return a short name: an interface's name (`vb-…`) may have at most 15 characters."""
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def link_of(identity: str) -> str:
    """Return the name of a machine's link at the bridge."""
    return f"vb-{_short(identity)}"


def group(identity: str) -> str:
    """Return the name of a machine's cgroup."""
    return f"{cgroups.PREFIX}{identity}"


# --- a machine that is on ---------------------------------------------------------------------------------


def leader(launcher: ProcessId) -> int | None:
    """Return the pid, on this host, of a machine's first process; `None` while there is none."""
    for pid in descendants(launcher.pid) if launcher.alive() else []:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            inside = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
            # systemd-nspawn's own process has this number, too, before it becomes systemd.
            if len(inside) > 1 and inside[-1] == "1" and _is_init(pid):
                return pid
    return None


def _is_init(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() in ("systemd", "init")


def enter(pid: int, environment: Sequence[str], folder: str = "/") -> list[str]:
    """Return the prefix of a command line that runs a command on a machine.

    Args:
        pid: The machine's first process, from `leader`.
        environment: The command's whole environment, as `NAME=value`.
        folder: The working folder.
    """
    kinds = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    return ["nsenter", f"--target={pid}", *kinds, "--", "env", "-i", "-C", folder, *environment]


def execute(launcher: ProcessId, *command: str, seconds: float = 60.0) -> subprocesses.Ran:
    """Run a command on a machine, as root.

    Raises:
        OSError: The machine is not on, or the command is not done in time.
    """
    pid = leader(launcher)
    if pid is None:
        raise ProcessLookupError("the machine is not on")
    prefix = enter(pid, [f"PATH={SEARCH}", "HOME=/root", "LANG=C.UTF-8"])
    ended = subprocesses.run([*prefix, *command], {"PATH": SEARCH}, seconds)
    if ended.status is None:
        raise TimeoutError(f"{' '.join(command)}: not done after {seconds:g} s")
    return ended


def power_off(identity: str, launcher: ProcessId, seconds: float) -> bool:
    """Shut a machine down, and return False if it is still on after `seconds`."""
    asked_at = 0.0

    def is_over() -> bool:
        nonlocal asked_at
        if not launcher.alive() or cgroups.frozen(group(identity)):
            return True
        if time.monotonic() - asked_at > AGAIN_SECONDS and (pid := leader(launcher)) is not None:
            # The signal is repeated, because a machine that has just begun to boot ignores it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, POWER_OFF)
            asked_at = time.monotonic()
        return False

    wait_at_most(is_over, seconds)
    return not launcher.alive()


def kill(identity: str, launcher: ProcessId | None) -> None:
    """End a machine as a power loss does: no process of it can react."""
    if launcher is not None and launcher.alive():
        # The launcher is killed first: it could start the machine again, or report its end.
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher.pid, signal.SIGKILL)
    cgroups.kill(group(identity))
    if launcher is not None:
        wait_at_most(lambda: not launcher.alive(), ENDING_SECONDS, 0.01)


def move(identity: str, launcher: ProcessId, before: Sequence[int], after: Sequence[int]) -> None:
    """Move all of a machine from its cores to others, as many.

    Raises:
        OSError: The kernel refuses the cgroup's cores.
    """
    # The kernel cuts a thread's cores down to its cgroup's, so the group has both while threads move.
    cgroups.set_cores(group(identity), sorted({*before, *after}))
    cores.move(lambda: with_descendants([launcher.pid]), before, after)
    cgroups.set_cores(group(identity), after)


def freeze(identity: str) -> None:
    """Freeze all processes of a machine: none runs and none ends."""
    cgroups.freeze(group(identity), on=True)


def thaw(identity: str) -> None:
    cgroups.freeze(group(identity), on=False)


def clear(machine_folder: Path, identity: str) -> list[str]:
    """Remove what is left of a machine that is off, and return the cgroups that could not be removed."""
    name = group(identity)
    cgroups.kill(name)
    left = [str(path) for path in cgroups.remove(lambda: cgroups.of(name))]
    remove_folder(machine_folder)
    return left


def remove_folder(folder: Path) -> None:
    """Remove a machine's files. overlayfs leaves folders there that even their owner may not read.

    Raises:
        OSError: Some files stay.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        left = [str(path) for path in folder.rglob("*")][:3]
        raise OSError(f"{folder} cannot be removed: {', '.join(left)} stays")


def wait_for(launcher: ProcessId, console: Path, seconds: float = START_SECONDS) -> int:
    """Wait for the first process of a machine that has just been started, and return its pid.

    Raises:
        OSError: The machine did not start; the message has the end of its console output.
    """
    wait_at_most(lambda: leader(launcher) or not launcher.alive(), seconds)
    if (pid := leader(launcher)) is None:
        output = console.read_text(errors="replace").splitlines()[-5:] if console.exists() else []
        raise OSError(f"{'; '.join(output) or 'it ended at once'} (its console: {console})")
    return pid
