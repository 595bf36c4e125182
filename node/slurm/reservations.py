"""Reservations, and what they mean for jobs that wait."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from node.slurm.states import JobState

_HELD = ("ReqNodeNotAvail", "Resources", "Priority", "Nodes required for job are DOWN")
"""How the reasons begin that Slurm gives to a job whose nodes are reserved for others."""
_SPARE_SECONDS = 60
"""How long before a reservation a job has to be over to fit before it: it also has to start."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that an administrator keeps for somebody, or for maintenance, from a time on.

    Attributes:
        start: When it begins, in seconds since 1970.
        end: When it ends, in seconds since 1970.
        nodes: Its nodes.
        flags: MAINT, SPEC_NODES, …
        users: For whom it is: users, groups and accounts.
    """

    name: str
    start: float
    end: float
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    users: str = ""

    @property
    def is_maintenance(self) -> bool:
        return "MAINT" in self.flags

    @property
    def purpose(self) -> str:
        return "maintenance" if self.is_maintenance else f"jobs of {self.users}" if self.users else "others"

    def times(self, now: float) -> str:
        """Return a phrase for when it is: `until …`, or `from … until …`."""
        begun = "" if self.start <= now else f"from {clock(self.start)} "
        return f"{begun}until {clock(self.end)}"


def now_kept(reservations: Iterable[Reservation], now: float) -> dict[str, Reservation]:
    """Return node -> the reservation that has it at a time."""
    return {
        node: reservation
        for reservation in reservations
        if reservation.start <= now < reservation.end
        for node in reservation.nodes
    }


def clock(moment: float) -> str:
    """Return a time for people, in UTC."""
    return time.strftime("%F %H:%MZ", time.gmtime(moment))


def advice(
    job: JobState, reservations: Iterable[Reservation], nodes: Collection[str], now: float
) -> str | None:
    """Return what reservations mean for a waiting job: which, until when, and what lets the job start before.

    Args:
        job: Any job.
        reservations: All reservations.
        nodes: The nodes of the job's partitions.
        now: The present time, in seconds since 1970.

    Returns:
        A sentence; `None` if reservations have nothing to do with the job's waiting.
    """
    if not job.is_pending:
        return None
    known = sorted(reservations, key=lambda reservation: (reservation.start, reservation.name))
    change = f"`scontrol update jobid={job.spelling}"
    if job.reservation is not None:
        names = job.reservation.split(",")
        requested = [reservation for reservation in known if reservation.name in names]
        without = f"{change} reservationname=` lets it start outside of it"
        if not requested:
            return f"there is no reservation {job.reservation} any more: {without}"
        if job.reason != "Reservation":
            return None
        lasting = "; ".join(f"{reservation.name} lasts {reservation.times(now)}" for reservation in requested)
        return f"{lasting}; {without}"
    cause = job.explanation or job.reason
    if not cause.startswith(_HELD) or "UnavailableNodes" in cause:
        return None
    limit = float("inf") if job.time_limit is None else job.time_limit
    # A job that ends before a reservation begins may have its nodes.
    wanted = set(job.required_nodes) or set(nodes)
    blocking = [
        reservation
        for reservation in known
        if now < reservation.end and now + limit > reservation.start and wanted & set(reservation.nodes)
    ]
    if not blocking:
        return None
    sentence = "; ".join(
        f"{reservation.name} keeps its nodes for {reservation.purpose} {reservation.times(now)}"
        for reservation in blocking
    )
    first = blocking[0]
    if (minutes := int(first.start - now - _SPARE_SECONDS) // 60) > 0:
        return f"{sentence}; {change} timelimit={minutes}` lets it end before {first.name}, and start now"
    return f"{sentence}; other nodes or fewer, or an end of the reservation, let it start before"
