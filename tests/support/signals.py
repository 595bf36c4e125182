"""Signals as a test process and all that it starts must find them, whoever started the suite."""

from __future__ import annotations

import signal

DEFAULT = (
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGCONT,
)
"""Signals that the tests send, or wait for, and that have their default effect at first."""


def reset() -> None:
    """Undo what the caller has ignored or blocked: children inherit both.

    A script that starts the suite in the background has SIGINT ignored, `nohup` SIGHUP, and a program that
    waits for signals may have blocked them. The suite itself survives a terminal that is closed where it was
    started by `nohup`: a handler that does nothing has that effect, and is not inherited by programs.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in DEFAULT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def changed() -> list[str]:
    """Names of signals that this process ignores or blocks, or, of SIGINT, handles in its own way."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    ignored = {number for number in DEFAULT if signal.getsignal(number) is signal.SIG_IGN}
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        ignored.add(signal.SIGINT)
    return sorted(signal.Signals(number).name for number in blocked | ignored)
