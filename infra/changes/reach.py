"""What is decided with a cluster that is up: whether a change may be made, and the end of its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from infra.changes import jobs, table
from infra.changes.jobs import Job
from infra.errors import EXIT_REFUSED, NotUpError, UserError

SECONDS = 40.0
"""For one question to the head, which may be dead."""
RELEASE_TRIES = 12
RELEASE_PAUSE_SECONDS = 5.0
STAYS = (
    "the cluster does not answer any more, and no job starts in its partitions {}: "
    "`scontrol update PartitionName=… State=UP` there lets them start"
)
CHANGED = "the change is made all the same"
END_SECONDS = 45
"""How long jobs that were cancelled are waited for: longer than Slurm's KillWait of 30 s."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The way to a cluster's login machine.

    Attributes:
        run: runs a shell line there, with a limit in seconds, and returns its output; raises NotUpError where
            there is none, and UserError where it does not answer.
        prefix: what gives a command there the rights of Slurm's administrator, with a space behind it.
    """

    run: Callable[[str, float], str]
    prefix: str = ""

    def jobs(self) -> list[Job]:
        """The jobs that have not ended.

        Raises:
            NotUpError, UserError: as `run`.
        """
        return jobs.parse(self.run(jobs.SQUEUE, SECONDS))

    def hold(self, partitions: Iterable[str], state: str) -> tuple[list[str], list[Job]]:
        """Take partitions out of service; which of them were in service, and the jobs of the cluster.

        Raises:
            NotUpError, UserError: as `run`.
        """
        text = self.run(jobs.hold_line(partitions, state, self.prefix), SECONDS)
        return jobs.held(text), jobs.parse(text)

    def release(self, partitions: Sequence[str]) -> bool:
        """Put partitions into service again, as far as the cluster still has them.

        A controller that is restarted just now answers a moment later, and jobs would wait for ever.

        Returns:
            False if the cluster has not answered.
        """
        for left in reversed(range(RELEASE_TRIES if partitions else 0)):
            try:
                self.run(jobs.release_line(partitions, self.prefix), SECONDS)
                break
            except NotUpError:
                break
            except UserError:
                if not left:
                    return False
                time.sleep(RELEASE_PAUSE_SECONDS)
        return True


@dataclass(frozen=True, slots=True)
class Weighed:
    """What `up` has to do beside its engine's work.

    Attributes:
        anew: destroy the cluster that is up first: the engine alone would not.
        release: undo what was held while the change was weighed, where it is not made in the end.
    """

    anew: bool = False
    release: Callable[[], None] = lambda: None


def weigh(
    found: Sequence[table.Change],
    partitions: Sequence[str],
    reach: Reach,
    say: Callable[[str], None],
    *,
    replace: bool,
) -> Weighed:
    """Say what changes, and refuse what would cost jobs or files, unless asked.

    What would end jobs keeps the jobs that it is about from starting until it is made or refused.

    Args:
        partitions: of the cluster that is up.

    Raises:
        UserError: exit 3; refused.
    """
    for change in found:
        say(change.line())
    if not table.costly(found):
        return Weighed()
    held: list[str] = []
    there: list[Job] | None = []
    kinds = {change.kind for change in found}
    if table.Kind.NEVER in kinds:
        found = [change for change in found if change.kind is table.Kind.NEVER]
    elif replace:
        held = make_way(found, partitions, reach, say)
        return Weighed(release=lambda: _release(reach, held, say))
    else:
        try:
            if kinds & table.ALWAYS:
                there = reach.jobs()
            else:
                state, names = table.holds(found)
                held, there = reach.hold(partitions if names is None else names, state)
        except NotUpError:
            pass  # nobody could log in yet
        except UserError as error:
            say(f"the cluster does not answer: {error}")
            there = None
    why = table.refusal(found, there)
    if why is not None:
        if not reach.release(held):
            why += f"\n{STAYS.format(', '.join(held))}"
        raise UserError(f"nothing was changed: {why}", EXIT_REFUSED)
    return Weighed(release=lambda: _release(reach, held, say))


def _release(reach: Reach, held: Sequence[str], say: Callable[[str], None]) -> None:
    if not reach.release(held):
        say(STAYS.format(", ".join(held)))


def make_way(
    found: Sequence[table.Change], partitions: Sequence[str], reach: Reach, say: Callable[[str], None]
) -> list[str]:
    """Before changes that end jobs are made as asked: the jobs are named, and have their time to save.

    A job that only loses nodes is queued again where it may be, and runs on those that stay. Nothing of it
    keeps a change from being made that was asked for in so many words.

    Args:
        partitions: of the cluster that is up.

    Returns:
        The partitions that are out of service until the changes are made.
    """
    state, names = table.holds(found)
    try:
        held, there = reach.hold(partitions if names is None else names, state)
    except NotUpError:
        return []
    except UserError as error:
        say(silent(error, CHANGED))
        return []
    hit = [job for job in there if any(change.costs(job) for change in found)]
    waiting = [job for job in hit if job.pending]
    running = [job for job in hit if not job.pending]
    again = [job for job in running if table.may_run_again(found, job)]
    if waiting:
        say("\n".join(["these jobs wait, and are cancelled:", *jobs.listed(waiting)]))
        _try(reach, jobs.cancel_line(waiting, reach.prefix), say)
    if running:
        if again:
            those = ", ".join(job.id for job in again)
            say(
                f"queued again for the nodes that stay, unless they were submitted with --no-requeue: {those}"
            )
        others = [job for job in running if job not in again]
        line = jobs.make_way_line(others, again, reach.prefix)
        end(reach, running, say, f"{line}; {jobs.wait_line(END_SECONDS, running)}")
    return held


def _try(reach: Reach, line: str, say: Callable[[str], None]) -> None:
    try:
        reach.run(line, SECONDS)
    except UserError as error:
        say(silent(error, CHANGED))


def drain(
    reach: Reach,
    partitions: Iterable[str],
    how_to_keep: str,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
) -> None:
    """Before a destroy: no further job starts, and those that run are asked to end.

    A cluster comes down also when it does not answer.

    Args:
        how_to_keep: the command that has jobs start again.
        agree: told which jobs there are; raises UserError where somebody wants to keep them.

    Raises:
        UserError: `agree`'s; jobs start again then.
    """
    try:
        held, found = reach.hold(partitions, "DOWN")
    except NotUpError:
        return
    except UserError as error:
        say(silent(error))
        return
    there = [job for job in found if not job.over]
    try:
        agree(there)
    except BaseException:
        reach.release(held)
        raise
    say(f"no further job starts (should you keep the cluster: {how_to_keep} lets them start again)")
    if running := [job for job in there if not job.pending]:
        end(reach, running, say)


def end(reach: Reach, running: Sequence[Job], say: Callable[[str], None], line: str = "") -> None:
    """Cancel jobs, and wait until they have ended, or Slurm has had the time to kill them.

    Args:
        line: a shell line that does both and lists jobs; none: all are cancelled, and every job waited for.
    """
    say(
        "these jobs are told to end (SIGTERM), and killed after "
        f"{jobs.KILL_WAIT_SECONDS:g} s; the machines stay until then:"
    )
    say("\n".join(jobs.listed(running)))
    line = line or f"{jobs.cancel_line(running, reach.prefix)}; {jobs.wait_line(END_SECONDS)}"
    numbers = {job.id for job in running}
    try:
        there = jobs.parse(reach.run(line, END_SECONDS + SECONDS))
    except UserError as error:
        say(silent(error))
        return
    left = [job for job in there if not job.pending and job.id in numbers]
    if left:
        say("\n".join(["these have not ended, and end with their machines:", *jobs.listed(left)]))


def silent(error: UserError, then: str = "it is ended all the same") -> str:
    """What is said of a cluster that cannot be asked which jobs it has."""
    why = str(error).splitlines()[0]
    return f"the cluster does not answer, so nobody knows which jobs run ({why}); {then}"
