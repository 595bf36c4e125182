"""The mark of a command that takes partitions out of service: who does it, and what it has closed.

`./cluster` leaves it on the controller before it closes anything, and removes it when it has opened that
again. A command that was killed in between leaves the mark, so that the next one, of whoever and from
wherever, knows what to open, and leaves alone what people have closed.

The mark is in slurmctld's folder: what slurmctld remembers of its partitions and the mark outlive the same
restarts, takeovers and restores. slurmctld, backups and restores leave alone what begins with a dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from node.system import foreign

MARK = ".closed-partitions"
"""The file in slurmctld's folder."""
MOST_BYTES = 1 << 20
"""The most bytes of a mark that are read."""
CLOSED_STATES = ("DOWN", "INACTIVE")
"""The states that commands give partitions: no job starts, or none is accepted either."""


_ENTRY = re.compile(r"([^\s:]+):([A-Z]+):([A-Z]+)")
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def file(state: PurePosixPath) -> PurePosixPath:
    """Return the mark's path in a cluster whose slurmctld has this folder."""
    return state / MARK


@dataclass(frozen=True, slots=True)
class Closed:
    """A partition that a command has taken out of service, or was about to.

    Attributes:
        state: The state that it gets.
        former: The state that it had.
    """

    name: str
    state: str
    former: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A command that takes partitions out of service.

    Attributes:
        command: The word after `./cluster`: `up`, `down`.
        who: The user and the machine where it runs.
        process: That machine and the process, for programs there.
        checkout: The checkout on that machine where it runs, as a digest.
        token: What no other command's mark has.
        at: When the partitions were closed, in seconds since the epoch by the controller's clock.
    """

    command: str
    who: str
    process: str
    checkout: str
    token: str
    at: float
    partitions: tuple[Closed, ...]

    @property
    def names(self) -> list[str]:
        return [closed.name for closed in self.partitions]


def parse(text: str) -> Mark | None:
    """Return the mark in a file's text; `None` if the text is none.

    What has a token is one, for the shell lines that obey it, too. What else it lacks, for example because it
    was cut off, is unknown, and its time is long ago.
    """
    fields: Mapping[str, str] = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    if not fields.get("token"):
        return None
    entries = (_ENTRY.fullmatch(entry) for entry in fields.get("partitions", "").split(" "))
    return Mark(
        fields.get("command", "?"),
        fields.get("who", "?"),
        fields.get("process", "?"),
        fields.get("checkout", "?"),
        fields["token"],
        float(fields["at"]) if _TIME.fullmatch(fields.get("at", "")) else 0.0,
        tuple(Closed(*entry.groups()) for entry in entries if entry is not None),
    )


def read(state: Path) -> Mark | None:
    """Return the mark on this controller; `None` if there is none, or if it cannot be read."""
    try:
        return parse(foreign.read(state / MARK, MOST_BYTES).data.decode(errors="replace"))
    except (OSError, foreign.UnusableError):
        return None


def states(mark: Mark | None) -> dict[str, str]:
    """Return the partitions that a mark names, with the states that its command gives them."""
    entries = () if mark is None else mark.partitions
    return {closed.name: closed.state for closed in entries if closed.state in CLOSED_STATES}


def described(mark: Mark | None, stack: str) -> dict[str, Any] | None:
    """Return the mark in the form of `./cluster status --json`; `None` without one."""
    if mark is None:
        return None
    return {
        "command": mark.command,
        "who": mark.who,
        "process": mark.process,
        "checkout": mark.checkout,
        "at": mark.at,
        "partitions": mark.names,
        "opened_by": f"./cluster up --stack {stack}",
    }
