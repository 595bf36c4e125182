"""How commands handle SIGINT (Ctrl-C), SIGTERM, and SIGHUP (a closed terminal)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from cli.console.events import Message, OnEvent
from operations.signals import SIGNALS, handled, handled_signals

if TYPE_CHECKING:
    import asyncio

    from cli.engine.verbs import Verbs

GRACE_SECONDS = 20.0
"""Seconds that commands have to clean up after the first signal, before SIGTERM and then SIGKILL."""
WAKE_BYTES = 4096
REPEAT_SECONDS = 0.02
"""After how many seconds a signal comes again whose exception Python has ignored."""


@contextlib.contextmanager
def forwarded(verbs: Verbs, on_event: OnEvent) -> Iterator[None]:
    """Forward signals to the running commands for the body, and start no further command after one.

    The run waits for the commands, up to a limit, so that the state stays correct.
    """
    timers: list[threading.Timer] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if verbs.stopping.is_set():
            verbs.processes.signal(signal.SIGKILL)
            return
        verbs.stopping.set()
        # In threads, because a handler must not wait for locks that the interrupted code may hold.
        for delay, forward in (
            # Commands have no terminal, so SIGHUP is sent to them as SIGTERM.
            (0.0, signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)),
            (GRACE_SECONDS, signal.SIGTERM),
            (GRACE_SECONDS + 5, signal.SIGKILL),
        ):
            timer = threading.Timer(delay, verbs.processes.signal, [forward])
            timer.daemon = True
            timer.start()
            timers.append(timer)
        text = "interrupted: waiting for the running commands to end (again: kill them)"
        announce = threading.Thread(target=on_event, args=[Message(text, "warning")], daemon=True)
        announce.start()

    try:
        with handled(handle):
            yield
    finally:
        for timer in timers:
            timer.cancel()


@contextlib.contextmanager
def waking_loop(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let every signal wake the event loop for the body, so that its handler runs at once.

    Python runs signal handlers only in the main thread, while it executes Python code. A signal that arrives
    just before the loop begins to wait, or that the kernel delivers to another thread, does not end the wait.
    Its handler would run at the loop's next event, which may be minutes later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Imported here, because every command imports this module and few run a program.
    import socket

    receive, send = socket.socketpair()
    with receive, send:
        receive.setblocking(False)
        send.setblocking(False)
        loop.add_reader(receive, receive.recv, WAKE_BYTES)
        before = signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(receive)


def background_hint() -> str | None:
    """Return how to interrupt this process if Ctrl-C does not reach it; `None` if Ctrl-C works."""
    if signal.SIGINT in handled_signals():
        return None
    return (
        f"started in the background: Ctrl-C does not reach this command, `kill {os.getpid()}` interrupts it"
    )


@contextlib.contextmanager
def as_keyboard_interrupt() -> Iterator[None]:
    """Turn every handled signal into a KeyboardInterrupt for the body.

    Signals that the caller had blocked are unblocked.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.default_int_handler(number, frame)
        # Use the present handler of Ctrl-C. asyncio's cancels the tasks; an exception raised inside a task
        # could be lost, and the others would wait for ever.
        signal.raise_signal(signal.SIGINT)

    with handled(handle), _repeated_if_ignored():
        # asyncio replaces only Python's own handler of SIGINT.
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@contextlib.contextmanager
def _repeated_if_ignored() -> Iterator[None]:
    """Send Ctrl-C again, in the body, when it came in code whose exceptions Python ignores.

    Finalizers and the callbacks of weak references are such code. The import system and pydantic have many.
    """
    usual, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            usual(ignored)
            return
        # Later, because this code is part of what is ignored.
        timer = threading.Timer(REPEAT_SECONDS, os.kill, [os.getpid(), signal.SIGINT])
        timer.daemon = True
        timers.append(timer)
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual
        for timer in timers:
            timer.cancel()
