"""A process machine's own host name, an /etc/hosts with all machines of the cluster, its Slurm and its /tmp.

It runs as a file, without the project, from a copy in the run directory:
`hosts_namespace.py FOLDER NAME [--tmp=TMP] (--python | --exec) PROGRAM [ARGUMENT …]`. FOLDER is the cluster's
`cloud` folder, whose file `hosts` has the machines' names and addresses. `--python` runs a Python file in
this process; `--exec` replaces this process by another program.

In /etc/slurm, where Slurm's programs look by default, they find the cluster's configuration. So programs that
remove SLURM_CONF from the environment keep the cluster.

With `--tmp` the folder TMP is /tmp. What all machines must see there, above all the run directory, is mounted
in it at its own path; FOLDER's file `shared_in_tmp.json` names the rest.

The program runs in a mount namespace and a UTS namespace. For an ordinary user they are inside a user
namespace that maps only this user. They end with their last process and change nothing outside. Network,
files and processes are the host's. If the kernel refuses the namespaces, the program runs without them, and
standard error says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import runpy
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

NEWNS, NEWUTS, NEWUSER = 0x20000, 0x4000000, 0x10000000
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
HOSTS, SWITCH = Path("/etc/hosts"), Path("/etc/nsswitch.conf")
SLURM = Path("/etc/slurm")
"""The folder of slurm.conf in the distributions' packages."""
TMP = Path("/tmp")
SHARED_IN_TMP = "shared_in_tmp.json"
"""The file with the paths below /tmp that all machines see, as a list."""
LOCALHOST = "localhost"
TMP_OPTION = "--tmp="
WATCH_SECONDS = 5.0
BEGIN, END = "# slurm-stacks: machines of this cluster\n", "# slurm-stacks: end\n"


def main() -> None:
    folder, name, *argv = sys.argv[1:]
    tmp = Path(argv.pop(0).removeprefix(TMP_OPTION)) if argv[0].startswith(TMP_OPTION) else None
    how, *argv = argv
    try:
        enter(Path(folder), name, tmp)
    except OSError as error:
        print(f"{name} lacks a part of its namespace: {error}", file=sys.stderr, flush=True)
    else:
        if how == "--python":  # with `--exec` this process does not stay
            _watch(Path(folder))
    if how == "--python":
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
    else:
        _become(argv)


def enter(folder: Path, name: str, tmp: Path | None = None) -> None:
    """Let this process and its children resolve the names of the cluster's machines.

    Args:
        folder: Holds the cluster's file `hosts`.
        name: The new host name.
        tmp: The folder that becomes /tmp; `None` leaves the host's.

    Raises:
        OSError: The kernel refuses, or /etc/hosts is missing.
    """
    hosts, switch = write_hosts(folder), _write_switch(folder)
    user, group = os.geteuid(), os.getegid()
    # Nodes know the group in which the cluster was brought up, and no other. They could not run the jobs of a
    # shell in another group (`newgrp`). Where root's group owns what users make, the folder does not say.
    known = folder.stat().st_gid or group
    if user == 0:
        _call("unshare", NEWNS | NEWUTS)
        # Slave, not private: later mounts and unmounts of the host take effect here, too.
        _mount("none", "/", MS_REC | MS_SLAVE)
    else:
        # Mounts in a new user namespace are slaves already.
        _call("unshare", NEWUSER | NEWNS | NEWUTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{known} {group} 1")
    _mount(hosts, HOSTS, MS_BIND)
    if switch is not None:
        _mount(switch, SWITCH, MS_BIND)
    # A namespace without root's rights cannot make the folder where the host has none.
    if SLURM.is_dir() and slurm_folder(folder).is_dir():
        _mount(slurm_folder(folder), SLURM, MS_BIND)
    if tmp is not None:
        _replace_tmp(tmp, [str(folder.parent), *json.loads((folder / SHARED_IN_TMP).read_text())])
        # The machine's /tmp must not be found in itself, nor those of others.
        empty = folder / "empty"
        empty.mkdir(exist_ok=True)
        _mount(empty, tmp.parent, MS_BIND)
    encoded = name.encode()
    _call("sethostname", encoded, len(encoded))


def _replace_tmp(tmp: Path, shared: Iterable[str]) -> None:
    """Mount a folder on /tmp, and in it what all machines see at their paths.

    Args:
        tmp: The folder.
        shared: Paths below /tmp. One that does not exist, or that this user may not reach, is left out.
    """
    handles: dict[str, int] = {}
    for path in outermost(shared):
        # An open folder is reached also when it is hidden.
        with contextlib.suppress(OSError):
            handles[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    _mount(tmp, TMP, MS_BIND)
    # All users may enter the folders above, as those of the host.
    mask = os.umask(0o022)
    for path, handle in handles.items():
        place = Path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            place.mkdir(exist_ok=True)
        else:
            place.touch()
        # With all mounts below it: an ordinary user may not leave out what they hide.
        _mount(f"/proc/self/fd/{handle}", place, MS_BIND | MS_REC)
        os.close(handle)
    os.umask(mask)


def outermost(paths: Iterable[str]) -> list[str]:
    """Return those of the paths that are below /tmp and in no other one of them."""
    below = {os.path.normpath(path) for path in paths if Path(os.path.normpath(path)) != TMP}
    below = {path for path in below if Path(path).is_relative_to(TMP)}
    return sorted(path for path in below if below.isdisjoint(map(str, Path(path).parents)))


def slurm_folder(folder: Path) -> Path:
    """Return the folder of the cluster's slurm.conf."""
    return folder.parent / "etc"


def _watch(folder: Path) -> None:
    """Keep /etc/hosts and /etc/slurm mounted for as long as this process lives.

    A program that replaces the host's /etc/hosts by a new file (an editor, `sed -i`) removes the mount on it,
    in other namespaces too. So does the removal of /etc/slurm.
    """

    def keep() -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with contextlib.suppress(OSError):
                if not os.path.samestat(HOSTS.stat(), (folder / "etc-hosts").stat()):
                    _mount(write_hosts(folder), HOSTS, MS_BIND)
            with contextlib.suppress(OSError):
                if not os.path.samestat(SLURM.stat(), slurm_folder(folder).stat()):
                    _mount(slurm_folder(folder), SLURM, MS_BIND)

    # The new thread must not receive signals: the first thread handles them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=keep, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def write_hosts(folder: Path) -> Path:
    """Update the file that machines see as /etc/hosts, and return its path.

    The file is written in place, because machines have mounted it. New nodes are added at its end, so a
    reader sees either the old or the new content.
    """
    path = folder / "etc-hosts"
    wanted = merged(HOSTS.read_text(errors="surrogateescape"), (folder / "hosts").read_text())
    content = wanted.encode(errors="surrogateescape")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if path.read_bytes() != content:
            os.fchmod(handle, 0o644)
            written = 0
            while written < len(content):
                written += os.pwrite(handle, content[written:], written)
            os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
    return path


def merged(host: str, ours: str) -> str:
    """Return the host's /etc/hosts with the cluster's machines added at its end.

    The host's entries for names of machines are left out: with `multi on` in host.conf, Debian's default, a
    lookup would return both addresses. So is another cluster's part, which is there if this runs in the
    namespace of another cluster, and localhost's second address, `::1`: the controller's daemons listen on
    the first address of that name, and everybody looks for them at 127.0.0.1.
    """
    names = {name for line in ours.splitlines() for name in line.split()[1:]}
    lines: list[str] = []
    inside = False
    for line in host.splitlines(keepends=True):
        if line in (BEGIN, END):
            inside = line == BEGIN
        elif not inside and (kept := _without(line, names)):
            lines.append(kept if kept.endswith("\n") else f"{kept}\n")
    return "".join([*lines, BEGIN, ours, END])


def _without(line: str, names: set[str]) -> str:
    """Return a line of /etc/hosts without these names; an empty string if it had no others."""
    address, *aliases = line.partition("#")[0].split() or [""]
    dropped = names | {LOCALHOST} if ":" in address else names
    if dropped.isdisjoint(aliases):
        return line
    left = [alias for alias in aliases if alias not in dropped]
    return " ".join([address, *left]) + "\n" if left else ""


def _write_switch(folder: Path) -> Path | None:
    """Write an nsswitch.conf that asks /etc/hosts first; `None` if the host's already does."""
    try:
        lines = SWITCH.read_text(errors="surrogateescape").splitlines(keepends=True)
    except OSError:
        return None
    text = "".join(map(_files_first, lines))
    if text == "".join(lines):
        return None
    path = folder / "nsswitch.conf"
    if not path.exists() or path.read_text(errors="surrogateescape") != text:
        draft = folder / f".nsswitch.{os.getpid()}"
        draft.write_text(text, errors="surrogateescape")
        draft.chmod(0o644)
        draft.replace(path)
    return path


def _files_first(line: str) -> str:
    """Return a line of nsswitch.conf with `files` first: systemd-resolved denies names it does not know."""
    kind, _, sources = line.partition(":")
    words = sources.partition("#")[0].split()
    if kind.strip() != "hosts" or words[:1] == ["files"]:
        return line
    return " ".join(["hosts:", "files", *(word for word in words if word != "files")]) + "\n"


def _become(argv: list[str]) -> None:
    # Python ignores SIGPIPE, and the program would inherit that.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # an empty name raises ValueError
        print(f"{argv[0]}: no such command on the login machine", file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(f"{argv[0]}: cannot be executed: {error.strerror}", file=sys.stderr)
        sys.exit(126)


def _mount(source: str | Path, target: str | Path, flags: int) -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        None,
        ctypes.c_ulong(flags),
        None,
        what=f"mount {source} on {target}",
    )


def _call(name: str, *arguments: object, what: str = "") -> None:
    """Make a system call.

    Raises:
        OSError: The call failed.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
