"""Ctrl-C, a request to end, a terminal that is closed: what they mean to a run, and to everything else."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from infra.runner.events import Message, OnEvent

if TYPE_CHECKING:
    import asyncio

    from infra.runner.lifecycle import Lifecycle

GRACE_SECONDS = 20.0
"""After the first signal: how long commands may take to clean up before they are terminated, then killed."""
AGAIN_SECONDS = 0.05
WAKE_BYTES = 4096
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def forwarded(life: Lifecycle, on_event: OnEvent) -> Iterator[None]:
    """Forward signals to the running commands for the body; start nothing new after one.

    The commands are waited for with a limit, so that the state stays true.
    """
    timers: list[threading.Timer] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if life.stopping.is_set():
            life.processes.signal(signal.SIGKILL)
            return
        life.stopping.set()
        # In threads: a handler must not wait for the locks that the interrupted code may hold.
        for delay, forward in (
            # Commands have no terminal that could have been closed.
            (0.0, signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)),
            (GRACE_SECONDS, signal.SIGTERM),
            (GRACE_SECONDS + 5, signal.SIGKILL),
        ):
            timer = threading.Timer(delay, life.processes.signal, [forward])
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
def waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have every signal wake the event loop for the body, so that its handler runs at once.

    Python runs handlers in the main thread alone, when that executes Python. A signal that arrives a moment
    before the loop begins to wait, or that the kernel hands to another thread, ends no wait. Its handler
    would run when the loop has something else to do, which may be minutes later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Here and not above: every command imports this module, and few run a program.
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


def heard() -> tuple[signal.Signals, ...]:
    """The signals that this process acts on, by how its caller has started it.

    SIGHUP that is ignored stays ignored: that is what `nohup` is for. So does SIGINT: a script has it ignored
    for what runs in its background, because Ctrl-C in the terminal is meant for what runs in the foreground.
    SIGTERM is always heard. It is sent to this process alone, and without it nothing but SIGKILL would end a
    command that has been started where all three are ignored.
    """
    return tuple(n for n in SIGNALS if n == signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN)


def unheard() -> str | None:
    """What Ctrl-C does not do to this process, and what does it instead; None where Ctrl-C works."""
    if signal.SIGINT in heard():
        return None
    return (
        f"started in the background: Ctrl-C does not reach this command, `kill {os.getpid()}` interrupts it"
    )


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """For the body every one of the signals is what Ctrl-C is: a KeyboardInterrupt.

    Signals that the caller has left blocked arrive. The end of a child is told where the caller has ignored
    SIGCHLD, too: without that every command would seem to have succeeded.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*SIGNALS, signal.SIGCHLD})
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    ):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.default_int_handler(number, frame)
        # By way of whoever handles Ctrl-C now: asyncio cancels its tasks, for an exception in the midst of
        # them may be lost, and they wait for ever.
        signal.raise_signal(signal.SIGINT)

    with handled(handle), _not_lost():
        # asyncio takes Ctrl-C over only from Python's own handler.
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@contextlib.contextmanager
def _not_lost() -> Iterator[None]:
    """Have a KeyboardInterrupt come once more, a moment later, where no exception could pass.

    In a callback of a compiled library, or while an object is cleared away, Python would print it and go on.
    """
    before = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            before(lost)
            return
        later = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
        later.daemon = True
        later.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the signals handled for the body; outside of the main thread, where nobody can, it does nothing.

    Left alone are those that `heard` leaves out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
