"""Decides whether a change of a running cluster may be made, and ends its jobs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cli.changes import jobs, table
from cli.changes.jobs import Job
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from node.slurm import environment, runtime
from node.slurm.hostlist import fold

SLURM_CONF = "/etc/slurm/slurm.conf"
"""Where a whole machine has slurm.conf."""
SECONDS = 40.0
"""The time limit of one call to the login machine, which may be dead."""
RELEASE_TRIES = 12
RELEASE_PAUSE_SECONDS = 5.0
STAYS = (
    "the cluster does not answer any more, and no job starts in its partitions {}: "
    "`scontrol update PartitionName=… State=UP` there lets them start"
)
CHANGED = "the change is made all the same"
END_SECONDS = 45
"""How long cancelled jobs are waited for, in seconds: longer than Slurm's KillWait of 30 s."""


@dataclass(frozen=True, slots=True)
class ClusterControl:
    """Control of a cluster's Slurm through its login machine.

    Attributes:
        run: Runs a shell line there, with a time limit in seconds, and returns its output. Raises NotUpError
            if there is no cluster, and UserError if it does not answer.
        slurm_conf: The path of slurm.conf there.
        sudo: Whether the rights of Slurm's administrator need `sudo`.
    """

    run: Callable[[str, float], str]
    slurm_conf: str = SLURM_CONF
    sudo: bool = False

    @property
    def prefix(self) -> str:
        """The command prefix that gives the rights of Slurm's administrator, with a trailing space."""
        # sudo keeps some variables, and its session may set those of /etc/environment.
        return f"sudo -n {shlex.join(environment.words(self.slurm_conf))} " if self.sudo else ""

    def ask(self, line: str, seconds: float) -> str:
        """Run a shell line of `jobs` with an environment of our own, and return its output.

        Every program of Slurm's that this program runs on a cluster is started here. So neither the caller's
        shell nor the login machine's can hide a job.

        Raises:
            NotUpError, UserError: As for `run`.
        """
        return self.run(environment.shell_line(line, self.slurm_conf), seconds)

    def jobs(self) -> list[Job]:
        """Return the jobs that have not ended.

        Raises:
            NotUpError, UserError: As for `run`.
        """
        return jobs.parse(self.ask(jobs.LISTING, SECONDS))

    def own_partitions(self, partitions: Iterable[str]) -> dict[str, frozenset[str]]:
        """Return the partitions that people have made with scontrol, and their nodes.

        Args:
            partitions: Those of the stack file.

        Raises:
            NotUpError, UserError: As for `run`.
        """
        shown = runtime.shown_partitions(self.ask(jobs.PARTITIONS_LISTING, SECONDS))
        return {
            name: frozenset(runtime.nodes_of(options))
            for name, options in shown.items()
            if name not in frozenset(partitions)
        }

    def hold(self, state: str, spared: Iterable[str] = ()) -> tuple[list[str], list[Job]]:
        """Take all partitions out of service, also those that people have made with scontrol.

        Args:
            state: See `jobs.hold_line`.
            spared: The partitions that stay in service.

        Returns:
            The partitions that were in service before, and the cluster's jobs.

        Raises:
            NotUpError, UserError: As for `run`.
        """
        text = self.ask(jobs.hold_line(state, self.prefix, spared), SECONDS)
        return jobs.held(text), jobs.parse(text)

    def release(self, partitions: Sequence[str]) -> bool:
        """Put partitions into service again, if the cluster still has them.

        The call is repeated, because a controller that is being restarted answers a moment later, and jobs
        would otherwise wait for ever.

        Returns:
            False if the cluster did not answer.
        """
        for left in reversed(range(RELEASE_TRIES if partitions else 0)):
            try:
                self.ask(jobs.release_line(partitions, self.prefix), SECONDS)
                break
            except NotUpError:
                break
            except UserError:
                if not left:
                    return False
                time.sleep(RELEASE_PAUSE_SECONDS)
        return True


@dataclass(frozen=True, slots=True)
class CheckedChanges:
    """What `up` has to do besides the engine's work.

    Attributes:
        recreate: Whether the cluster that is up must be destroyed first; the engine alone would not do it.
        end_jobs: Ends the jobs that requested changes end, right before these are made.
        release: Puts held partitions into service again, for a change that is not made.
        lost: The hosts whose machines are gone and are made again.
    """

    recreate: bool = False
    end_jobs: Callable[[], None] = lambda: None
    release: Callable[[], None] = lambda: None
    lost: tuple[str, ...] = ()

    def begin(self, prepare: Callable[[], None]) -> None:
        """Prepare the changes, and then end the jobs. A failure puts held partitions into service again."""
        try:
            prepare()
            self.end_jobs()
        except BaseException:
            self.release()
            raise


def check_changes(
    found: Sequence[table.Change],
    partitions: Sequence[str],
    reach: ClusterControl,
    say: Callable[[str], None],
    *,
    replace: bool,
    command: str,
) -> CheckedChanges:
    """Say what changes, and refuse what would end jobs or delete files, unless `replace` is set.

    While a change that would end jobs is checked, no further job starts in the partitions that it concerns.
    The jobs themselves are ended later, by what is returned.

    Args:
        partitions: The partitions of the cluster that is up.
        replace: Make those changes too.
        command: The command that makes them, for the message.

    Raises:
        UserError: Exit 3; a change is refused.
    """
    for change in found:
        say(change.line())
    if not replace:
        _keep_own_partitions(found, partitions, reach, say, command)
    if replace:
        for line in table.losses(found):
            say(line)
    if not table.costly(found):
        return CheckedChanges()
    held: list[str] = []
    running: list[Job] | None = []
    kinds = {change.kind for change in found}
    if table.Kind.NEVER in kinds:
        found = [change for change in found if change.kind is table.Kind.NEVER]
    elif replace:
        return CheckedChanges(
            end_jobs=lambda: held.extend(end_jobs_of(found, partitions, reach, say)),
            release=lambda: _release(reach, held, say),
        )
    else:
        try:
            if any(change.deletes for change in found):
                running = reach.jobs()
            else:
                state, names = table.holds(found)
                held, running = reach.hold(state, _spared(partitions, names))
        except NotUpError:
            pass  # nobody could submit a job yet
        except UserError as error:
            say(f"the cluster does not answer: {error}")
            running = None
    why = table.refusal(found, running, command)
    if why is not None:
        stays = "" if reach.release(held) else f"\n{STAYS.format(', '.join(held))}"
        raise UserError(f"nothing was changed: {why}{stays}", EXIT_REFUSED, code=why.code)
    return CheckedChanges(release=lambda: _release(reach, held, say))


def _keep_own_partitions(
    found: Sequence[table.Change],
    partitions: Sequence[str],
    reach: ClusterControl,
    say: Callable[[str], None],
    command: str,
) -> None:
    """Refuse what would take a partition away that somebody has made with scontrol.

    Raises:
        UserError: Exit 3; with the partitions and the jobs in them.
    """
    try:
        lost = _lost_partitions(found, partitions, reach)
        if not lost:
            return
        within = [job for job in reach.jobs() if not job.partitions.isdisjoint(lost)]
    except NotUpError:
        return
    except UserError as error:
        say(f"the cluster does not answer: {error}")
        return
    why = (
        "nothing was changed: this takes partitions away that somebody has made with scontrol. Give them "
        "other names or nodes, or delete them (scontrol delete PartitionName=…), first; "
        f"`{command}` makes the change anyway:"
    )
    lines = [f"  partition {name} {loss}" for name, loss in lost.items()]
    raise UserError("\n".join([why, *lines, *jobs.listed(within)]), EXIT_REFUSED, code="change.own-partition")


def _lost_partitions(
    found: Sequence[table.Change], partitions: Sequence[str], reach: ClusterControl
) -> dict[str, str]:
    """Return the partitions of people's that end with these changes, and how.

    Raises:
        NotUpError, UserError: As for `ClusterControl.run`.
    """
    added, removed = table.added_partitions(found), table.removed_nodes(found)
    if not added and not removed:
        return {}
    lost = {}
    for name, nodes in reach.own_partitions(partitions).items():
        if name in added:
            lost[name] = "gets the nodes and options of the stack file's new one of this name"
        elif nodes and nodes <= removed:
            lost[name] = f"ends: it has only nodes that are removed ({fold(nodes)})"
    return lost


def _spared(partitions: Iterable[str], held: Iterable[str] | None) -> frozenset[str]:
    """Return the partitions that stay in service; `None` means that all are held."""
    return frozenset() if held is None else frozenset(partitions) - frozenset(held)


def _release(reach: ClusterControl, held: Sequence[str], say: Callable[[str], None]) -> None:
    if not reach.release(held):
        say(STAYS.format(", ".join(held)))


def end_jobs_of(
    found: Sequence[table.Change],
    partitions: Sequence[str],
    reach: ClusterControl,
    say: Callable[[str], None],
) -> list[str]:
    """Name the jobs that requested changes end, and give them time to save.

    A job that only loses nodes is requeued if it may be, and runs on the nodes that stay. The user asked for
    these changes explicitly, so no failure here prevents them.

    Args:
        partitions: The partitions of the cluster that is up.

    Returns:
        The partitions that are out of service until the changes are made.
    """
    state, names = table.holds(found)
    try:
        lost = _lost_partitions(found, partitions, reach)
        held, present = reach.hold(state, _spared(partitions, names))
    except NotUpError:
        return []
    except UserError as error:
        say(no_answer(error, CHANGED))
        return []
    if lost:
        lines = [f"  partition {name} {loss}" for name, loss in lost.items()]
        say("\n".join(["these partitions were made with scontrol:", *lines]))
        emptied = lost.keys() - table.added_partitions(found)
        found = [*found, *(table.removed_partition(name) for name in sorted(emptied))]
    hit = [job for job in present if any(change.costs(job) for change in found)]
    waiting = [job for job in hit if job.pending]
    running = [job for job in hit if not job.pending]
    again = [job for job in running if table.may_run_again(found, job)]
    if waiting:
        say("\n".join(["these jobs wait, and are cancelled:", *jobs.listed(waiting)]))
        _try(reach, jobs.cancel_line(waiting, reach.prefix), say)
    if running:
        if again:
            ids = ", ".join(job.id for job in again)
            say(f"queued again, unless they were submitted with --no-requeue: {ids}")
        others = [job for job in running if job not in again]
        line = jobs.cancel_or_requeue_line(others, again, reach.prefix)
        end(reach, running, say, f"{line}; {jobs.wait_line(END_SECONDS, running)}")
    return held


def _try(reach: ClusterControl, line: str, say: Callable[[str], None]) -> None:
    try:
        reach.ask(line, SECONDS)
    except UserError as error:
        say(no_answer(error, CHANGED))


def drain(
    reach: ClusterControl,
    execute: str,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
) -> None:
    """Prevent further jobs from starting before a destroy, and cancel the running ones.

    A cluster that does not answer is destroyed as well.

    Args:
        execute: The command that runs another one on the login machine; empty if there is none.
        agree: Is called with the jobs; raises UserError if somebody wants to keep them.

    Raises:
        UserError: The one from `agree`; jobs start again then.
    """
    try:
        held, found = reach.hold("DOWN")
    except NotUpError:
        return
    except UserError as error:
        say(no_answer(error))
        return
    present = [job for job in found if not job.over]
    try:
        agree(present)
    except BaseException:
        reach.release(held)
        raise
    keep = ""
    if execute and held:
        # Not `scontrol reconfigure`: see `node.elastic.reconfiguration`.
        sudo = "sudo " if reach.sudo else ""
        lines = "; ".join(f"{sudo}scontrol update PartitionName={name} State=UP" for name in held)
        keep = f" (if you keep the cluster, `{execute} -- sh -c '{lines}'` lets them start again)"
    say(f"no further job starts{keep}")
    if running := [job for job in present if not job.pending]:
        end(reach, running, say)


def end(reach: ClusterControl, running: Sequence[Job], say: Callable[[str], None], line: str = "") -> None:
    """Cancel jobs, and wait until they have ended or Slurm has had the time to kill them.

    Args:
        line: A shell line that does both and lists the jobs. If it is empty, all `running` jobs are
            cancelled and every job of the cluster is waited for.
    """
    say(
        "these jobs are told to end (SIGTERM), and killed after "
        f"{jobs.KILL_WAIT_SECONDS:g} s; the machines stay until then:"
    )
    say("\n".join(jobs.listed(running)))
    line = line or f"{jobs.cancel_line(running, reach.prefix)}; {jobs.wait_line(END_SECONDS)}"
    numbers = {job.id for job in running}
    try:
        present = jobs.parse(reach.ask(line, END_SECONDS + SECONDS))
    except UserError as error:
        say(no_answer(error))
        return
    left = [job for job in present if not job.pending and job.id in numbers]
    if left:
        say("\n".join(["these have not ended, and end with their machines:", *jobs.listed(left)]))


def no_answer(error: UserError, then: str = "it is ended all the same") -> str:
    """Return the sentence about a cluster that cannot be asked for its jobs."""
    why = str(error).splitlines()[0].rstrip(".")
    return f"the cluster does not answer, so nobody knows which jobs run ({why}); {then}"
