"""Faults of a fake cloud's API: answers that replace the normal ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar


@dataclass
class Fault:
    """An answer that some calls get instead of their own.

    Attributes:
        call: its name, as the fake records it: `RunInstances`, `instances.bulk_insert`.
        code: the cloud's error code.
        status: the HTTP status.
        skip: how many calls before it are answered normally.
        times: how many calls get this answer.
        done: the work is done all the same, and only its answer is lost.
        hang: seconds until the answer; for a client that does not wait so long there is none.
    """

    call: str
    code: str
    status: int = 400
    message: str = "the cloud's own words"
    skip: int = 0
    times: int = 1_000_000
    done: bool = False
    hang: float = 0.0


AnyFault = TypeVar("AnyFault", bound=Fault)


def due(faults: Iterable[AnyFault], call: str) -> AnyFault | None:
    """Return the fault that this call gets, or `None` for its normal answer. The fake's lock must be held."""
    for fault in faults:
        if fault.call != call or not fault.times:
            continue
        if fault.skip:
            fault.skip -= 1
            continue
        fault.times -= 1
        return fault
    return None
