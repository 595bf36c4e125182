"""The one client of Slurm's commands: what is asked of slurmctld, and what it answers, as types.

Everything goes through `scontrol`, `squeue` and `scancel`: their text is stable over releases, where their
JSON is not (22.05, 23.11 and 24.11 each have another schema).
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import PurePath
from typing import Protocol

from infra.node.slurm.hostlist import expand, fold
from infra.node.slurm.states import SQUEUE_FORMAT, JobState, NodeState, parse_jobs, parse_nodes

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
LAST_WEIGHT = 1000
"""Above any of slurm.conf's: Slurm takes the lightest nodes first."""

BATCH = 1500
"""Names a command: even if none folds, the argument stays below the kernel's 128 KiB."""

MESSAGE_LENGTH = 80
"""Characters of a command in an error's message."""

# What the clients say when nobody answers at slurmctld's address, over the releases.
_DOWN = (
    "Unable to contact slurm controller",
    "Slurm controller not responding",
    "Zero Bytes were transmitted or received",
    "Connection refused",
    "Connection reset by peer",
    "Socket timed out on send/recv operation",
    "Slurm backup controller in standby mode",
    "Unable to establish controller machine",
)


class SlurmError(Exception):
    """A command of Slurm's failed.

    Attributes:
        command: what was run.
        status: its exit status; None where it did not end in time.
        stderr: what it said.
    """

    def __init__(self, command: Iterable[str], status: int | None, stderr: str) -> None:
        self.command = tuple(command)
        self.status = status
        self.stderr = stderr.strip()
        ended = "did not end in time" if status is None else f"exit status {status}"
        # squeue's format alone is longer than any reason.
        named = textwrap.shorten(" ".join(self.command), MESSAGE_LENGTH, placeholder=" …")
        super().__init__(f"{named}: {self.stderr or ended}")


class SlurmDown(SlurmError):  # noqa: N818 - says what is the case
    """The controller does not answer; the same call may work later."""


def is_unanswered(stderr: str) -> bool:
    """Whether a client's words say that nobody answers, and not that it was refused."""
    return any(text in stderr for text in _DOWN)


class Slurm(Protocol):
    """What is asked of slurmctld. `Control` asks a real one; whatever doubles it in tests is a subclass.

    What is composed of other calls is written here once, so that a double does the same.
    """

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands and return what it printed.

        Raises:
            SlurmDown: the controller does not answer, or not in time.
            SlurmError: the command failed, or is not installed.
        """
        ...

    def nodes(self) -> dict[str, NodeState]:
        """All nodes, by name."""
        ...

    def jobs(self) -> dict[int, JobState]:
        """All jobs that slurmctld remembers, ended ones too (for MinJobAge, 5 minutes), by id.

        A pending array is one entry, under the array's id; its started tasks have ids of their own.
        """
        ...

    def ping(self) -> bool:
        """Whether the controller answers."""
        ...

    def update_node(
        self,
        nodes: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        weight: int | None = None,
    ) -> None:
        """Change nodes' state, reason or both, in as few commands as possible.

        Args:
            state: DOWN, DRAIN, UNDRAIN, RESUME, IDLE, POWER_UP, POWER_DOWN, POWER_DOWN_ASAP or
                POWER_DOWN_FORCE.

        Raises:
            SlurmError: Slurm refused some of the nodes (RESUME on a node that is neither down nor drained,
                an unknown name); the others have been changed.
        """
        ...

    def power_down_force(self, nodes: Iterable[str], reason: str) -> None:
        """Give nodes back at once: their jobs are requeued, SuspendProgram is called, they are idle again."""
        self.update_node(nodes, state="POWER_DOWN_FORCE", reason=reason)

    def avoid(self, nodes: Iterable[str]) -> None:
        """Have Slurm take these nodes last, until the controller starts anew."""
        self.update_node(nodes, weight=LAST_WEIGHT)

    def power_up(self, nodes: Iterable[str]) -> None:
        """Ask for nodes that are powered down.

        Never for one that is powering up: Slurm would call ResumeProgram again, count its time from then, and
        ignore a slurmd that has already started; or keep the wish, and launch the node anew after its next
        suspend.
        """
        self.update_node(nodes, state="POWER_UP")

    def undrain(self, nodes: Mapping[str, NodeState]) -> None:
        """Take DRAIN away, in a way that a node which is off survives.

        UNDRAIN and RESUME say NOT_RESPONDING of every node, until it registers. One that is off does not; it
        can be used all the same, until slurmctld starts anew or reads its configuration again: then it
        counts as gone for ever. IDLE takes the drain away and says nothing else, and only of idle nodes.

        Args:
            nodes: as they are now.

        Raises:
            SlurmError: Slurm refused some of them; the others have been changed.
        """
        idle = [name for name, node in nodes.items() if node.base == "IDLE"]
        others = [name for name in nodes if name not in idle]
        _each(
            partial(self.update_node, names, state=state)
            for state, names in (("IDLE", idle), ("UNDRAIN", others))
        )

    def update_job(
        self, job: int | str, *, admin_comment: str | None = None, start_now: bool = False, hold: bool = False
    ) -> None:
        """Change a job that has not ended.

        Args:
            job: its id or `JobState.spelling`.
            admin_comment: what `scontrol show job` shows as AdminComment; an empty text takes it away.
            start_now: forget the delay that a requeue has put on the job.
            hold: keep it pending until somebody releases it.

        Raises:
            SlurmError: the job has ended or is unknown.
        """
        ...

    def save_nodes(self, node: NodeState) -> None:
        """Have slurmctld write the state of all its nodes to the disk, within five seconds.

        It does so after every update of a node. Its own reason changes nothing, nor does an empty one where
        there is none; any other update would take the reason away. (A weight, even the same one, would split
        the node off its line of slurm.conf.)

        Args:
            node: any one, as it is now; best one without a reason.
        """
        self.update_node([node.name], reason=node.reason or "")

    def save_all(self, job: JobState) -> None:
        """Have slurmctld write all its jobs and nodes to the disk, within five seconds.

        It does so after every update of a job, and this one changes nothing.

        Args:
            job: any one that has not ended.

        Raises:
            SlurmError: it has ended, which has had the same effect.
        """
        ...

    def requeue(self, job: int | str) -> None:
        """Queue a job again that has begun.

        Raises:
            SlurmError: it may not be queued again, or has ended.
        """
        ...

    def release(self, job: int | str) -> None:
        """Let a job go that was held."""
        ...

    def cancel(self, jobs: Iterable[int | str]) -> None:
        """Cancel jobs; those that have ended already are no error."""
        ...

    def reconfigure(self) -> None:
        """Make all daemons read their configuration again."""
        ...

    def close_partition(self, name: str) -> None:
        """Have no job start in a partition until the controller starts anew; jobs that run go on."""
        self.run("scontrol", "update", f"PartitionName={name}", "State=DOWN")

    def shutdown(self) -> None:
        """Have slurmctld save its state and end; its keeper starts it again."""
        self.run("scontrol", "shutdown", "slurmctld")


class Control(Slurm):
    """Slurm's commands against one cluster.

    Args:
        slurm_conf: the path of its slurm.conf.
        timeout: seconds after which a command counts as unanswered.
    """

    def __init__(self, slurm_conf: str | PurePath, timeout: float = 30.0) -> None:
        self._timeout = timeout
        # Nothing inherited: the caller may be a job, or a program of slurmctld's, and their SLURM_* variables
        # change what commands do. Times come as seconds since 1970, whatever the machine's time zone.
        self._environment = {
            "PATH": PATH,
            "SLURM_CONF": str(slurm_conf),
            "SLURM_TIME_FORMAT": "%s",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmDown(command, None, f"no answer within {self._timeout:g} s") from error
        except OSError as error:
            raise SlurmError(command, None, str(error)) from error
        if done.returncode != 0:
            kind = SlurmDown if is_unanswered(done.stderr) else SlurmError
            raise kind(command, done.returncode, done.stderr or done.stdout)
        return done.stdout

    def nodes(self) -> dict[str, NodeState]:
        return parse_nodes(self.run("scontrol", "show", "nodes", "--oneliner"))

    def jobs(self) -> dict[int, JobState]:
        # Without --array, squeue shows a task that was queued again as one of those that have not begun: with
        # their reason, their priority and their number of restarts.
        options = ("--noheader", "--all", "--states=all", "--array", "--Format")
        return parse_jobs(self.run("squeue", *options, SQUEUE_FORMAT))

    def ping(self) -> bool:
        try:
            self.run("scontrol", "ping")
        except SlurmError:
            return False
        return True

    def update_node(
        self,
        nodes: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        weight: int | None = None,
    ) -> None:
        changes = _pairs(
            {"State": state, "Reason": reason, "Weight": None if weight is None else str(weight)}
        )
        if not changes:
            raise ValueError("nothing to change")
        commands = (("scontrol", "update", f"NodeName={names}", *changes) for names in _batches(nodes))
        _each(partial(self.run, *command) for command in commands)

    def update_job(
        self, job: int | str, *, admin_comment: str | None = None, start_now: bool = False, hold: bool = False
    ) -> None:
        changes = _pairs(
            {
                "AdminComment": admin_comment,
                "StartTime": "now" if start_now else None,
                "Priority": "0" if hold else None,
            }
        )
        if not changes:
            raise ValueError("nothing to change")
        self.run("scontrol", "update", f"JobId={job}", *changes)

    def save_all(self, job: JobState) -> None:
        self.run("scontrol", "update", f"JobId={job.spelling}", f"Requeue={int(job.requeue)}")

    def requeue(self, job: int | str) -> None:
        self.run("scontrol", "requeue", str(job))

    def release(self, job: int | str) -> None:
        self.run("scontrol", "release", str(job))

    def cancel(self, jobs: Iterable[int | str]) -> None:
        names = [str(job) for job in jobs]
        if names:
            self.run("scancel", "--quiet", *names)

    def reconfigure(self) -> None:
        self.run("scontrol", "reconfigure")


def _each(steps: Iterable[Callable[[], object]]) -> None:
    """All of them, and then the first refusal.

    Raises:
        SlurmDown: at once.
        SlurmError: Slurm refused some steps.
    """
    refusal: SlurmError | None = None
    for step in steps:
        try:
            step()
        except SlurmDown:
            raise
        except SlurmError as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal


def _batches(nodes: Iterable[str]) -> Iterator[str]:
    """Host lists that fit an argument each, in numeric order."""
    names = expand(fold(nodes))
    for start in range(0, len(names), BATCH):
        yield fold(names[start : start + BATCH])


def _pairs(changes: Mapping[str, str | None]) -> list[str]:
    """`Key=value` arguments; a line break in a value would end it in Slurm's own listings."""
    return [f"{key}={' '.join(value.split())}" for key, value in changes.items() if value is not None]
