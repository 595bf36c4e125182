"""Makes a namespace machine and becomes its first process's parent: run as a file, by the agent.

`space.py PLAN INIT [ARGUMENT …]`, started in the cloud's network namespace. PLAN is a JSON object:
    folder: where the machine's own files lie; it has `root`, `upper`, `work` and `tmp` afterwards.
    host, address: its name and its IPv4 address with the prefix's length.
    holder, link: a process in the cloud's network, and the name of the machine's cable there.
    cgroups: folders of cgroups, one a hierarchy, which the machine gets as its own; none: it gets none.
    binds: folders of this host which it shares, and where each is seen.
    rootless: whether this runs in a user namespace of one user.

On standard output comes a line with the first process's pid, and after it what went wrong, if something did.
Standard library only, because it runs without the project.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID, NEWNET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
OWN = ("proc", "sys", "dev", "run", "tmp")
"""Folders of `/` which a machine has for itself from the start."""
NOT_SHOWN = ("boot", "lost+found", "root")
"""Folders of `/` that a machine does not see: root's home is its own and empty, as on a cloud."""
MOUNT_POINTS = ("home", "apps", "scratch")
PSEUDO = {
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "debugfs", "tracefs",
    "securityfs", "pstore", "bpf", "configfs", "fusectl", "autofs", "binfmt_misc", "nsfs", "ramfs",
    "squashfs", "efivarfs", "rpc_pipefs",
}  # fmt: skip
FOREIGN = ("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/snap")
REPLACED = (
    "etc/slurm", "etc/munge", "var/log/slurm", "var/log/munge", "var/lib/munge", "var/spool/slurmd",
    "var/spool/slurmctld", "var/lib/slurm-stacks",
)  # fmt: skip
"""Folders that belong to users whom a machine of one user does not have: it starts with empty ones."""
MERGED = ("etc", "var", "var/log", "var/lib", "var/spool", "opt", "srv", "usr", "usr/local", "usr/local/bin")
COPIED = ("etc/hosts", "etc/hostname", "etc/passwd", "etc/group")
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    # Slurm's user reads what root unpacks there, whatever umask the agent was started with.
    os.umask(0o022)
    plan: dict[str, Any] = json.loads(sys.argv[1])
    _join_cgroups(plan["cgroups"])
    _call("unshare", NEWNET)
    _plug(plan)
    _call("unshare", NEWNS | NEWUTS | NEWIPC | NEWPID | (NEWCGROUP if plan["cgroups"] else 0))
    _leave_room(plan)
    child = os.fork()
    if child == 0:
        _first_process(plan, sys.argv[2:])
    print(child, flush=True)
    # The agent reads until everybody has closed it: from here on only the machine's part can say something.
    os.dup2(2, 1)
    # Ending the machine is the agent's, by its first process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.waitpid(child, 0)


def _join_cgroups(folders: list[str]) -> None:
    for folder in folders:
        (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))


def _leave_room(plan: dict[str, Any]) -> None:
    """In version 2 a cgroup holds processes or has cgroups below it: ours go into one of their own."""
    for folder, (_, name, _) in zip(plan["cgroups"], plan["hierarchies"], strict=True):
        if not name:
            (Path(folder) / "init.scope").mkdir()
            _join_cgroups([f"{folder}/init.scope"])


def _plug(plan: dict[str, Any]) -> None:
    """A cable from here, the machine's network, to the cloud's bridge."""
    holder, link = str(plan["holder"]), plan["link"]
    inside = [
        f"link add eth0 type veth peer name {link} netns {holder}",
        f"address add {plan['address']} dev eth0",
        "link set lo up",
        "link set eth0 up",
    ]
    _ip([], inside)
    _ip(["nsenter", f"--net=/proc/{holder}/ns/net"], [f"link set {link} master br0 up"])


def _ip(prefix: list[str], commands: list[str]) -> None:
    done = subprocess.run(
        [*prefix, "ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"ip: {done.stderr.strip()}")


def _first_process(plan: dict[str, Any], argv: list[str]) -> None:
    """The machine's own side: its files, its name, and then its init. Does not return."""
    try:
        # A machine does not outlive the process that waits for it: nobody would collect it.
        _call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        socket.sethostname(plan["host"])
        _root(Path(plan["folder"]), plan)
        os.chdir("/")
        # One that comes before the init handles it waits until then, and is not lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        # What standard output was is only for what goes wrong until here: it is not passed on.
        errors = os.dup(1)
        os.dup2(2, 1)
        try:
            os.execv(argv[0], argv)
        finally:
            os.dup2(errors, 1)
    except BaseException as error:
        os.write(1, f"{error}\n".encode())
        os._exit(1)


def _root(folder: Path, plan: dict[str, Any]) -> None:
    """Have a root directory that looks like this host's and whose changes are the machine's own."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.chdir(folder)
    root = Path("root")
    for name in ("root", "upper", "work", "tmp"):
        Path(name).mkdir(exist_ok=True)
    Path("tmp").chmod(0o1777)
    _mount("root", "root", None, MS_BIND)
    if plan["rootless"]:
        _own_folders()
    _host_files(root, plan["rootless"])
    for name in (*OWN, *MOUNT_POINTS):
        (root / name).mkdir(exist_ok=True)
    _mount("tmp", root / "tmp", None, MS_BIND)
    _mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    (root / "run" / "lock").mkdir()
    # Others than root come through, to what is mounted below it.
    (root / "root").mkdir(mode=0o711)
    for path, place in plan["binds"]:
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _mount(path, root / place.lstrip("/"), None, MS_BIND)
    _mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _devices(root)
    _system(root, plan)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def _own_folders() -> None:
    """As a user namespace's only user: files of all others are nobody's there, and cannot be changed.

    What shall be changed must be ours before the layers are put together.
    """
    for name in MERGED:
        (Path("upper") / name).mkdir(parents=True, exist_ok=True)
    for name in REPLACED:
        (Path("upper") / name).mkdir(parents=True, exist_ok=True)
        os.setxattr(Path("upper") / name, "user.overlay.opaque", b"y")
    for name in COPIED:
        if (Path("/") / name).exists():
            (Path("upper") / name).write_bytes((Path("/") / name).read_bytes())


def _host_files(root: Path, rootless: bool) -> None:
    """This host's folders, each as a layer below one of the machine's own."""
    whole: list[str] = []
    for path in [*_top_level(root), *_mounted()]:
        if any(path.is_relative_to(other) for other in whole):
            continue
        target = root / path.relative_to("/")
        try:
            _layer(path, target, rootless)
        except OSError:
            # Another file system that cannot be a layer, or one with mounts below it that a user namespace
            # may not take apart: as it is, then. Its files are as well protected as ever.
            whole.append(str(path))
            target.mkdir(parents=True, exist_ok=True)
            _mount(path, target, None, MS_BIND | MS_REC)


def _top_level(root: Path) -> list[Path]:
    found = []
    for path in sorted(Path("/").iterdir()):
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        elif path.is_dir() and path.name not in (*OWN, *NOT_SHOWN):
            found.append(path)
    return found


def _mounted() -> list[Path]:
    """File systems that are mounted deeper than in `/` itself, outer ones first."""
    found = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        path = Path(fields.split()[4].encode().decode("unicode_escape"))
        outside = path.parts[1:2] and path.parts[1] in (*OWN, *NOT_SHOWN)
        if len(path.parts) > 2 and source.split()[0] not in PSEUDO and not outside and path.is_dir():
            found.add(path)
    return sorted(p for p in found if not any(p.is_relative_to(other) for other in FOREIGN))


def _layer(path: Path, target: Path, rootless: bool) -> None:
    """Mount a folder of this host's at `target` so that what is changed there is the machine's alone.

    Raises:
        OSError: the kernel refuses; nothing is mounted.
    """
    name = str(path).lstrip("/")
    if any(character in name for character in ":,\\"):
        raise OSError(f"{path} cannot be named in options of a mount")
    # A flat name for one deeper down, whose folder would lie in the layer above.
    upper = Path("upper") / (name if len(path.parts) == 2 else f".{name.replace('/', '-')}")
    work = Path("work") / upper.name
    upper.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    if not rootless:
        facts = path.stat()
        os.chown(upper, facts.st_uid, facts.st_gid)
        upper.chmod(facts.st_mode & 0o7777)
    target.mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={path},upperdir={upper},workdir={work}" + (",userxattr" if rootless else "")
    _mount("overlay", target, "overlay", 0, options)


def _devices(root: Path) -> None:
    """This host's devices, with shared memory and terminals of the machine's own."""
    _mount("/dev", root / "dev", None, MS_BIND | MS_REC)
    _mount("tmpfs", root / "dev" / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    _mount(
        "devpts", root / "dev" / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
    )
    if not (root / "dev" / "ptmx").is_symlink():
        _mount(root / "dev" / "pts" / "ptmx", root / "dev" / "ptmx", None, MS_BIND)


def _system(root: Path, plan: dict[str, Any]) -> None:
    """/sys, with the machine's own cgroups where it has some."""
    if not plan["cgroups"]:
        _mount("/sys", root / "sys", None, MS_BIND | MS_REC)
        return
    _mount("sysfs", root / "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    groups = root / "sys" / "fs" / "cgroup"
    for kind, name, options in plan["hierarchies"]:
        if not name:  # the unified hierarchy alone
            _mount("cgroup2", groups, kind, flags)
            continue
        if not os.path.ismount(groups):
            _mount("tmpfs", groups, "tmpfs", flags, "mode=755")
        (groups / name).mkdir()
        _mount("cgroup", groups / name, kind, flags, options)


def _mount(source: str | Path, target: str | Path, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
        what=f"mount {source} on {target}",
    )


def _call(name: str, *arguments: Any, what: str = "") -> None:
    """Call the kernel.

    Raises:
        OSError: it refused.
    """
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
