"""The first process of a machine: what systemd is on a real one.

It is the subreaper of its tree, so that daemons which leave their parents (slurmstepd) stay below it and end
with the machine. It runs the bootstrap like any machine does and then keeps the services that it started.
Run as a file, by the agent: `init.py LOADER [ARGUMENT …]`; without a loader the machine runs, and its
bootstrap never starts.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Have orphans from below this process come to it and not to PID 1."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def main() -> None:
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Until there are services to end.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # Whoever started the agent may have had signals blocked (Slurm's programs do); a machine starts clean.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    become_subreaper()
    while len(sys.argv) == 1:
        signal.pause()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
