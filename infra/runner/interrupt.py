"""Ctrl-C during a run: the commands are asked to end, waited for with a limit, and the state stays true."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from infra.runner.events import Message, OnEvent
from infra.runner.lifecycle import Lifecycle

GRACE_SECONDS = 20.0
"""After the first signal: how long commands may take to clean up before they are terminated, then killed."""


@contextlib.contextmanager
def forwarded(life: Lifecycle, on_event: OnEvent) -> Iterator[None]:
    """Forward SIGINT and SIGTERM to the running commands for the body; start nothing new after one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timers: list[threading.Timer] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if life.stopping.is_set():
            life.processes.signal(signal.SIGKILL)
            return
        life.stopping.set()
        # In threads: a handler must not wait for the locks that the interrupted code may hold.
        for delay, forward in (
            (0.0, signal.Signals(number)),
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

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
