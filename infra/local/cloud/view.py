"""A process machine's own view of this host: its node's host name, and an /etc/hosts with the whole cluster.

Run as a file, because it runs without the project:
`view.py FOLDER NAME (--python | --exec) PROGRAM [ARGUMENT …]`. FOLDER is the cluster's `cloud` folder; its
file `hosts` has the machines' names and addresses. `--python` runs a Python file in this process, `--exec`
becomes another program.

The view is a mount and a UTS namespace, for an ordinary user within a user namespace that knows this user
only. It ends with the last process in it, and nothing of it is seen outside. Network, files and processes
stay the host's. Where the kernel refuses, the program runs without it, and standard error says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

NEWNS, NEWUTS, NEWUSER = 0x20000, 0x4000000, 0x10000000
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
HOSTS, SWITCH = Path("/etc/hosts"), Path("/etc/nsswitch.conf")
NAME_SERVICE_CACHES = ("/run/nscd/socket", "/var/run/nscd/socket")
WATCH_SECONDS = 5.0
BEGIN, END = "# slurm-stacks: machines of this cluster\n", "# slurm-stacks: end\n"


def main() -> None:
    folder, name, how, *argv = sys.argv[1:]
    try:
        enter(Path(folder), name)
    except OSError as error:
        print(f"{name} does not know other machines by name: {error}", file=sys.stderr, flush=True)
    else:
        if how == "--python":  # any other program does not stay here
            _watch(Path(folder))
    if how == "--python":
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")
    else:
        _become(argv)


def enter(folder: Path, name: str) -> None:
    """Have this process, and all that it starts, see the cluster's names.

    Args:
        folder: has the cluster's `hosts`.
        name: the host name from here on.

    Raises:
        OSError: the kernel refuses, or /etc/hosts is missing.
    """
    hosts, switch = write_hosts(folder), _write_switch(folder)
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call("unshare", NEWNS | NEWUTS)
        # Slave, not private: what the host mounts or unmounts later is so here, too.
        _mount("none", "/", MS_REC | MS_SLAVE)
    else:
        # Mounts that come along into another user's namespace are slaves already.
        _call("unshare", NEWUSER | NEWNS | NEWUTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(hosts, HOSTS, MS_BIND)
    if switch is not None:
        _mount(switch, SWITCH, MS_BIND)
    for cache in {os.path.realpath(path) for path in NAME_SERVICE_CACHES}:
        if os.path.exists(cache):  # noqa: PTH110 - pathlib's word for a file of another user's differs
            # nscd answers from the host's /etc/hosts. What is no socket refuses, and it is not asked.
            _mount("/dev/null", cache, MS_BIND)
    encoded = name.encode()
    _call("sethostname", encoded, len(encoded))


def _watch(folder: Path) -> None:
    """Keep the view for as long as this process lives.

    Who replaces the host's /etc/hosts by another file (an editor, `sed -i`) takes away what is mounted on it,
    in other namespaces too.
    """

    def keep() -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            with contextlib.suppress(OSError):
                if not os.path.samestat(HOSTS.stat(), (folder / "etc-hosts").stat()):
                    _mount(write_hosts(folder), HOSTS, MS_BIND)

    # Signals are the first thread's, whatever it will do with them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=keep, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def write_hosts(folder: Path) -> Path:
    """Bring the file that machines see as /etc/hosts up to date, and return its path.

    It is written in place: a machine has mounted this very file. As nodes are added it grows at its end, so
    that a reader sees the old content or the new.
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
    """The host's /etc/hosts with the cluster's machines at its end.

    What the host's says of a name that a machine has is left out: with `multi on` in host.conf, which is
    Debian's default, a lookup would return both addresses. So is an earlier cluster's part, which is there
    where this runs in the view of a cluster.
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
    """A line of /etc/hosts without these names; empty where it had no other."""
    address, *aliases = line.partition("#")[0].split() or [""]
    if names.isdisjoint(aliases):
        return line
    left = [alias for alias in aliases if alias not in names]
    return " ".join([address, *left]) + "\n" if left else ""


def _write_switch(folder: Path) -> Path | None:
    """An nsswitch.conf that asks /etc/hosts first; None where the host's does."""
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
    """A line of nsswitch.conf. systemd-resolved, where it comes first, says that no other name exists."""
    kind, _, sources = line.partition(":")
    words = sources.partition("#")[0].split()
    if kind.strip() != "hosts" or words[:1] == ["files"]:
        return line
    return " ".join(["hosts:", "files", *(word for word in words if word != "files")]) + "\n"


def _become(argv: list[str]) -> None:
    # Python ignores it, and a pipeline of the program's would inherit that.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError is the empty name's
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
    """Call the kernel.

    Raises:
        OSError: it refused.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
