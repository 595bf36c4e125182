"""The only client of Slurm's commands: requests to slurmctld as methods, and its answers as types.

The client uses the text output of `scontrol`, `squeue` and `scancel`. The text is stable over releases, but
the JSON is not: every release has a different schema.

Slurm's traps (docs/internals/slurm_traps.md): json-differs, hidden-tasks.
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import BinaryIO, Protocol, TypeVar

from node.slurm import environment
from node.slurm.answers import (
    NodeParser,
    new_mark,
    parse_jobs,
    parse_nodes,
    parse_partition_states,
    parse_reservations,
    parse_texts,
    parse_working,
    required_nodes,
    squeue_format,
)
from node.slurm.fields import (
    DEPENDENCY,
    HOLDING,
    JOB,
    JOB_DETAILS,
    JOB_TEXTS,
    OUTPUT,
    OWNERS,
    REQUIRED_NODES,
    STARTED,
    Fields,
)
from node.slurm.hostlist import expand, fold
from node.slurm.reservations import Reservation
from node.slurm.states import JobState, NodeState, base_and_flags
from node.system import subprocesses
from node.system.shared import Shared

Answer = TypeVar("Answer")

BATCH = 1500
"""The number of node names per command. The argument stays below the kernel's 128 KiB even if none folds."""


def batches(nodes: Iterable[str]) -> Iterator[str]:
    """Yield host lists in numeric order. Each of them fits into one argument."""
    names = expand(fold(nodes))
    for start in range(0, len(names), BATCH):
        yield fold(names[start : start + BATCH])


def pairs(changes: Mapping[str, str | None]) -> list[str]:
    """Return `Key=value` arguments without line breaks, which would end the value in Slurm's listings."""
    return [f"{key}={' '.join(value.split())}" for key, value in changes.items() if value is not None]


ALL_JOBS = ("--all", "--states=all")
"""squeue's options for all jobs that slurmctld knows."""
TASKS = "--array"
"""squeue's option for a record for each task of an array.

Without it, squeue shows a requeued task as one of the tasks that have not started, with their reason, their
priority and their number of restarts.
"""
ANSWER_BYTES = 512 << 20
"""The greatest length of an answer. Slurm's limits for a job's texts keep that of 50,000 jobs below it."""
ERROR_BYTES = 1 << 12
"""How much of what a command prints is taken for its error."""
MOST_LEFT_OUT = 100
"""How many records that are left out are named."""
LAST_WEIGHT = 1000
"""A weight above all weights in slurm.conf. Slurm prefers nodes of low weight."""

MESSAGE_LENGTH = 80
"""The number of characters of a command in an error's message."""

# Messages of Slurm's clients, over the releases, when slurmctld does not answer.
_DOWN = (
    "Unable to contact slurm controller",
    "Slurm controller not responding",
    "Zero Bytes were transmitted or received",
    "Connection refused",
    # slurmctld ends while a client sends: the error of the socket, and the last text where it has none.
    "Connection reset by peer",
    "Broken pipe",
    "Unexpected missing socket error",
    "Socket timed out on send/recv operation",
    "Slurm backup controller in standby mode",
    "Unable to establish controller machine",
)


class SlurmError(Exception):
    """A Slurm command failed.

    Attributes:
        command: The command and its arguments.
        status: The exit status. `None` means that the command did not start or did not end in time.
        stderr: The error output.
    """

    def __init__(self, command: Iterable[str], status: int | None, stderr: str) -> None:
        self.command = tuple(command)
        self.status = status
        self.stderr = stderr.strip()
        ended = "did not end in time" if status is None else f"exit status {status}"
        # squeue's format alone would be longer than any error.
        named = textwrap.shorten(" ".join(self.command), MESSAGE_LENGTH, placeholder=" …")
        super().__init__(f"{named}: {self.stderr or ended}")


class SlurmDown(SlurmError):  # noqa: N818 - says what is the case
    """The controller does not answer. The same call may work later."""


class SlurmAnswerError(SlurmError):
    """The controller answers, and its answer cannot be used: it is too long, or names something twice."""


def is_unanswered(stderr: str) -> bool:
    """Return whether a client's error output means that slurmctld does not answer, not that it refused."""
    return any(text in stderr for text in _DOWN)


class Slurm(Protocol):
    """The requests to slurmctld. `Control` asks a real one, and the fakes in tests are subclasses too.

    Methods that consist of other calls are defined here once, so that the fakes do the same.
    """

    def run(self, *command: str) -> str:
        """Run one of Slurm's commands and returns its standard output.

        Raises:
            SlurmDown: The controller does not answer, or not in time.
            SlurmError: The command failed, or is not installed.
        """
        ...

    def nodes(self) -> Mapping[str, NodeState]:
        """Return all nodes, by name, as a reading has them that began after the call.

        It is the same object as that of the last reading if no node has changed.
        """
        ...

    def detailed_nodes(self) -> Mapping[str, NodeState]:
        """Return what `nodes` returns, with the number of generic resources that are in use."""
        ...

    def nodes_since(self, begun: float) -> Mapping[str, NodeState]:
        """Return the nodes of the newest reading, whoever asked for it, if it began at this time or later.

        Otherwise they are read.

        Args:
            begun: The time, on `time.monotonic`.
        """
        return self.nodes()

    def named_nodes(self, names: Collection[str]) -> Mapping[str, NodeState]:
        """Return at least those of these nodes that Slurm knows, as a reading has them that begins now.

        It is the same object as that of the last call if the nodes are the same and none has changed. Of a
        node that comes up only the state counts. One thread at a time may ask.
        """
        return self.nodes()

    def jobs(self) -> dict[int, JobState]:
        """Return all jobs that slurmctld knows, by id. It knows ended ones for MinJobAge (5 minutes).

        A pending array is one entry under the array's id. Its started tasks have their own ids.
        """
        ...

    def working_jobs(self) -> set[int]:
        """Return the ids of the jobs that hold nodes and do not end (`JobState.has_work`)."""
        return {job.id for job in self.jobs().values() if job.has_work}

    def detailed_jobs(self) -> dict[int, JobState]:
        """Return what `jobs` returns, with what only people ask for (`JobState.reservation`, …)."""
        ...

    def dependencies(self) -> dict[int, str]:
        """Return what jobs wait for, as squeue shows it, by the job's id."""
        ...

    def owners(self) -> dict[int, dict[str, str]]:
        """Return to whom the jobs are booked that have not ended (`OWNERS`), by id."""
        ...

    def ping(self) -> bool:
        """Return whether the controller answers."""
        ...

    def update_node(
        self,
        nodes: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        weight: int | None = None,
    ) -> None:
        """Change the state, the reason or the weight of nodes, in as few commands as possible.

        Args:
            state: DOWN, DRAIN, UNDRAIN, RESUME, IDLE, POWER_UP, POWER_DOWN, POWER_DOWN_ASAP or
                POWER_DOWN_FORCE.

        Raises:
            SlurmError: Slurm refused some of the nodes (RESUME on a node that is neither down nor drained,
                an unknown name). The others have been changed.
        """
        ...

    def power_down_force(self, nodes: Iterable[str], reason: str) -> None:
        """Give nodes back at once: their jobs are requeued, SuspendProgram is called, they become idle."""
        self.update_node(nodes, state="POWER_DOWN_FORCE", reason=reason)

    def avoid(self, nodes: Iterable[str]) -> None:
        """Make Slurm choose these nodes last, until slurmctld restarts.

        An update that does not name a node's present reason may remove it (see `save_nodes`).
        """
        known = self.nodes()
        alike: dict[str, list[str]] = {}
        for name in nodes:
            alike.setdefault((known[name].reason if name in known else None) or "", []).append(name)
        _each(
            partial(self.update_node, names, reason=reason, weight=LAST_WEIGHT)
            for reason, names in alike.items()
        )

    def power_up(self, nodes: Iterable[str]) -> None:
        """Request nodes that are powered down.

        A node that is powering up must not be requested. Slurm would either call ResumeProgram again, restart
        the node's timeout, and ignore a slurmd that has started already; or keep the request, and launch the
        node again after its next suspend.
        """
        self.update_node(nodes, state="POWER_UP")

    def undrain(self, nodes: Mapping[str, NodeState]) -> None:
        """Remove DRAIN, in a way that is safe for nodes that are off.

        UNDRAIN and RESUME also set NOT_RESPONDING, until the node registers. A node that is off does not
        register. It can still be used, until slurmctld restarts or reads its configuration again: then it
        counts as lost for ever. IDLE removes DRAIN and nothing else, but it works for idle nodes only.

        Args:
            nodes: The nodes by name, in their present state.

        Raises:
            SlurmError: Slurm refused some of the nodes. The others have been changed.
        """
        idle = [name for name, node in nodes.items() if node.is_idle]
        others = [name for name in nodes if name not in idle]
        _each(
            partial(self.update_node, names, state=state)
            for state, names in (("IDLE", idle), ("UNDRAIN", others))
        )

    def update_job(
        self,
        job: int | str,
        *,
        admin_comment: str | None = None,
        start_now: bool = False,
        hold: bool = False,
        dependency: str | None = None,
    ) -> None:
        """Change a job that has not ended.

        Args:
            job: The job's id or `JobState.spelling`.
            admin_comment: The AdminComment that `scontrol show job` shows. An empty text removes it.
            start_now: Whether to remove the delay that a requeue has set.
            hold: Whether to keep the job pending until it is released.
            dependency: What the job waits for, as `sbatch --dependency` has it.

        Raises:
            SlurmError: The job has ended or is unknown.
        """
        ...

    def save_nodes(self, node: NodeState) -> None:
        """Make slurmctld write the state of all nodes to the disk within five seconds.

        It does so after every update of a node. An update with the node's present reason changes nothing;
        without a reason an empty one changes nothing. Any other update would remove the reason. (A weight,
        even the present one, would split the node off its line of slurm.conf.)

        Args:
            node: Any node in its present state, best one without a reason.
        """
        self.update_node([node.name], reason=node.reason or "")

    def save_all(self, job: JobState) -> None:
        """Make slurmctld write all jobs and nodes to the disk within five seconds.

        It does so after every update of a job. This update changes nothing.

        Args:
            job: Any job that has not ended.

        Raises:
            SlurmError: The job has ended. Its end has made slurmctld write its state as well.
        """
        ...

    def requeue(self, job: int | str) -> None:
        """Requeue a job that has started, even if it has ended since.

        Raises:
            SlurmError: The job may not be requeued, is ending, or ended longer ago than MinJobAge.
        """
        ...

    def requeue_held(self, job: int | str) -> None:
        """Requeue a job that has started, and hold it.

        Raises:
            SlurmError: As for `requeue`.
        """
        ...

    def release(self, job: int | str) -> None:
        """Release a held job."""
        ...

    def cancel(self, jobs: Iterable[int | str]) -> None:
        """Cancel jobs. A job that has ended already is not an error."""
        ...

    def reconfigure(self) -> None:
        """Make all daemons read their configuration again."""
        ...

    def partition_states(self) -> dict[str, str]:
        """Return UP, DOWN, DRAIN or INACTIVE for each partition."""
        ...

    def reservations(self) -> list[Reservation]:
        """Return the reservations that have not ended."""
        ...

    def change(self, *words: str) -> None:
        """Change what slurmctld has by scontrol's words, those of `runtime.commands`."""
        self.run("scontrol", *words)

    def show_partitions(self) -> str:
        """Return scontrol's text about all partitions, for `runtime.shown_partitions`."""
        return self.run("scontrol", "show", "partitions", "--all", "--oneliner")

    def show_config(self) -> str:
        """Return scontrol's text about slurmctld's options, for `runtime.shown_controller`."""
        return self.run("scontrol", "show", "config")

    def open_partitions(self) -> list[str]:
        """Return the partitions in which jobs start."""
        return sorted(name for name, state in self.partition_states().items() if state == "UP")

    def close_partition(self, name: str) -> None:
        """Stop the start of jobs in a partition until slurmctld restarts. Running jobs go on."""
        self.run("scontrol", "update", f"PartitionName={name}", "State=DOWN")

    def open_partition(self, name: str) -> None:
        """Let jobs start in a partition."""
        self.run("scontrol", "update", f"PartitionName={name}", "State=UP")

    def shutdown(self) -> None:
        """Make slurmctld save its state and exit. systemd or the machine's init restarts it."""
        self.run("scontrol", "shutdown", "slurmctld")


class Control(Slurm):
    """The client that runs Slurm's commands against one cluster.

    Args:
        slurm_conf: The path of the cluster's slurm.conf.
        timeout: Seconds after which a command counts as unanswered.
    """

    def __init__(self, slurm_conf: str | PurePath, timeout: float = 30.0) -> None:
        self._timeout = timeout
        # Nothing is inherited: the caller may be a job, a program of slurmctld, or in anybody's shell.
        self._environment = environment.of_ours(slurm_conf)
        self._left_out: set[str] = set()
        # Threads that ask at the same time share a reading.
        self._nodes = Shared(partial(self._read_nodes, NodeParser()))
        self._detailed_nodes = Shared(partial(self._read_nodes, NodeParser(), "--details"))
        self._newest: tuple[float, Mapping[str, NodeState]] = (-math.inf, {})
        self._named_parser = NodeParser()
        self._named: tuple[Collection[str], str] = ((), "")
        self._state_words = ("", "")
        self._alone: Mapping[str, NodeState] = {}
        self._lock = threading.Lock()

    def run(self, *command: str) -> str:
        return self._run(command, {}).decode(errors="replace")

    def _run(self, command: Sequence[str], variables: Mapping[str, str]) -> bytes:
        with self._answer(command, variables) as answer:
            return answer.read()

    @contextmanager
    def _answer(self, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[BinaryIO]:
        """Run a command and yield its answer as a file."""
        # It is in memory, as `subprocesses.run` has it. Only what is shown of it is decoded.
        with os.fdopen(os.memfd_create("answer"), "w+b") as answer:
            try:
                ended = subprocesses.run(
                    command,
                    {**self._environment, **variables},
                    self._timeout,
                    output=answer,
                    most_bytes=ANSWER_BYTES,
                    apart=True,
                )
            except OSError as error:
                raise SlurmError(command, None, str(error)) from error
            answer.seek(0)
            if ended.status is None:
                raise SlurmDown(command, None, f"no answer within {self._timeout:g} s")
            if ended.status == -signal.SIGXFSZ:
                why = f"its answer is longer than {ANSWER_BYTES} bytes"
                raise SlurmAnswerError(command, ended.status, why)
            if ended.status != 0:
                kind = SlurmDown if is_unanswered(ended.errors) else SlurmError
                errors = ended.errors or answer.read(ERROR_BYTES).decode(errors="replace")
                raise kind(command, ended.status, errors)
            yield answer

    def _show(self, parse: Callable[[str], Answer], *words: str) -> Answer:
        command = ("scontrol", "show", *words, "--oneliner")
        with _usable(command):
            return parse(self.run(*command))

    def _leave_out(self, sentence: str) -> None:
        """Name a record that is left out, once."""
        if sentence not in self._left_out and len(self._left_out) < MOST_LEFT_OUT:
            self._left_out.add(sentence)
            print(sentence, file=sys.stderr, flush=True)

    def nodes(self) -> Mapping[str, NodeState]:
        return self._nodes()

    def nodes_since(self, begun: float) -> Mapping[str, NodeState]:
        with self._lock:
            newest, nodes = self._newest
        return nodes if newest >= begun else self.nodes()

    def named_nodes(self, names: Collection[str]) -> Mapping[str, NodeState]:
        if not 0 < len(names) <= BATCH:
            return self.nodes()
        if names is not self._named[0]:
            self._named = names, fold(names)
        try:
            return self._one(*names) if len(names) == 1 else self._listed(self._named[1])
        except SlurmDown:
            raise
        except SlurmError:  # it does not know one of them
            return self.nodes()

    def _listed(self, names: str) -> Mapping[str, NodeState]:
        return self._parsed(self._named_parser, ("scontrol", "show", "node", names, "--oneliner"))

    def _one(self, name: str) -> Mapping[str, NodeState]:
        """Return a node, as it was if it comes up and its state is the same.

        scontrol has slurmctld send all nodes, also for one. sinfo asks for this one only, which takes a
        quarter of the time where 5,000 are declared. It has all words of a state, in small letters.
        """
        state = "--Format=StateComplete:400"
        words = name, self.run("sinfo", "--noheader", "--all", f"--nodes={name}", state).strip()
        if words != self._state_words:
            self._state_words, self._alone = ("", ""), self._listed(name)
            node = self._alone.get(name)
            # It may have changed in between, and a release to come may have other words. A node that is up
            # has an address, which may be another one the next time.
            same = node is not None and (node.base, node.flags) == base_and_flags(words[1].upper())
            if node is not None and same and node.is_powering_up:
                self._state_words = words
        return self._alone

    def _read_nodes(self, parse: NodeParser, *options: str) -> Mapping[str, NodeState]:
        begun = time.monotonic()
        nodes = self._parsed(parse, ("scontrol", "show", "nodes", *options, "--oneliner"))
        with self._lock:
            if begun > self._newest[0]:
                self._newest = begun, nodes
        return nodes

    def _parsed(self, parse: NodeParser, command: Sequence[str]) -> Mapping[str, NodeState]:
        with (
            self._answer(command, {}) as answer,
            # A line at a time: the whole text of 50,000 nodes has 40 MB.
            io.TextIOWrapper(answer, encoding="utf-8", errors="replace", newline="\n") as lines,
            _usable(command),
        ):
            return parse(lines)

    def node(self, name: str) -> NodeState | None:
        """Return one node; `None` if Slurm does not list it."""
        return self._show(parse_nodes, "node", name).get(name)

    def detailed_nodes(self) -> Mapping[str, NodeState]:
        return self._detailed_nodes()

    def partition_states(self) -> dict[str, str]:
        return self._show(parse_partition_states, "partitions", "--all")

    def reservations(self) -> list[Reservation]:
        return self._show(parse_reservations, "reservations")

    def jobs(self) -> dict[int, JobState]:
        return self._jobs(JOB_TEXTS)

    def working_jobs(self) -> set[int]:
        # Most of what a reading of jobs takes is their many fields.
        command, mark, answer = self._squeue(HOLDING, *ALL_JOBS, TASKS)
        with _usable(command):
            return parse_working(answer, mark, self._leave_out)

    def detailed_jobs(self) -> dict[int, JobState]:
        jobs = self._jobs({**JOB_TEXTS, **JOB_DETAILS})
        required = required_nodes(self._texts(REQUIRED_NODES, *ALL_JOBS) if jobs else {})
        return {number: replace(job, required_nodes=required.get(number, ())) for number, job in jobs.items()}

    def dependencies(self) -> dict[int, str]:
        return {number: fields["dependency"] for number, fields in self._texts(DEPENDENCY, *ALL_JOBS).items()}

    def owners(self) -> dict[int, dict[str, str]]:
        return self._texts(OWNERS, "--all")

    def outputs(self, jobs: Iterable[int]) -> dict[int, dict[str, str]]:
        """Return where these jobs write, and as whom (`OUTPUT`), by id, if slurmctld knows them.

        The paths are what users have written: whoever opens one must expect any path.
        """
        wanted = ",".join(map(str, jobs))
        return self._texts(OUTPUT, *ALL_JOBS, f"--jobs={wanted}") if wanted else {}

    def outputs_of(self, user: int) -> dict[int, dict[str, str]]:
        """Return the same of a user's jobs, with their states and starts (`STARTED`).

        Args:
            user: The user's number.
        """
        return self._texts(STARTED, *ALL_JOBS, TASKS, f"--user={user}")

    def _jobs(self, more: Fields) -> dict[int, JobState]:
        command, mark, answer = self._squeue([*JOB, *more], *ALL_JOBS, TASKS)
        with _usable(command):
            return parse_jobs(answer, mark, more, self._leave_out)

    def _texts(self, fields: Fields, *options: str) -> dict[int, dict[str, str]]:
        command, mark, answer = self._squeue(fields, *options)
        with _usable(command):
            return parse_texts(answer, fields, mark, self._leave_out)

    def _squeue(self, fields: Iterable[str], *options: str) -> tuple[Sequence[str], str, bytes]:
        """Return the command, its mark and the answer."""
        mark = new_mark()
        command = ("squeue", "--noheader", *options)
        return command, mark, self._run(command, {"SQUEUE_FORMAT2": squeue_format(fields, mark)})

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
        changes = pairs({"State": state, "Reason": reason, "Weight": None if weight is None else str(weight)})
        if not changes:
            raise ValueError("nothing to change")
        commands = (("scontrol", "update", f"NodeName={names}", *changes) for names in batches(nodes))
        _each(partial(self.run, *command) for command in commands)

    def update_job(
        self,
        job: int | str,
        *,
        admin_comment: str | None = None,
        start_now: bool = False,
        hold: bool = False,
        dependency: str | None = None,
    ) -> None:
        changes = pairs(
            {
                "AdminComment": admin_comment,
                "StartTime": "now" if start_now else None,
                "Priority": "0" if hold else None,
                "Dependency": dependency,
            }
        )
        if not changes:
            raise ValueError("nothing to change")
        self.run("scontrol", "update", f"JobId={job}", *changes)

    def save_all(self, job: JobState) -> None:
        self.run("scontrol", "update", f"JobId={job.spelling}", f"Requeue={int(job.requeue)}")

    def requeue(self, job: int | str) -> None:
        self.run("scontrol", "requeue", str(job))

    def requeue_held(self, job: int | str) -> None:
        self.run("scontrol", "requeuehold", str(job))

    def release(self, job: int | str) -> None:
        self.run("scontrol", "release", str(job))

    def cancel(self, jobs: Iterable[int | str]) -> None:
        names = [str(job) for job in jobs]
        if names:
            self.run("scancel", "--quiet", *names)

    def reconfigure(self) -> None:
        self.run("scontrol", "reconfigure")


@contextmanager
def _usable(command: Sequence[str]) -> Iterator[None]:
    """Refuse an answer that cannot be used.

    Raises:
        SlurmAnswerError: The answer has not the form of this command's, or names an object twice.
    """
    try:
        yield
    except ValueError as error:
        raise SlurmAnswerError(command, 0, str(error)) from error


def _each(steps: Iterable[Callable[[], object]]) -> None:
    """Run all steps, then raises the first refusal.

    Raises:
        SlurmDown: The controller does not answer. This is raised at once.
        SlurmError: Slurm refused some of the steps.
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
