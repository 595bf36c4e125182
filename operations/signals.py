"""The signals that ask this program to end, and which of them it handles.

Every command imports this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that this process handles, which depends on how it was started.

    SIGHUP stays ignored if the caller ignores it, which is the purpose of `nohup`. So does SIGINT: a script
    ignores it for commands in the background, because Ctrl-C is meant for the command in the foreground.
    SIGTERM is always handled. It is sent to this process alone, and otherwise only SIGKILL could end a
    command that was started with all three ignored.
    """
    return tuple(n for n in SIGNALS if n == signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN)


@contextlib.contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals of `handled_signals` for the body. Outside of the main thread this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in handled_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
