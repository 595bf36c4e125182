"""What has become of the machines that live as long as their cluster: its controller and login machines.

The engine knows which machines it has made, and does not look whether they are there. So `up` looks before it
runs the engine, and names the hosts whose machines are gone; for these the engine reads its resources anew
(`Runner.up`). Two witnesses must say that a machine is gone before another one is made: the cloud's list by
the cluster's tag, more than once, and the engine's question for the machine by its id. What still ends is
waited for, because the disks go to the next machine only when the former one has ended.

A machine that is switched off is started again. One that runs is never replaced, whether it answers or not:
it may be cut off and live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cli.hints import hint
from infra import slurm_releases
from infra.clouds.commands import WaitRequest
from infra.config.advice import own_image, unknown_release
from infra.errors import EXIT_REFUSED, UserError
from node.design.model import ClusterDesign
from node.system import plurals
from operations.clouds import boots, ssh_access
from operations.clouds.cloud import ALIVE, ENDING, Cloud, Machine
from operations.waiting import Sleep, attempts

CONTROLLER = "controller"
END_SECONDS = 600.0
"""How long a machine that is being ended or stopped is waited for. As a rule that takes a minute or two."""
POLL_SECONDS = 5.0
LOOKS = 3
"""How often in a row the list must not have a machine: a cloud's lists lag."""
Say = Callable[[str], None]


class State(StrEnum):
    """What a cloud says of a host's machine."""

    LIVES = "lives"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDING = "ending"
    GONE = "gone"


_STATES = {
    "pending": State.LIVES,
    "running": State.LIVES,
    "stopping": State.STOPPING,
    "stopped": State.STOPPED,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A host as its cloud sees it.

    Attributes:
        machine: Its machine; `None` if the cloud lists none, not even one that has ended.
    """

    host: str
    state: State
    machine: Machine | None

    @property
    def name(self) -> str:
        """The host with the id of its machine, as the subject of a sentence."""
        return f"{self.subject} ({self.machine.id})" if self.machine is not None else self.subject

    @property
    def subject(self) -> str:
        """The host as the subject of a sentence."""
        return f"the {self.host}" if self.host == CONTROLLER else self.host


def bucket(cloud: Cloud) -> str | None:
    """Return the cluster's bucket, which outlives the controller that names it; `None` if there is none.

    Raises:
        UserError: The cloud refuses, or does not answer.
    """
    newest_first = sorted(cloud.machines(host=CONTROLLER), key=lambda machine: machine.launched, reverse=True)
    for machine in newest_first:
        if machine.state in ALIVE and machine.bucket is not None:
            return machine.bucket
    try:
        return cloud.bucket()
    except UserError:
        # Who may not list buckets may read the one that a machine names that has ended a while ago.
        return next((machine.bucket for machine in newest_first if machine.bucket is not None), None)


def look(cloud: Cloud, host: str) -> Seen:
    """Look once for the machine of a host.

    Raises:
        UserError: The cloud refuses, or does not answer.
    """
    oldest_first = sorted(cloud.machines(host=host), key=lambda machine: machine.launched)
    for machine in oldest_first:
        if machine.state in ALIVE:
            return Seen(host, _STATES[machine.state], machine)
    for machine in oldest_first:
        if machine.state in ENDING:
            return Seen(host, State.ENDING, machine)
    return Seen(host, State.GONE, oldest_first[-1] if oldest_first else None)


def settled(cloud: Cloud, host: str, say: Say, stack: str, sleep: Sleep = time.sleep) -> Seen:
    """Look for the machine of a host until it lives, is switched off, or is gone for certain.

    Args:
        say: Is called once if the machine has to be waited for.

    Raises:
        UserError: It has not ended in time, or the cloud refuses or does not answer.
    """
    gone, announced = 0, False
    for left in attempts(END_SECONDS, POLL_SECONDS, sleep):
        seen = look(cloud, host)
        gone = gone + 1 if seen.state is State.GONE else 0
        # A machine that is listed as ended has ended. One that is not listed may be listed again.
        if seen.state in (State.LIVES, State.STOPPED) or (gone and seen.machine is not None) or gone == LOOKS:
            return seen
        if seen.state is not State.GONE and not announced:
            announced = True
            say(f"{seen.name} is {seen.state} according to {cloud.label}: waiting until it has ended")
        if not left:
            break
    raise UserError(
        f"nothing was changed: {seen.name} is still {seen.state} after {END_SECONDS:g} s according to "
        f"{cloud.label}, and its disks go to another machine only when it has ended. Look at it in its "
        f"cloud's console, and run `{hint('up', stack)}` again",
        code="controller.still-ending",
    )


def lost(
    cloud: Cloud,
    up: ClusterDesign,
    wanted: ClusterDesign,
    stack: str,
    say: Say,
    *,
    replace: bool,
    sleep: Sleep = time.sleep,
) -> tuple[str, ...]:
    """Return the hosts whose machines are gone and shall be made again, and say what that means.

    Args:
        up: The design of the cluster that is up.
        wanted: The stack file's design.
        replace: Whether to make another controller although its queue is lost.

    Raises:
        UserError: The queue went with the controller, and `replace` is not set (exit 3); or as for `settled`.
    """
    present = {host.name for host in up.hosts}
    seen_hosts = [
        settled(cloud, host.name, say, stack, sleep) for host in wanted.hosts if host.name in present
    ]
    for seen in seen_hosts:
        if (failure := _failure(cloud, seen, stack)) is not None:
            say(failure)
    gone = [seen for seen in seen_hosts if seen.state is State.GONE]
    for seen in gone:
        # One that never came up has nothing to lose, and no successor to announce.
        if not _has_booted(cloud, seen.host):
            continue
        if seen.host != CONTROLLER:
            say(f"{_end(cloud, seen)}: another one is made, with its address")
        elif keeps(cloud, up):
            say(
                f"{_end(cloud, seen)}: another one is made, with its address and {_store(up)}. Jobs go on "
                "meanwhile, and none starts until it has booted"
            )
        else:
            what = f"{_end(cloud, seen)}, and {_losses(up)}: {_why(cloud, up)}"
            nodes = cloud.machines("pending", "running", role="compute")
            up_now = plurals.count(len(nodes), "node is", "nodes are")
            ended = f"{up_now} up; the next controller does not know the jobs there, and ends them"
            if not replace:
                raise UserError(
                    f"nothing was changed: {what}. {ended}. `{hint('up', stack, '--replace')}` makes another "
                    "controller, with an empty queue. With `controller: {state: kept}` in the stack file a "
                    "controller that is lost has a successor with its queue",
                    EXIT_REFUSED,
                    code="controller.queue-lost",
                )
            say(f"{what}. Another one is made, with an empty queue; {ended}")
    return tuple(seen.host for seen in gone)


def gone(
    cloud: Cloud, hosts: Sequence[str], stack: str, say: Say, sleep: Sleep = time.sleep
) -> tuple[str, ...]:
    """Return those of a cluster's hosts whose machines are gone, for a cluster that is destroyed.

    What still ends is waited for here, too: no disk can be detached from it.

    Raises:
        UserError: As for `settled`.
    """
    seen_hosts = [settled(cloud, host, say, stack, sleep) for host in hosts]
    missing = [seen for seen in seen_hosts if seen.state is State.GONE]
    for seen in missing:
        say(f"{_end(cloud, seen)}: the engine forgets what ended with it, and deletes the rest")
    return tuple(seen.host for seen in missing)


def silence(cloud: Cloud, up: ClusterDesign, stack: str) -> UserError | None:
    """Return what the cloud says of a controller that does not answer; `None` if it finds nothing wrong.

    Args:
        up: The design of the cluster that is up.

    Raises:
        UserError: The cloud refuses, or does not answer.
    """
    for host in dict.fromkeys([CONTROLLER, up.login_hosts()[0].name]):
        if not _has_booted(cloud, host):
            continue
        seen = look(cloud, host)
        if (sentence := _sentence(cloud, up, seen, stack)) is not None:
            return UserError(sentence, code=f"controller.{_CODES[seen.state]}")
    return None


_CODES = {
    State.LIVES: "failing",
    State.STOPPING: "off",
    State.STOPPED: "off",
    State.ENDING: "gone",
    State.GONE: "gone",
}


def _sentence(cloud: Cloud, up: ClusterDesign, seen: Seen, stack: str) -> str | None:
    if seen.state is State.LIVES:
        return _failure(cloud, seen, stack)
    command = f"`{hint('up', stack)}`"
    if seen.state in (State.STOPPED, State.STOPPING):
        queue = ", with its queue" if seen.host == CONTROLLER else ""
        return f"{seen.name} is {seen.state} according to {cloud.label}. {command} starts it again{queue}"
    ends = _end(cloud, seen) if seen.state is State.GONE else f"{seen.name} is ending"
    if seen.host != CONTROLLER:
        return f"{ends}. {command} makes another one, with its address"
    if keeps(cloud, up):
        return f"{ends}; jobs that run go on. {command} makes another one, which takes over with {_store(up)}"
    return (
        f"{ends}, and {_losses(up)}: {_why(cloud, up)}. `{hint('up', stack, '--replace')}` makes another "
        "one, with an empty queue"
    )


def _failure(cloud: Cloud, seen: Seen, stack: str) -> str | None:
    """Return the sentence about a machine that runs, and with which its cloud finds something wrong."""
    machine = seen.machine
    if seen.state is not State.LIVES or machine is None or machine.state != "running":
        return None
    try:
        failure = cloud.failure(machine)
    except UserError:  # who may not ask for that may still bring the cluster up
        return None
    if failure is None:
        return None
    return (
        f"{seen.name} runs, and {cloud.label} says: {failure}. It is not replaced while it runs. If it does "
        f"not come back by itself, `{cloud.stop_line(machine)}` switches it off, and `{hint('up', stack)}` "
        "starts it on another host, with its disks"
    )


def _has_booted(cloud: Cloud, host: str) -> bool:
    """Whether a machine of a host has ever come so far that it has reported its boot."""
    named = bucket(cloud)
    return named is not None and ssh_access.boot_report(cloud, named, host) is not None


def _end(cloud: Cloud, seen: Seen) -> str:
    by = (
        f"{cloud.label} has ended {seen.machine.id}" if seen.machine else f"{cloud.label} has no such machine"
    )
    return f"{seen.subject} is gone ({by})"


def keeps(cloud: Cloud, up: ClusterDesign) -> bool:
    """Whether the queue of a controller whose machine is gone is on a disk that is there."""
    return up.state() is not None or cloud.keeps_root_disk(CONTROLLER)


def _store(up: ClusterDesign) -> str:
    return "the disk that has its queue" if up.state() is not None else "its root disk, which has its queue"


def _losses(up: ClusterDesign) -> str:
    return "its queue and the accounting are lost" if up.slurm.accounting else "its queue is lost"


def _why(cloud: Cloud, up: ClusterDesign) -> str:
    return "they were on its root disk" if up.slurm.accounting else "it was on its root disk"


# --- the release of Slurm on another controller ----------------------------------------------------------


def check_release(cloud: Cloud, up: ClusterDesign, wanted: ClusterDesign, stack: str, say: Say) -> None:
    """Refuse another controller whose image has a Slurm that cannot read what the former one has written.

    The boot refuses it as well, before it changes anything, but only once the former controller is gone. So
    an image of the user's own is asked for the tag that a bake gives it.

    Raises:
        UserError: Exit 3; it has. Or the cloud refuses or does not answer.
    """
    if up.state() is None or (image := own_image(wanted)) is None or cloud.keeps_root_disk(CONTROLLER):
        return
    named = bucket(cloud)
    report = None if named is None else ssh_access.boot_report(cloud, named, CONTROLLER)
    before = slurm_releases.release_in(str(report["facts"].get("slurm", ""))) if report is not None else None
    now = cloud.image_slurm(image)
    if before is None:
        return
    if now is None:
        say(f"{unknown_release(image)}; the queue is of Slurm {before}")
        return
    if not slurm_releases.table().takes_over(before, now):
        raise UserError(
            f"nothing was changed: the image {image} has Slurm {now}, which cannot read the queue of Slurm "
            f"{before}. Give the controller an image with Slurm {before} or one of the next releases "
            f"(controller.image, image) in Pulumi.{stack}.yaml, and run `{hint('up', stack)}` again",
            EXIT_REFUSED,
            code="controller.older-slurm",
        )


# --- machines that are switched off ----------------------------------------------------------------------


def start_stopped(
    cloud: Cloud, design: ClusterDesign, stack: str, say: Say, sleep: Sleep = time.sleep
) -> None:
    """Start the machines of the head that are switched off, and wait until they have booted.

    Raises:
        UserError: One cannot be started or does not boot, or the cloud refuses or does not answer.
    """
    seen = [look(cloud, host.name) for host in design.hosts]
    seen = [
        settled(cloud, head.host, say, stack, sleep) if head.state is State.STOPPING else head
        for head in seen
    ]
    stopped: Sequence[Machine] = [
        head.machine for head in seen if head.state is State.STOPPED and head.machine is not None
    ]
    if not stopped:
        return
    names = ", ".join(machine.name for machine in stopped)
    say(f"{names} was stopped: it is started again, with its queue")
    cloud.start(stopped)
    named = bucket(cloud)
    if named is not None and cloud.read(named, "current.json") is not None:
        boots.Waiter(WaitRequest.of(design, named), cloud, say, sleep=sleep).facts()
