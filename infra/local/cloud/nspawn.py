"""A machine that boots: systemd in a container (`systemd-nspawn`), with a disk, an address and user data.

What it has of this host ends with its first process here, its *launcher*: processes and mounts are in
namespaces of the launcher's, the network in one that the caller holds. Only cgroups outlive it; `clear`
removes them. Nothing of it is registered anywhere: a host without systemd will do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.cloud import groups, seed
from infra.node.processes import ProcessId, descendants

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POWER_OFF = signal.SIGRTMIN + 4
"""What systemd as a first process takes for `systemctl poweroff`."""
AGAIN_SECONDS = 1.0
START_SECONDS = 60.0
ENDING_SECONDS = 15.0

# Arguments: the machine's folder, its disk's, its image's layers, the size of its disk in MiB or nothing, its
# cgroups, then the words of systemd-nspawn's command. It ends when the machine is off; status 133 is the
# machine's wish to start again.
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


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of this host's that a machine sees, at another place or the same."""

    source: Path
    target: str
    read_only: bool = False

    def option(self) -> str:
        words = [str(path).replace("\\", "\\\\").replace(":", "\\:") for path in (self.source, self.target)]
        return f"--bind{'-ro' if self.read_only else ''}={':'.join(words)}"


@dataclass(frozen=True, slots=True)
class Card:
    """A machine's network card.

    Attributes:
        namespace: a file that stands for the network namespace which has the bridge (/proc/PID/ns/net).
        address: with the prefix, as in `10.99.1.0/16`.
        routes: further networks that are reached directly, as a metadata address is (`169.254.169.254/32`).
    """

    namespace: Path
    bridge: str
    address: str
    gateway: str | None = None
    routes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine is made of.

    Attributes:
        id: this one's, which no other on this host has; its cgroups and its cable are named by it.
        host: its host name.
        folder: its own on this host: its disk, its console.
        layers: root folders of its image, the uppermost first; none of them is written.
        card: None for this host's own network.
        user_data: what cloud-init runs, from a NoCloud seed; None where a datasource serves it, or nobody.
        datasources: those that cloud-init may ask; the only one of a list is taken without a search.
        files: further files on its disk, by their paths on it: text, or text and mode.
        binds: of this host's.
        marks: environment variables of its processes on this host, by which they are found again.
        disk: the folder of its disk, where that outlives the machine; None: one in `folder`.
        log: takes what it writes to its console; None: a file in `folder`.
        disk_mib: the size of a disk in memory, for one that shall be full; None: as large as `folder`'s.
        options: of systemd-nspawn, further ones.
    """

    id: str
    host: str
    folder: Path
    layers: Sequence[Path]
    card: Card | None
    user_data: str | None = None
    datasources: Sequence[str] = ("NoCloud",)
    files: Mapping[str, str | tuple[str, int]] = field(default_factory=dict)
    binds: Sequence[Bind] = ()
    marks: Mapping[str, str] = field(default_factory=dict)
    disk: Path | None = None
    log: Path | None = None
    disk_mib: int | None = None
    options: Sequence[str] = ()

    @property
    def console(self) -> Path:
        """Where what it writes to its console lies, on this host."""
        return self.log or self.folder / "console.log"


_TIED = ("setpriv", "--pdeathsig", "KILL", "--")
"""Before a command that shall end with whoever starts it, however that ends."""


def start(machine: Machine, *, tied: bool = False) -> subprocess.Popen[bytes]:
    """Power on. Returns the launcher, which is there until the machine is off.

    Args:
        tied: the machine loses its power when this process ends.

    Raises:
        OSError: it cannot be made.
    """
    machine.folder.mkdir(parents=True, exist_ok=True)
    disk = _disk(machine)
    seed.write(machine)
    cgroups = groups.make(group(machine.id))
    # Its processes have the launcher's child for their first one: when that is killed, so are they all.
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    apart += ["--mount-proc", "--"]
    if machine.card is not None:
        apart = ["nsenter", f"--net={machine.card.namespace}", "--", *apart]
    command = [
        *(_TIED if tied else ()),
        *apart,
        *("sh", "-c", _LAUNCH, "sh"),
        *(str(machine.folder), str(disk), ":".join(str(layer) for layer in machine.layers)),
        *(str(machine.disk_mib or ""), " ".join(str(path) for path in cgroups)),
        *_nspawn(machine),
    ]
    with machine.console.open("ab") as console:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            cwd="/",
            env={
                "PATH": SEARCH,
                "HOME": "/root",
                "LANG": "C.UTF-8",
                "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
                **machine.marks,
            },
            start_new_session=True,
        )


def _disk(machine: Machine) -> Path:
    """The folder of its disk; one that was written above another image is of no use, and goes."""
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
    """A name for it whose cable's name (`vb-…`) has at most the 15 characters that an interface may have."""
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def link_of(identity: str) -> str:
    """The name of a machine's cable, at the bridge."""
    return f"vb-{_short(identity)}"


def group(identity: str) -> str:
    """The name of a machine's cgroup."""
    return f"{groups.PREFIX}{identity}"


# --- a machine that is on ---------------------------------------------------------------------------------


def leader(launcher: ProcessId) -> int | None:
    """The pid here of a machine's first process; None while there is none."""
    for pid in descendants(launcher.pid) if launcher.alive() else []:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            inside = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
            # systemd-nspawn's own half of it has that number, too, before it becomes systemd.
            if len(inside) > 1 and inside[-1] == "1" and _is_init(pid):
                return pid
    return None


def _is_init(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() in ("systemd", "init")


def enter(pid: int, environment: Sequence[str], folder: str = "/") -> list[str]:
    """The command that runs another one on a machine.

    Args:
        pid: `leader`'s.
        environment: `NAME=value`; the command has nothing else.
        folder: in which it starts.
    """
    kinds = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
    return ["nsenter", f"--target={pid}", *kinds, "--", "env", "-i", "-C", folder, *environment]


def execute(launcher: ProcessId, *command: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine, as root.

    Raises:
        OSError: the machine is not on.
    """
    pid = leader(launcher)
    if pid is None:
        raise ProcessLookupError("the machine is not on")
    return subprocess.run(
        [*enter(pid, [f"PATH={SEARCH}", "HOME=/root", "LANG=C.UTF-8"]), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        check=False,
    )


def power_off(identity: str, launcher: ProcessId, seconds: float) -> bool:
    """Have it shut down. False if it is still on after `seconds`."""
    deadline = time.monotonic() + seconds
    asked = 0.0
    while launcher.alive() and time.monotonic() < deadline and not groups.frozen(group(identity)):
        if time.monotonic() - asked > AGAIN_SECONDS and (pid := leader(launcher)) is not None:
            # Again after a while: one that has just begun to boot does not listen yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, POWER_OFF)
            asked = time.monotonic()
        time.sleep(0.02)
    return not launcher.alive()


def kill(identity: str, launcher: ProcessId | None) -> None:
    """Power loss: nothing of it has a moment to say goodbye."""
    if launcher is not None and launcher.alive():
        # First of all: it would start the machine again, or tell its end.
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher.pid, signal.SIGKILL)
    groups.kill(group(identity))
    deadline = time.monotonic() + ENDING_SECONDS
    while launcher is not None and launcher.alive() and time.monotonic() < deadline:
        time.sleep(0.01)


def freeze(identity: str) -> None:
    """Nothing of it runs, and nothing ends."""
    groups.freeze(group(identity), on=True)


def thaw(identity: str) -> None:
    groups.freeze(group(identity), on=False)


def clear(machine_folder: Path, identity: str) -> list[str]:
    """Remove what is left of a machine that is off. Returns what stays."""
    name = group(identity)
    groups.kill(name)
    left = [str(path) for path in groups.remove(lambda: groups.of(name))]
    remove_folder(machine_folder)
    return left


def remove_folder(folder: Path) -> None:
    """Remove a machine's files; overlayfs leaves folders there that even their owner may not read."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        left = [str(path) for path in folder.rglob("*")][:3]
        raise OSError(f"{folder} cannot be removed: {', '.join(left)} stays")


def wait_for(launcher: ProcessId, console: Path, seconds: float = START_SECONDS) -> int:
    """The first process of a machine that has just been started.

    Raises:
        OSError: there is none, and why: the end of its console's output.
    """
    deadline = time.monotonic() + seconds
    while (pid := leader(launcher)) is None:
        if not launcher.alive() or time.monotonic() > deadline:
            said = console.read_text(errors="replace").splitlines()[-5:] if console.exists() else []
            raise OSError(f"{'; '.join(said) or 'it ended at once'} (its console: {console})")
        time.sleep(0.02)
    return pid
