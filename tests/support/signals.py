"""The signal settings that a test process and its children need, however the suite was started."""

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
"""Signals that the tests send or wait for, and that must have their default effect at first."""


def reset() -> None:
    """Stop ignoring and blocking signals: children would inherit both.

    A script that starts the suite in the background makes it ignore SIGINT, `nohup` makes it ignore SIGHUP,
    and a program that waits for signals may have blocked them. With `nohup` the suite itself still survives
    the end of its terminal: a handler that does nothing has that effect, and programs do not inherit it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in DEFAULT:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def changed() -> list[str]:
    """Return the signals that this process ignores or blocks, and SIGINT if its handler was replaced."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    ignored = {number for number in DEFAULT if signal.getsignal(number) is signal.SIG_IGN}
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        ignored.add(signal.SIGINT)
    return sorted(signal.Signals(number).name for number in blocked | ignored)
