"""Decides whether a change of a running cluster may be made, and ends its jobs."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeVar

from cli.changes import accounts, closing, jobs, table
from cli.changes.closing import Holder
from cli.changes.jobs import Job
from cli.hints import hint
from infra.effects import Kind
from infra.errors import EXIT_REFUSED, NotUpError, UserError
from node.design.model import ClusterDesign
from node.elastic.reconfiguration import CLOSED
from node.slurm import closing as closing_mark
from node.slurm import environment, runtime
from node.slurm.closing import Mark
from node.slurm.hostlist import fold

Answer = TypeVar("Answer")
SLURM_CONF = "/etc/slurm/slurm.conf"
"""Where a whole machine has slurm.conf."""
STATE = "/var/spool/slurmctld"
"""Where a whole machine has slurmctld's files."""
ELASTIC = "/var/lib/slurm-stacks/elastic"
"""Where a whole machine has the elastic daemon's files."""
MOST_QUESTIONS = 10
"""How often `down` asks about jobs that came since its last question."""
SECONDS = 40.0
"""The time limit of one call to the login machine, which may be dead."""
RELEASE_TRIES = 12
RELEASE_PAUSE_SECONDS = 5.0
STAYS = "the cluster does not answer any more, and no job starts in its partitions {}: `{}` lets them start"
DAMAGED = (
    "an interrupted command has closed partitions, and its mark is damaged ({} on the controller): `sinfo` "
    "there shows which are down or inactive, `scontrol update PartitionName=… State=UP` opens one. Then "
    "remove the mark"
)
CHANGED = "the change is made all the same"
END_SECONDS = 45
"""How long cancelled jobs are waited for, in seconds: longer than Slurm's KillWait of 30 s."""


@dataclass(frozen=True, slots=True)
class ClusterControl:
    """Control of a cluster's Slurm through its controller.

    Attributes:
        run: Runs a shell line there, with a time limit in seconds, and returns its output. Raises NotUpError
            if there is no cluster, and UserError if it does not answer.
        slurm_conf: The path of slurm.conf there.
        state: slurmctld's folder there.
        elastic: The elastic daemon's folder there.
        sudo: Whether the rights of Slurm's administrator need `sudo`.
        holder: This command, for the mark that it leaves before it takes partitions out of service.
    """

    run: Callable[[str, float], str]
    slurm_conf: str = SLURM_CONF
    state: str = STATE
    elastic: str = ELASTIC
    sudo: bool = False
    holder: Holder = field(default_factory=lambda: Holder.of(None, ""))

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

    @property
    def place(self) -> closing.Place:
        """The files of the mark."""
        mark = closing_mark.file(PurePosixPath(self.state))
        return closing.Place(str(mark), f"{self.elastic}/{CLOSED}", self.prefix)

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

    def check_accounts(self, design: ClusterDesign) -> None:
        """Refuse a design with which jobs that wait could never start, for what they name does not exist.

        Raises:
            NotUpError, UserError: As for `run`; or exit 3, there are such jobs.
        """
        question = accounts.question(design.name, self.state, self.prefix)
        if lines := accounts.locked_out(self.ask(question, SECONDS), design):
            raise accounts.refusal(lines, design)

    def look(self, say: Callable[[str], None] = lambda _: None) -> tuple[closing.Found | None, list[Job]]:
        """Return the mark that some command has left, and the jobs that have not ended. This changes nothing.

        Args:
            say: Is told if there is a mark that cannot be read.

        Raises:
            NotUpError, UserError: As for `run`.
        """
        text = self.ask(f"{closing.look_line(self.place)}; {jobs.LISTING}", SECONDS)
        if closing.is_damaged(text):
            say(DAMAGED.format(self.place.mark))
        return closing.found(text), jobs.parse(text)

    def hold(self, state: str, spared: Iterable[str] = (), former: str = "") -> tuple[list[str], list[Job]]:
        """Leave a mark, and take all partitions out of service, also those that people have made.

        Args:
            state: DOWN (no job starts) or INACTIVE (nor is one accepted).
            spared: The partitions that stay in service.
            former: The token of the mark of an interrupted command, which is taken over.

        Returns:
            The partitions that are this command's to open again, and the cluster's jobs.

        Raises:
            BusyError: Another command has come first.
            NotUpError, UserError: As for `run`.
        """
        text = self.ask(closing.hold_line(self.place, self.holder, state, spared, former), SECONDS)
        held = closing.held(text)
        try:
            return held, jobs.parse(text)
        except UserError:
            self.release()
            raise

    def release(self, token: str = "", *, tries: int = RELEASE_TRIES) -> list[str] | None:
        """Put into service what a command has taken out of it, and remove its mark.

        The call is repeated, because a controller that is being restarted answers a moment later, and jobs
        would otherwise wait for ever.

        Args:
            token: That of the command's mark; this command's by default.
            tries: How often the cluster is asked.

        Returns:
            The partitions that were opened; `None` if the cluster did not answer.
        """
        line = closing.release_line(self.place, token or self.holder.token)
        for left in reversed(range(tries)):
            try:
                return closing.opened(self.ask(line, SECONDS))
            except NotUpError:
                break
            except UserError:
                if not left:
                    return None
                time.sleep(RELEASE_PAUSE_SECONDS)
        return []


@dataclass(frozen=True, slots=True)
class CheckedChanges:
    """What `up` has to do besides the engine's work.

    Attributes:
        recreate: Whether the cluster that is up must be destroyed first; the engine alone would not do it.
        end_jobs: Lets no further job start where requested changes end jobs, and ends those, right before the
            changes are made. Without --replace it refuses if there are any by then.
        release: Puts held partitions into service again, after the change or for one that is not made.
        lost: The hosts whose machines are gone and are made again.
    """

    recreate: bool = False
    end_jobs: Callable[[], None] = lambda: None
    release: Callable[[], object] = field(default=lambda: None, compare=False)
    lost: tuple[str, ...] = ()

    def begin(self, prepare: Callable[[], None]) -> None:
        """Prepare the changes, and then end the jobs. A failure puts held partitions into service again."""
        prepare()
        try:
            self.end_jobs()
        except BaseException:
            self.release()
            raise


class Hold:
    """The partitions that a change has out of service, until it is made or given up.

    Args:
        stack: The stack's name, for the command that opens them.

    Attributes:
        seen: The cluster's jobs at the last look.
    """

    def __init__(self, control: ClusterControl, stack: str, say: Callable[[str], None]) -> None:
        self._control = control
        self._stack = stack
        self._say = say
        self._partitions: list[str] = []
        self._tries = 0
        self._former = ""
        self._unknown = False
        self.seen: list[Job] = []

    def look(self) -> tuple[Mark | None, list[Job]]:
        """Return the mark of a command that was interrupted, and the cluster's jobs. This changes nothing.

        Raises:
            BusyError: The command is not interrupted: it works, on this machine or elsewhere.
            NotUpError, UserError: As for `ClusterControl.run`.
        """
        there, self.seen = self._control.look(self._say)
        closing.refuse_if_working(there, self._control.holder, self._stack)
        self._former = "" if there is None else there.mark.token
        return None if there is None else there.mark, self.seen

    def take(self, state: str, spared: Iterable[str] = ()) -> list[Job]:
        """Take all partitions but some out of service, and return the cluster's jobs.

        Raises:
            BusyError: Another command has come first.
            NotUpError, UserError: As for `ClusterControl.run`.
        """
        # A line that gets no answer may have been obeyed all the same.
        self._tries = 1
        self._partitions, present = self._control.hold(state, spared, self._former)
        self._tries = RELEASE_TRIES
        return present

    def release(self) -> None:
        """Put the partitions into service again, those of an interrupted command of ours, too."""
        if self._tries and self._control.release(tries=self._tries) is None and self._partitions:
            self._say(STAYS.format(", ".join(self._partitions), hint("up", self._stack)))
        self._tries = 0
        if self._unknown:
            self.open_later()

    def open_interrupted(self) -> bool:
        """Put into service what an interrupted command of ours has left out of it, and say so.

        Returns:
            Whether the cluster has answered.

        Raises:
            BusyError: As for `look`.
        """
        try:
            mark, _ = self.look()
        except closing.BusyError:
            raise
        except UserError:  # its controller may be gone, and come back with the mark
            self._unknown = True
            return False
        self._unknown = False
        if mark is None:
            return True
        opened = self._control.release(mark.token)
        if opened is None:
            return False
        self._former = ""
        if opened:
            self._say(f"{closing.interrupted(mark)}; jobs start there again")
        return True

    def open_later(self) -> None:
        """As `open_interrupted`, after a change, where who works is no reason to fail."""
        with contextlib.suppress(closing.BusyError):
            self.open_interrupted()


def check_changes(
    changes: Sequence[table.Change],
    partitions: Sequence[str],
    control: ClusterControl,
    say: Callable[[str], None],
    *,
    replace: bool,
    design: ClusterDesign,
) -> CheckedChanges:
    """Say what changes, and refuse what would end jobs or delete files, unless `replace` is set.

    It also refuses if accounts that Slurm is about to enforce would keep waiting jobs from ever starting.

    This changes nothing but what an interrupted command has left out of service. What is returned takes the
    partitions that a change concerns out of service, looks for jobs again, and ends them.

    Args:
        partitions: The partitions of the cluster that is up.
        replace: Make those changes too.
        design: The cluster as the stack file has it.

    Raises:
        BusyError: Another command works on the cluster.
        UserError: Exit 3; a change is refused.
    """
    command = hint("up", design.stack, "--replace")
    hold = Hold(control, design.stack, say)
    answers = hold.open_interrupted()
    if design.slurm.accounting and any(job.pending for job in hold.seen):
        control.check_accounts(design)
    for change in changes:
        say(change.line())
    if not replace:
        _keep_own_partitions(changes, partitions, control, say, command)
    if replace:
        for line in table.losses(changes):
            say(line)
    if not table.costly(changes):
        # A cluster that does not answer now may do so after the change.
        return CheckedChanges() if answers else CheckedChanges(release=hold.open_later)
    never = [change for change in changes if change.kind is Kind.NEVER]
    if replace and not never:
        return CheckedChanges(
            end_jobs=lambda: end_jobs_of(changes, partitions, control, hold, say), release=hold.release
        )

    def check(running: list[Job] | None) -> None:
        if (why := table.refusal(never or changes, running, command)) is not None:
            raise UserError(f"nothing was changed: {why}", EXIT_REFUSED, code=why.code)

    def hold_and_check() -> None:
        """Look again, because jobs may have begun since."""
        state, names = table.holds(never or changes)
        check(_jobs(lambda: hold.take(state, _spared(partitions, names)), say))

    check(_jobs(control.jobs, say))
    return CheckedChanges(end_jobs=hold_and_check, release=hold.release)


def _jobs(ask: Callable[[], list[Job]], say: Callable[[str], None]) -> list[Job] | None:
    """Return the jobs; `None` if the cluster does not answer."""
    try:
        return ask()
    except NotUpError:
        return []  # nobody could submit a job yet
    except closing.BusyError:
        raise
    except UserError as error:
        say(f"the cluster does not answer: {error}")
        return None


def _keep_own_partitions(
    changes: Sequence[table.Change],
    partitions: Sequence[str],
    control: ClusterControl,
    say: Callable[[str], None],
    command: str,
) -> None:
    """Refuse what would take a partition away that somebody has made with scontrol.

    Raises:
        UserError: Exit 3; with the partitions and the jobs in them.
    """
    try:
        lost = _lost_partitions(changes, partitions, control)
        if not lost:
            return
        within = [job for job in control.jobs() if not job.partitions.isdisjoint(lost)]
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
    changes: Sequence[table.Change], partitions: Sequence[str], control: ClusterControl
) -> dict[str, str]:
    """Return the partitions of people's that end with these changes, and how.

    Raises:
        NotUpError, UserError: As for `ClusterControl.run`.
    """
    added, removed = table.added_partitions(changes), table.removed_nodes(changes)
    if not added and not removed:
        return {}
    lost = {}
    for name, nodes in control.own_partitions(partitions).items():
        if name in added:
            lost[name] = "gets the nodes and options of the stack file's new one of this name"
        elif nodes and nodes <= removed:
            lost[name] = f"ends: it has only nodes that are removed ({fold(nodes)})"
    return lost


def _spared(partitions: Iterable[str], held: Iterable[str] | None) -> frozenset[str]:
    """Return the partitions that stay in service; `None` means that all are held."""
    return frozenset() if held is None else frozenset(partitions) - frozenset(held)


def end_jobs_of(
    changes: Sequence[table.Change],
    partitions: Sequence[str],
    control: ClusterControl,
    hold: Hold,
    say: Callable[[str], None],
) -> None:
    """Name the jobs that requested changes end, and give them time to save.

    A job that only loses nodes is requeued if it may be, and runs on the nodes that stay. The user asked for
    these changes explicitly, so no failure here prevents them.

    Args:
        partitions: The partitions of the cluster that is up.
    """
    state, names = table.holds(changes)
    try:
        lost = _lost_partitions(changes, partitions, control)
        present = hold.take(state, _spared(partitions, names))
    except NotUpError:
        return
    except closing.BusyError:
        raise
    except UserError as error:
        say(no_answer(error, CHANGED))
        return
    if lost:
        lines = [f"  partition {name} {loss}" for name, loss in lost.items()]
        say("\n".join(["these partitions were made with scontrol:", *lines]))
        emptied = lost.keys() - table.added_partitions(changes)
        changes = [*changes, *(table.removed_partition(name) for name in sorted(emptied))]
    hit = [job for job in present if any(change.costs(job) for change in changes)]
    waiting = [job for job in hit if job.pending]
    running = [job for job in hit if not job.pending]
    again = [job for job in running if table.may_run_again(changes, job)]
    if waiting:
        say("\n".join(["these jobs wait, and are cancelled:", *jobs.listed(waiting)]))
        _try(control, jobs.cancel_line(waiting, control.prefix), say)
    if running:
        if again:
            ids = ", ".join(job.id for job in again)
            say(f"queued again, unless they were submitted with --no-requeue: {ids}")
        others = [job for job in running if job not in again]
        line = jobs.cancel_or_requeue_line(others, again, control.prefix)
        end(control, running, say, f"{line}; {jobs.wait_line(END_SECONDS, running)}")


def _try(control: ClusterControl, line: str, say: Callable[[str], None]) -> None:
    try:
        control.ask(line, SECONDS)
    except UserError as error:
        say(no_answer(error, CHANGED))


def drain(
    control: ClusterControl,
    stack: str,
    say: Callable[[str], None],
    agree: Callable[[Sequence[Job]], None],
    *,
    gone: bool = False,
) -> None:
    """Ask for consent, prevent further jobs from starting before a destroy, and cancel the running ones.

    A cluster that does not answer is destroyed as well.

    Args:
        stack: The stack's name.
        agree: Is called with the jobs before anything is changed, and again with those that came since;
            raises UserError if somebody wants to keep them.
        gone: Whether the stack's checkout is gone, so that there is no `up` for it.

    Raises:
        BusyError: Another command works on the cluster.
        UnsureError: Jobs may be there that nobody sees; the partitions are as before.
        UserError: The one from `agree`; jobs start again then.
    """
    hold = Hold(control, stack, say)
    if (seen := _answer(hold.look, say)) is None:
        return
    mark, listed = seen
    present = [job for job in listed if not job.over]
    agree(present)
    if mark is not None:
        say(f"{closing.interrupted(mark)}: they stay so")
    try:
        if (taken := _answer(lambda: hold.take("DOWN"), say)) is None:
            return
        agreed = _agreed(control, present, taken, agree)
    except (closing.BusyError, jobs.UnsureError):
        raise  # nothing was closed
    except BaseException:
        hold.release()
        raise
    keep = "" if gone else f" (if you keep the cluster, `{hint('up', stack)}` lets them start again)"
    say(f"no further job starts{keep}")
    if running := [job for job in agreed if not (job.over or job.pending)]:
        end(control, running, say)


def _answer(ask: Callable[[], Answer], say: Callable[[str], None]) -> Answer | None:
    """Return what a cluster answers; `None` if there is none, or it does not answer, which is said.

    Raises:
        BusyError, UnsureError: A command works on the cluster; jobs may be there that nobody sees.
    """
    try:
        return ask()
    except NotUpError:
        return None
    except (closing.BusyError, jobs.UnsureError):
        raise
    except UserError as error:
        say(no_answer(error))
        return None


def _agreed(
    control: ClusterControl,
    agreed: Sequence[Job],
    present: list[Job],
    agree: Callable[[Sequence[Job]], None],
) -> list[Job]:
    """Ask for consent about jobs that came while somebody was asked, and return the jobs that there are now.

    Raises:
        UserError: The one from `agree`.
    """
    # A job array's tasks become jobs of their own as they start.
    asked = {jobs.number(job) for job in agreed}
    for _ in range(MOST_QUESTIONS):
        came = [job for job in present if not job.over and jobs.number(job) not in asked]
        if not came:
            break
        agree(came)
        asked |= {jobs.number(job) for job in came}
        try:
            present = control.jobs()
        except UserError:  # those that are known are ended
            break
    return present


def end(control: ClusterControl, running: Sequence[Job], say: Callable[[str], None], line: str = "") -> None:
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
    line = line or f"{jobs.cancel_line(running, control.prefix)}; {jobs.wait_line(END_SECONDS)}"
    numbers = {job.id for job in running}
    try:
        present = jobs.parse(control.ask(line, END_SECONDS + SECONDS))
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
