"""An interpreter that has imported what a process machine's boot needs, and forks a machine for each request.

An interpreter of its own would take a machine about 0.1 s of CPU time and 10 MiB of memory before its first
step. A forked one shares what is imported with all others, and is the same in all else: the same files run
(`hosts_namespace.py`, `init.py`, the loader), each as the program `__main__`, in a session of its own, with
the command line and the environment that the agent chooses, also in /proc.

The agent runs it as a file, from a copy in the run directory: `fork_server.py BUCKET CODE`, with a socket as
standard input (`localcloud.forked_machines`). A message is a request, `{"argv": [...], "env": {...}}`, with
two descriptors: the machine's log, and its gate, a socket. The machine writes its pid to the gate once it is
as it should be, and runs when the agent has answered. If it gets no answer, because the agent was killed or
has started the machine in another way, it ends.

A machine is nobody's child here but the agent's, as one that the agent starts itself: its parent ends at
once, and the agent is the subreaper.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import socket
import struct
import sys
import time
import types
from pathlib import Path
from typing import Any

REQUEST_BYTES = 1 << 16
STANDARD = ("argparse", "fcntl", "hashlib", "stat", "threading")
"""Modules of the standard library that the first files of a machine import, besides those above."""
BOOT = ("node.bootstrap.main", "node.slurm.addressing")
"""What the boot of a node imports, also late."""
PR_SET_MM, PR_SET_MM_MAP = 35, 14
NO_FILE = 0xFFFFFFFF
PROGRAM = 3
"""The place of the program in the command line `python -I -S PROGRAM [ARGUMENT …]`."""
_SHOWN: list[ctypes.Array[ctypes.c_char]] = []
"""What /proc shows of this process. The kernel reads it there for as long as the process lives."""


def main() -> None:
    bucket, code = map(Path, sys.argv[1:])
    show(sys.orig_argv, dict(os.environ))  # without that there are no machines: it fails here
    files = CompiledFiles()
    imported = import_boot(bucket, code)
    gc.collect()
    gc.freeze()  # a collection in a machine would copy all of these objects
    if (threads := os.listdir("/proc/self/task"))[1:]:  # noqa: PTH208
        raise SystemExit(f"an import has started threads: {threads}")
    channel = socket.socket(fileno=0)
    while select.select([channel], [], []):
        if published(bucket, code) not in (None, imported):
            # The request stays in the socket.
            os.execv(sys.executable, sys.orig_argv)
        message, given, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not message:
            return
        request = json.loads(message)
        files.compile(request["argv"])
        if forked():
            become(request, *given)
            runpy.run_path = files.run
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        for handle in given:
            os.close(handle)


def published(bucket: Path, code: Path) -> tuple[Path, Path] | None:
    """Return the folder of the published code and the file of the settings, by the loader's names.

    `None` until a machine that booted has made them.
    """
    try:
        current = json.loads((bucket / "current.json").read_bytes())
        digests = [str(current[what]["sha256"])[:16] for what in ("code", "settings")]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    folder, settings = code / digests[0], code / f"settings-{digests[1]}.json"
    return (folder, settings) if folder.is_dir() and settings.is_file() else None


def import_boot(bucket: Path, code: Path) -> tuple[Path, Path] | None:
    """Import what a boot needs, and read the settings. Returns their places, if they are there.

    What cannot be imported or read is left to the machine, which then says so itself.
    """
    for name in STANDARD:
        importlib.import_module(name)
    if (places := published(bucket, code)) is not None:
        sys.path.insert(0, str(places[0]))
        for name in BOOT:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        with contextlib.suppress(Exception):
            sys.modules["node.design.published"].read_settings(places[1])
        sys.path.remove(str(places[0]))
    return places


class CompiledFiles:
    """The files that a machine runs, compiled once. One that has changed since is compiled again."""

    def __init__(self) -> None:
        self._codes: dict[str, tuple[tuple[int, ...], types.CodeType]] = {}

    def compile(self, paths: list[str]) -> None:
        """Compile those of the paths that are Python files. A mistake in one is the machine's to tell."""
        for path in paths:
            if path.endswith(".py"):
                with contextlib.suppress(OSError, SyntaxError, ValueError):
                    self._code(path)

    def run(
        self, path_name: str, init_globals: dict[str, Any] | None = None, run_name: str | None = None
    ) -> dict[str, Any]:
        """Run a file as `runpy.run_path` does."""
        name = run_name or "<run_path>"
        module = types.ModuleType(name)
        module.__dict__.update(__file__=path_name, __cached__=None, __builtins__=__builtins__)
        sys.modules[name], sys.argv[0] = module, path_name
        exec(self._code(path_name), module.__dict__)
        return module.__dict__

    def _code(self, path: str) -> types.CodeType:
        facts = os.stat(path)  # noqa: PTH116
        state = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        known, code = self._codes.get(path, ((), None))
        if code is None or known != state:
            code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
            self._codes[path] = state, code
        return code


def forked() -> bool:
    """Fork a grandchild, and return True in it when it is the agent's child."""
    if between := os.fork():
        os.waitpid(between, 0)
        return False
    try:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.0005)
            return True
    except OSError as error:
        print(f"no machine can be forked: {error}", file=sys.stderr, flush=True)
    os._exit(0)


def become(request: dict[str, Any], log: int, gate: int) -> None:
    """Make this process what a machine is that was started with this command line, environment and log.

    Returns once the agent knows it.
    """
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    for handle in (1, 2):
        os.dup2(log, handle)
    # Of all descriptors, only the standard ones and the gate stay.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2 and int(name) != gate:
            with contextlib.suppress(OSError):  # that of the folder itself
                os.close(int(name))
    os.environ.clear()
    os.environ.update(request["env"])
    show(request["argv"], request["env"])
    sys.orig_argv, sys.argv = request["argv"], request["argv"][PROGRAM:]
    answer = b""
    with socket.socket(fileno=gate) as agent, contextlib.suppress(OSError):
        agent.send(str(os.getpid()).encode())
        answer = agent.recv(1)
    if not answer:
        os._exit(1)


def show(argv: list[str], env: dict[str, str]) -> None:
    """Let /proc, and so `ps` and all that looks for machines, show this command line and environment.

    Raises:
        OSError: The kernel cannot do that (it has no CONFIG_CHECKPOINT_RESTORE).
    """
    words = [os.fsencode(word) + b"\0" for word in argv]
    pairs = [os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items()]
    shown = ctypes.create_string_buffer(b"".join([*words, *pairs]))
    _SHOWN.append(shown)
    begin = ctypes.addressof(shown)
    middle = begin + sum(map(len, words))
    end = middle + sum(map(len, pairs))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # Numbers as in proc(5): startcode, endcode, start_data, end_data, start_brk, and startstack.
    code, data, (heap, stack) = (
        [int(fields[number - 3]) for number in numbers] for numbers in ((26, 27), (45, 46), (47, 28))
    )
    # struct prctl_mm_map; neither the auxiliary vector nor the executable changes.
    places = (*code, *data, heap, libc.sbrk(0), stack, begin, middle, middle, end, 0)
    values = ctypes.create_string_buffer(struct.pack("=12QII", *places, 0, NO_FILE))
    size = ctypes.c_ulong(len(values) - 1)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, values, size, ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_MM_MAP): {os.strerror(number)}")


if __name__ == "__main__":
    main()
