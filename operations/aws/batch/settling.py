"""Waits until Batch has changed a queue or an environment: until then it refuses the next change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from infra.errors import UserError
from operations.waiting import wait_until

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
    _until(lambda: all(resource.get("status") not in ("CREATING", "UPDATING") for resource in look()), pause)


def gone(look: Look, pause: Pause) -> None:
    """Wait until it is deleted.

    Raises:
        UserError: It takes longer than `PATIENCE_SECONDS`.
    """
    _until(lambda: all(resource.get("status") in GONE for resource in look()), pause)


def _until(true: Callable[[], bool], pause: Pause) -> None:
    if not wait_until(true, PATIENCE_SECONDS, POLL_SECONDS, pause):
        raise UserError(
            "AWS Batch does not finish a change: run the command again", code="batch.change-unfinished"
        )
