"""Waits until Batch has changed a queue or an environment: until then it refuses the next change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from infra.errors import UserError

POLL_SECONDS = 5.0
PATIENCE_SECONDS = 900.0
GONE = ("DELETED", "INACTIVE")
Look = Callable[[], Sequence[dict[str, Any]]]
"""Describes the queue or the environment anew."""
Pause = Callable[[float], None]


def settled(look: Look, pause: Pause) -> None:
    """Wait until no change goes on.

    Raises:
        UserError: It takes longer than `PATIENCE_SECONDS`.
    """
    _until(lambda: all(one.get("status") not in ("CREATING", "UPDATING") for one in look()), pause)


def gone(look: Look, pause: Pause) -> None:
    """Wait until it is deleted.

    Raises:
        UserError: It takes longer than `PATIENCE_SECONDS`.
    """
    _until(lambda: all(one.get("status") in GONE for one in look()), pause)


def _until(true: Callable[[], bool], pause: Pause) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise UserError("AWS Batch does not finish a change: run the command again")
        pause(POLL_SECONDS)
