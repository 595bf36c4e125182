"""The init process of a process machine. It does what systemd does on a real machine.

It is the subreaper of its process tree: daemons that leave their parents (slurmstepd) stay below it and end
with the machine. It runs the bootstrap, as every machine does, and then supervises the services.

The agent runs it as a file: `init.py LOADER [ARGUMENT …]`. Without a loader the machine runs, but its
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
    """Make this process, not PID 1, the new parent of orphans below it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def main() -> None:
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # This handler holds until there are services to stop.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # The program that started the agent may have blocked signals (Slurm's programs do). A machine must not
    # inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    become_subreaper()
    while len(sys.argv) == 1:
        signal.pause()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
