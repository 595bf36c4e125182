"""Takes a cluster's partitions out of service for a change, and puts them back, whoever is killed meanwhile.

Before a command closes anything it leaves a mark on the controller (`node.slurm.closing`). The shell lines
here write, obey and remove it; the caller runs them on the controller as those of `cli.changes.jobs`. They
need no program of ours there, because the cluster may be of another version.

A mark does not tell whether its command still works. On this machine its process does. Elsewhere its age
must: what a command does before the engine works takes a few minutes, and from then on the engine's backend
refuses everybody else (`cli.engine.backend`).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.changes import jobs
from infra import os_errors
from infra.errors import EXIT_REFUSED, UserError
from infra.program.stack import Stack
from node.logs.text import printable
from node.slurm.closing import MOST_BYTES, Mark, parse
from node.system import plurals
from node.system.processes import ProcessId, boot_id

WORKING_SECONDS = 600.0
"""For how long another machine's command is taken to work after it has closed partitions."""
CLOSABLE = {"DOWN": ("UP", "DRAIN"), "INACTIVE": ("UP", "DRAIN", "DOWN")}
"""The state that partitions get -> the states in which they start, or accept, jobs that they must not."""
_ANSWERS = "scontrol ping | grep -q ' UP' || { echo 'slurmctld does not answer' >&2; exit 1; }"
_HELD, _OPENED, _MARK = "held=", "opened=", "mark:"
_THERE = "there=1"
_PROCESS = re.compile(r"([^ ]+) ([0-9]{1,20}) ([0-9]{1,20})")
_TAKEN = "taken=another"
"""What `hold_line` prints if another command's mark has come since somebody looked."""


class BusyError(UserError):
    """Another command works on the cluster, so nothing may be touched."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_REFUSED, code="cluster.busy")


@dataclass(frozen=True, slots=True)
class Holder:
    """This command, as its mark names it. The attributes are those of a `Mark`."""

    command: str
    who: str
    process: str
    checkout: str
    token: str

    @classmethod
    def of(cls, stack: Stack | None, command: str) -> Holder:
        """Return the present process as the holder.

        Args:
            stack: The stack whose lock it may have; `None` if it has none.
        """
        host = platform.node()
        who = printable(f"{os_errors.user_name(os.getuid())}@{host}")
        place = f"{host}\0{'' if stack is None else stack.project.resolve()}"
        checkout = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
        return cls(command, who, _own_process(), checkout, secrets.token_hex(8))

    def lines(self) -> list[str]:
        return [f"{key}={getattr(self, key)}" for key in self.__slots__]


def _machine() -> str:
    """Return what tells this machine and its list of processes from others; empty if nothing does."""
    try:
        view = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot_id()}/{view}"


def _own_process() -> str:
    process = ProcessId.of(os.getpid()) if _machine() else None
    return "" if process is None else f"{_machine()} {process.pid} {process.started}"


@dataclass(frozen=True, slots=True)
class Place:
    """The files on the controller that the lines read and write.

    Attributes:
        mark: The mark.
        moment: The elastic daemon's list of the partitions that it has closed for a moment
            (`node.elastic.reconfiguration`). It opens them again, unless a mark names them.
        prefix: The command prefix that gives the rights of Slurm's administrator, with a trailing space.
    """

    mark: str
    moment: str
    prefix: str = ""


def look_line(place: Place) -> str:
    """Return a shell line that prints the mark, if there is one, with the controller's time."""
    mark = shlex.quote(place.mark)
    return (
        f"{place.prefix}head -c {MOST_BYTES} {mark} 2>/dev/null | sed 's/^/{_MARK}/'; echo; "
        f'{place.prefix}test -e {mark} && echo {_MARK}{_THERE}; echo "{_MARK}now=$(date +%s)"'
    )


_EVERY = "s/^PartitionName=\\([^ :]*\\) [A-Za-z]*=.*/\\1/p"
"""Sed's command for the names of partitions. One with a blank or a colon is left out: those end a name."""


def hold_line(place: Place, holder: Holder, state: str, spared: Iterable[str] = (), former: str = "") -> str:
    """Return a shell line that leaves the mark, takes partitions out of service, and then lists the jobs.

    The cluster says which partitions it has, because people make more of them with scontrol. The mark names
    what is closed only next, so that no moment is left out.

    Args:
        spared: The partitions that stay in service.
        state: DOWN (no job starts) or INACTIVE (nor is one accepted).
        former: The token of an interrupted command's mark, which is taken over: what that command has closed
            is this one's to open. With any other mark the line does nothing.
    """
    prefix, mark = place.prefix, shlex.quote(place.mark)
    draft = shlex.quote(f"{place.mark}.{holder.token}")
    update = f"{prefix}scontrol update PartitionName=$name"
    entries = " ".join(shlex.quote(line) for line in holder.lines())
    closable = "|".join(CLOSABLE[state])
    spare = shlex.quote(f" {' '.join(sorted(spared))} ")
    return (
        f"set -f; {_ANSWERS}; {_STATE}; every=$({jobs.PARTITIONS_LISTING}) || exit 1; "
        f"seen=$({prefix}sed -n 's/^token=//p' {mark} 2>/dev/null | tail -n 1); "
        f'[ -z "$seen" ] || [ "$seen" = {shlex.quote(former)} ] || {{ echo {_TAKEN}; exit; }}; '
        # A mark is linked to its place when it is whole: one without a token is damaged, and nobody's.
        f'[ -n "$seen" ] || ! {prefix}test -e {mark} || {prefix}grep -q "^token=." {mark} || '
        f"{prefix}rm -f {mark}; "
        f"was=$({_entries(place)}); mine=; taken=; "
        # What an interrupted command has closed, and nobody has opened or closed in another way since.
        f"for entry in $was; do {_ENTRY}; "
        '[ "$(state)" != "${rest%:*}" ] || mine="$mine $entry"; done; '
        f"for name in $(printf '%s\\n' \"$every\" | sed -n '{_EVERY}'); do "
        f'case {spare} in *" $name "*) continue;; esac; '
        'case "$mine " in *" $name:"*) continue;; esac; now=$(state); '
        # The daemon writes its list before it closes: whoever has seen its DOWN sees the list, too.
        f'case $(cat {shlex.quote(place.moment)} 2>/dev/null) in *"\\"$name\\""*) now=UP;; esac; '
        f'case $now in {closable}) mine="$mine $name:{state}:$now"; taken="$taken $name:$now";; esac; done; '
        f'[ -z "$mine" ] || {{ printf \'%s\\n\' {entries} "at=$(date +%s)" "partitions=$mine" | '
        # After a power failure the mark must not be there empty, with partitions that Slurm has closed.
        f"{prefix}install -m 644 /dev/stdin {draft} && {prefix}sync {draft}; }} || exit 1; "
        # Of two commands that have found no mark one gets its link, and the other nothing.
        # The other may find nothing to close any more.
        f'if [ -z "$mine" ]; then if [ -n "$seen" ]; then {prefix}rm -f {mark}; '
        f"elif {prefix}test -e {mark}; then echo {_TAKEN}; exit 0; fi; "
        f'elif [ -n "$seen" ]; then {prefix}mv -f {draft} {mark} || exit 1; '
        f"else {prefix}ln {draft} {mark}; made=$?; {prefix}rm -f {draft}; "
        f"[ $made = 0 ] || {{ {prefix}test -e {mark} || exit 1; echo {_TAKEN}; exit 0; }}; fi; "
        # All or none, because the output of a line that fails is not read.
        "for entry in $taken; do name=${entry%:*}; "
        f"{update} State={state} || {{ for entry in $taken; do name=${{entry%:*}}; "
        f"{update} State=${{entry#*:}}; done; "
        f'[ -n "$was" ] || {prefix}rm -f {mark}; exit 1; }}; done; '
        f"for entry in $mine; do echo {_HELD}${{entry%:*:*}}; done; {jobs.LISTING}"
    )


_STATE = (
    'state() { scontrol --all --oneliner show partition "$name" 2>/dev/null | '
    "sed -n 's/.* State=\\([A-Z]*\\).*/\\1/p'; }"
)
"""A shell function that prints the state of the partition `$name`; nothing if there is none.

Without --all Slurm hides those that are hidden, or for certain groups, from whoever is not root.
"""


def _entries(place: Place) -> str:
    """Return a shell pipe that prints the mark's entries. sh would take hours for a long word."""
    return (
        f"{place.prefix}head -c {MOST_BYTES} {shlex.quote(place.mark)} 2>/dev/null | "
        "sed -n 's/^partitions=//p' | tr ' ' '\\n' | "
        "LC_ALL=C grep -aE '^[^:]{1,255}:[A-Z]{1,20}:[A-Z]{1,20}$'"
    )


_ENTRY = 'name=${entry%:*:*}; rest=${entry#"$name":}'
"""Splits `$entry` of a mark."""


def release_line(place: Place, token: str) -> str:
    """Return a shell line that opens what the mark names, prints what it has opened, and removes the mark.

    A partition that is gone, or that somebody has given another state since, is left alone. The line fails
    if Slurm does not answer, and does nothing if the mark is another command's by now.
    """
    prefix, mark = place.prefix, shlex.quote(place.mark)
    return (
        f"set -f; {_ANSWERS}; {_STATE}; "
        f"{prefix}grep -qx token={shlex.quote(token)} {mark} 2>/dev/null || exit 0; "
        f"for entry in $({_entries(place)}); do {_ENTRY}; "
        '[ "$(state)" = "${rest%:*}" ] || continue; '
        f"{prefix}scontrol update PartitionName=$name State=${{rest#*:}} || exit 1; "
        f"echo {_OPENED}$name; done; {prefix}rm -f {mark}"
    )


def _after(word: str, text: str) -> list[str]:
    return [line.removeprefix(word).rstrip("\r") for line in text.split("\n") if line.startswith(word)]


def held(text: str) -> list[str]:
    """Return the partitions that `hold_line` has out of service, not those that people had so before.

    Raises:
        BusyError: It has closed none, because another command has come first.
    """
    if _TAKEN in jobs.before_listing(text).split("\n"):
        raise BusyError("another command has just closed partitions of this cluster: wait for it to end")
    return _after(_HELD, jobs.before_listing(text))


def opened(text: str) -> list[str]:
    """Return the partitions that `release_line` has opened."""
    return _after(_OPENED, text)


@dataclass(frozen=True, slots=True)
class Found:
    """A mark that is on the cluster.

    Attributes:
        age: For how long it has been there, in seconds of the controller's clock.
    """

    mark: Mark
    age: float


def found(text: str) -> Found | None:
    """Return the mark that `look_line` has printed; `None` if there is none."""
    lines = _after(_MARK, jobs.before_listing(text))
    mark = parse("\n".join(lines))
    try:
        (now,) = [float(line.removeprefix("now=")) for line in lines if line.startswith("now=")]
    except ValueError:
        now = time.time()
    # A mark from the future is as wrong as an old one: a clock was set back since.
    return None if mark is None else Found(mark, abs(now - mark.at))


def is_damaged(text: str) -> bool:
    """Return whether `look_line` has seen a file in the mark's place that is none."""
    lines = _after(_MARK, jobs.before_listing(text))
    return _THERE in lines and parse("\n".join(lines)) is None


def works(mark: Mark, age: float, own: Holder, *, locked: bool) -> bool:
    """Return whether the command of a mark probably still works.

    Args:
        own: This command.
        locked: Whether this command holds the lock of its checkout's stack, so that no other one there works.
    """
    if mark.token == own.token:
        return False
    process = _PROCESS.fullmatch(mark.process)
    if process is not None and process[1] == _machine():
        return ProcessId(int(process[2]), int(process[3])).alive()
    if locked and mark.checkout == own.checkout:
        return False
    return age < WORKING_SECONDS


def interrupted(mark: Mark) -> str:
    """Return the words for the partitions that an interrupted command has left out of service."""
    names, who = ", ".join(map(printable, mark.names)), printable(mark.who)
    return f"`{printable(mark.command)}` of {who} was interrupted when it had closed partitions ({names})"


def refuse_if_working(there: Found | None, own: Holder, stack: str) -> None:
    """Refuse to touch a cluster on which another command is working.

    Raises:
        BusyError: The message names who works there, and since when.
    """
    if there is None or not works(there.mark, there.age, own, locked=True):
        return
    mark, left = there.mark, max(1, round((WORKING_SECONDS - there.age) / 60))
    names, who = ", ".join(map(printable, mark.names)), printable(mark.who)
    raise BusyError(
        f"`{printable(mark.command)}` of {who} is working on the cluster of stack {stack}: it has closed "
        f"partitions ({names}) {there.age:.0f} s ago. Wait for it to end. If it was interrupted, run it "
        f"again there; or run this command again in {plurals.count(left, 'minute')}."
    )


def with_life(closed: Mapping[str, Any], stack: Stack) -> dict[str, Any]:
    """Return what `status` says of a mark, and whether its command works: by its process, or by its age."""
    mark = Mark(
        str(closed["command"]), str(closed["who"]), str(closed["process"]), str(closed["checkout"]), "",
        float(closed["at"]), (),
    )  # fmt: skip
    age = abs(time.time() - mark.at)
    return {**closed, "works": works(mark, age, Holder.of(stack, "status"), locked=False)}
