"""Finds the log files of the controller, of a node, or of a job.

Everything is looked up in files, so that it works without any running daemon. If Slurm answers, its facts are
shown as well.

Slurm's traps (docs/internals/slurm_traps.md): output-paths.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from node.benchmark import JOB_FILE, STATE_BYTES
from node.bootstrap.vm.clouds import local
from node.design.folders import Folders
from node.design.health import SCRIPTS
from node.design.model import Settings
from node.design.sites import LocalSite
from node.elastic import history
from node.logs.sources import BootReport, Explained, LogFile, Note, Source, is_earlier, started_wrongly
from node.logs.text import (
    UnreadableError,
    Wanted,
    about_jobs,
    about_node,
    of_others,
    on_node,
    open_log,
    printable,
    tail,
)
from node.slurm.control import Control, SlurmError
from node.slurm.hostlist import expand, fold, fold_numbers
from node.slurm.phases import (
    BOOT_FAIL,
    CANCELLED,
    DEADLINE,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PREEMPTED,
    TIMEOUT,
)
from node.slurm.reasons import cure, in_words
from node.slurm.states import JobState
from node.slurm.version import knows_last_digit
from node.system import foreign

# Finds the files that a batch job writes, from what Slurm knows of it.
#
# A user chooses the path, so it may lead to any file, and whoever reads it may be root. So a path comes with
# the job's user: only a file that belongs to this user is the job's output.

MOST_DIGITS = 10
"""The greatest width to which Slurm pads a number."""
NO_TASK = 0xFFFFFFFE
"""What slurmd writes as the index of a task where there is none (NO_VAL)."""
NO_PATH = ("", "(null)", "N/A")
"""What squeue tells where a job has no file of its own for errors: 24.11 writes (null)."""
_SYMBOL = re.compile(r"%(%|(\d*)([A-Za-z]))")


@dataclass(frozen=True, slots=True)
class Output:
    """One file of a job.

    Attributes:
        kind: "output" or "errors".
        path: The absolute path on the machines of the cluster.
        owner: The number of the job's user.
    """

    kind: str
    path: str
    owner: int


def is_batch(fields: Mapping[str, str]) -> bool:
    """Return whether a job has a script, and so files for what it prints.

    Args:
        fields: As `node.slurm.control.Control.outputs` returns them for a job.
    """
    return fields["batchflag"] not in ("0", "no", "NO")


def output_files(job: int, fields: Mapping[str, str], *, last_digit: bool = True) -> list[Output]:
    """Return a job's files, the output first.

    Args:
        fields: As for `is_batch`.
        last_digit: As for `output_path`.
    """
    user = fields["userid"]
    if not is_batch(fields) or not (user.isascii() and user.isdigit()):
        return []
    paths = (
        (kind, output_path(fields[name], job, fields, last_digit=last_digit))
        for kind, name in (("output", "stdout"), ("errors", "stderr"))
        if fields[name] not in NO_PATH
    )
    # Relative to a folder that is not known, or nothing at all.
    return [Output(kind, found, int(user)) for kind, found in paths if found.startswith("/")]


def output_path(pattern: str, job: int, fields: Mapping[str, str], *, last_digit: bool = True) -> str:
    """Return the path for a pattern of `sbatch --output`, as slurmd's fname.c makes it.

    squeue tells the pattern of a job that has one, without the job's own values. Up to 24.11 it adds the
    folder that the pattern is below.

    Args:
        pattern: The pattern, which may be relative to the job's folder.
        job: The job's number.
        fields: As for `is_batch`.
        last_digit: Whether this release fills in %b (`node.slurm.version.knows_last_digit`).

    Returns:
        The path, which is relative, or empty, only where Slurm tells neither a path nor a folder.
    """
    if fields["arraytaskid"].isdigit() and pattern == f"{fields['workdir']}/slurm-{job}.out":
        # Up to 24.05 squeue tells the default of a job that is in no array.
        return f"{fields['workdir']}/slurm-{fields['arrayjobid']}_{fields['arraytaskid']}.out"
    if not pattern or pattern.startswith("/"):
        return _filled_in(pattern, job, fields, last_digit=last_digit)
    folder = fields["workdir"]
    # A name in the pattern may begin with a slash, which makes no other folder of it.
    place = folder if folder.startswith("/") else "."
    return f"{place.rstrip('/')}/{_filled_in(pattern, job, fields, last_digit=last_digit)}"


def _filled_in(pattern: str, job: int, fields: Mapping[str, str], *, last_digit: bool) -> str:
    if "\\" in pattern:
        return pattern.replace("\\", "")
    array, task = fields["arrayjobid"], fields["arraytaskid"]
    in_array = array.isdigit() and task.isdigit()
    node = fields["batchhost"]
    index = int(task) if in_array else NO_TASK
    numbers = {"j": job, "J": job, "A": int(array) if in_array else job, "a": index, "n": 0, "t": 0}
    if in_array and last_digit:
        numbers["b"] = index % 10
    words = {"u": fields["username"], "x": fields["name"], "s": "batch"}
    if node not in ("", "n/a", "(null)"):
        words["N"] = node.partition(".")[0]

    def value(match: re.Match[str]) -> str:
        width, symbol = match[2], match[3]
        if match[1] == "%":
            return "%"
        if symbol in numbers:
            return f"{numbers[symbol]:0{min(int(width or 0), MOST_DIGITS)}d}"
        return words.get(symbol, match[0])

    return _SYMBOL.sub(value, pattern)


TMP = Path("/tmp")


def in_own_tmp(path: str, shared: Iterable[str]) -> Path | None:
    """Return where a file is in the /tmp of a process machine; `None` if all machines see it.

    Args:
        path: The file's absolute path on the machine.
        shared: The paths below /tmp that all machines see.
    """
    place = Path(os.path.normpath(path))
    if not place.is_relative_to(TMP) or any(place.is_relative_to(folder) for folder in shared):
        return None
    return place.relative_to(TMP)


# Slurm's facts on a job, in words.

LAUNCH_ERRORS = tuple(number & 0x7F for number in (4014, 4021, 4022))
"""The numbers of signals that stand for slurmd's errors of a job that could not start.

slurmd reports the error's number (slurm_errno.h: the environment, the files, the prolog) where a process's
wait status belongs, and Slurm takes its last seven bits for a signal. The reason does not tell: it is
JobLaunchFailure of all signals up to 22.05, and RaisedSignal of all from 23.02 on.
"""
REASONS_OF_SIGNALS = ("JobLaunchFailure", "RaisedSignal")


def could_not_start(job: JobState) -> bool:
    """Return whether a job ended because a node of its own could not start it."""
    return job.is_over and job.signal in LAUNCH_ERRORS and bool(job.nodes)


def facts(job: JobState) -> list[str]:
    """Return Slurm's facts on a job, in a few lines."""
    nodes = f" on {fold(job.nodes)}" if job.nodes else ""
    index = (job.array_task or "").partition("%")[0]
    tasks = f"task {index}" if index.isdigit() else f"tasks {index}"
    task = f" ({tasks} of array {job.array_job})" if job.array_job is not None else ""
    lines = [f"{job.name}{task}: {job.state.lower()}{nodes}, partition {job.partition}, user {job.user}"]
    if job.is_pending:
        lines.append(f"waits: {in_words(job.cause, cure(job))}")
    if job.restarts:
        lines.append(f"was queued again {'once' if job.restarts == 1 else f'{job.restarts} times'}")
    if job.is_over and _never_ran(job):
        # The reason of a job that was cancelled is the one that it waited for.
        ended = job.state != CANCELLED and job.reason not in ("None", *REASONS_OF_SIGNALS)
        lines.append(
            ("it did not run again" if job.restarts else "it never ran")
            + (f" ({in_words(job.reason)})" if ended else "")
        )
    elif could_not_start(job):
        lines.append("its node could not start it: slurmd of the node says why")
    elif job.is_over:
        # The reason of a signal says no more than the signal.
        told = job.explanation or job.reason
        says_more = told.partition(":")[0] not in ("None", *REASONS_OF_SIGNALS)
        lines.append(f"{_ending(job)}{f' ({told})' if says_more else ''}")
    return lines


def _never_ran(job: JobState) -> bool:
    """Return whether a job ended while it waited. Slurm gives some of these signal 1, which nobody sent."""
    return job.state in NEVER_RAN and not job.nodes and not job.exit_code and job.signal in (0, 1)


NEVER_RAN = (CANCELLED, DEADLINE, FAILED)
"""The states of jobs that may have ended before they began."""
OF_SLURMS = {
    NODE_FAIL: "its node was lost",
    BOOT_FAIL: "its nodes did not start",
    TIMEOUT: "it was ended at its time limit",
    DEADLINE: "it was ended at its deadline",
    PREEMPTED: "it had to make room for another job",
    OUT_OF_MEMORY: "it used more memory than it had asked for",
}
"""The states of jobs that Slurm ended, whose exit code and signal it makes up -> what happened."""


def _ending(job: JobState) -> str:
    if job.state in OF_SLURMS:
        return OF_SLURMS[job.state]
    if not job.signal and not job.exit_code and job.state == CANCELLED:
        return "cancelled while its nodes started, or it ended with exit code 0 when told to"
    if not job.signal:
        return f"exit code {job.exit_code}"
    try:
        return f"ended by signal {job.signal} ({signal.Signals(job.signal).name})"
    except ValueError:
        return f"ended by signal {job.signal}"


# What the slurmds of a job's nodes say of the job, which is why it could not even start there.

MOST_NODES = 4
"""The greatest number of a job's nodes whose slurmds are asked for it."""


def logs_here(log: Path, jobs: Sequence[JobState]) -> list[Source]:
    """Return the lines on jobs in the logs of their nodes' slurmds, which are on this machine.

    Args:
        log: The folder of logs.
        jobs: The jobs.
    """
    found: list[Source] = []
    for node in _nodes(jobs)[:MOST_NODES]:
        path = log / f"slurmd-{node}.log"
        heading = f"slurmd of {node}, on this job"
        try:
            owner = path.stat().st_uid
        except OSError:
            continue
        if LogFile(heading, path, None, of_others(owner)).last(1):
            why = "others' jobs ran there too, and what they wrote may look like lines on this job"
            found.append(Note(heading, [f"(not shown: {why}: {path})"]))
            continue
        lines = LogFile(heading, path, None, on_node(job.id for job in jobs))
        found += [lines, *started_wrongly(LogFile(heading, path, None, on_node(job.id for job in jobs)))]
    return found


def logs_on_nodes(jobs: Sequence[JobState], log: str, stack: str) -> list[Source]:
    """Return where the lines are that say why jobs could not start, if the nodes have logs of their own.

    Args:
        log: The path of slurmd's log on a node.
        stack: The stack's name.
    """
    failed = [job for job in jobs if could_not_start(job)]
    if not failed:
        return []
    # The host of a job without a script is what the submitting program sends, which may be anything.
    job = failed[-1]
    node = job.batch_host if job.batch_host in job.nodes else job.nodes[0]
    words = f"--nodelist={node} grep -F '[{job.id}.' {log}"
    show = f"./cluster exec --stack {stack} -- srun {words}"
    return [Note("slurmd, on this job", [f"(it is on {fold(job.nodes)}, while it is up: `{show}`)"])]


def _nodes(jobs: Sequence[JobState]) -> list[str]:
    """Return the jobs' nodes in numeric order."""
    return expand(fold({node for job in jobs for node in job.nodes}))


SLURM_SECONDS = 5.0
CONTROLLER = "controller"
NOT_WRITTEN = "the job has not written anything yet, or it was removed"
ELSEWHERE = f"{NOT_WRITTEN}; or its folder is not a shared one, and is on its node alone"
MOST_TASKS = 6
"""The greatest number of array tasks that are described one by one."""
NODE_BEFORE = "no machine has started for this node yet"
_NUMBER = re.compile(rb"[0-9]{1,10}")
_JOB = re.compile(r"(\d+)(?:_(\d+))?")


class UnknownNameError(Exception):
    """No log has this name. The text lists the names that exist."""


def change_lines(changes: Iterable[history.Change]) -> Iterator[str]:
    """Yield a line for each change of a node: when, Slurm's words, the machine, and a new reason."""
    reason = None
    for change in changes:
        new = "" if change.reason in (None, reason) else change.reason
        moment = time.strftime("%FT%TZ", time.gmtime(change.at))
        yield printable(f"{moment}  {change.state.lower()}, machine {change.machine}  {new}".rstrip())
        reason = change.reason


@dataclass(frozen=True, slots=True)
class Cluster:
    """The logs of a cluster that can be read on this machine."""

    settings: Settings

    @property
    def folders(self) -> Folders:
        return Folders(self.settings)

    @property
    def log(self) -> Path:
        return Path(str(self.folders.log))

    @property
    def bench(self) -> Path:
        return Path(self.settings.site.shared) / "bench"

    @property
    def control(self) -> Control:
        """The client of Slurm's commands.

        Raises:
            SlurmError: The controller has not written slurm.conf yet.
        """
        if not Path(str(self.folders.slurm_conf)).exists():
            # Without this file Slurm's clients would look for a controller by DNS.
            raise SlurmError((), None, f"the controller has not made {self.folders.slurm_conf} yet")
        return Control(self.folders.slurm_conf, SLURM_SECONDS)

    def report(self, host: str) -> Path:
        """Return the path of the boot report of a machine that shares its files with this machine."""
        lib = Path(str(self.folders.lib))
        return lib / "boot" / f"{host}.json" if self.folders.process else lib / "boot.json"

    def sources(self, what: str) -> list[Source]:
        """Return the logs of `controller`, of a node, or of a job.

        Raises:
            UnknownNameError: There is no node or job of that name.
        """
        if what == CONTROLLER:
            return self.of_controller()
        if _JOB.fullmatch(what):
            return self.of_job(what)
        if self.settings.design.partition_of(what) is not None or what in self.booted():
            return self.of_node(what)
        raise UnknownNameError(f"no node or job is called {what!r}. {self.known()}")

    def known(self) -> str:
        """Return a sentence that lists the names of which there are logs."""
        nodes = fold(self.booted())
        text = f"Nodes: {','.join(fold(p.nodes()) for p in self.settings.design.partitions)}"
        if nodes:
            text += f" (up so far: {nodes})"
        elif self._knows_boots():
            text += " (none was up so far)"
        known_jobs, silent = self._jobs()
        jobs = fold_numbers([*known_jobs, *self._benchmarks()])
        text += f". Jobs: {jobs or 'none known'}"
        text += f" (Slurm does not answer: {silent})" if silent else ""
        return f"{text}. The rest is `controller`."

    def booted(self) -> list[str]:
        """Return the nodes whose machines have a boot log or a boot report that can be read here."""
        found = {path.name[len("boot-") : -len(".log")] for path in self.log.glob("boot-*.log")}
        if not self.folders.process and self._knows_boots():
            found |= {path.stem for path in Path(local.BUCKET).glob("boot/*.json")}
        return sorted(found - {CONTROLLER, *(host.name for host in self.settings.design.hosts)})

    def _knows_boots(self) -> bool:
        """Return whether every machine that has booted has left something that can be read here."""
        return self.settings.design.provider == "local"

    def _jobs(self) -> tuple[dict[int, JobState], str]:
        """Return Slurm's jobs, and the error if Slurm does not answer."""
        try:
            return self.control.jobs(), ""
        except SlurmError as error:
            return {}, error.stderr or str(error)
        except ValueError as error:
            return {}, str(error)

    def _benchmarks(self) -> dict[int, list[Path]]:
        """Return job -> the folders of benchmark runs with its files; a failed job's were moved aside."""
        found: dict[int, list[Path]] = {}
        for note in self.bench.glob(f"*/*/{JOB_FILE}"):
            # Any user may have put anything there.
            with suppress(foreign.UnusableError, OSError):
                text = foreign.read(note, STATE_BYTES).data.strip()
                if _NUMBER.fullmatch(text):
                    found.setdefault(int(text), []).append(note.parent)
        for folder in self.bench.glob("*/*/job-*"):
            if _NUMBER.fullmatch(text := os.fsencode(folder.name.removeprefix("job-"))):
                found.setdefault(int(text), []).append(folder)
        return found

    def of_controller(self) -> list[Source]:
        before = "the controller's boot has not come that far"
        files: list[Source] = [BootReport(self.report(CONTROLLER), "the controller has not started yet")]
        cloud = self.settings.site.cloud
        if isinstance(cloud, LocalSite) and cloud.socket:
            files.append(
                LogFile("local cloud", Path(cloud.socket).with_name("agent.log"), "it was never started")
            )
        files.append(LogFile("boot", self.log / f"boot-{CONTROLLER}.log", before))
        files += self._hooks(CONTROLLER)
        files.append(LogFile("munged", self.log / "munged.out", before))
        files.append(LogFile("elastic daemon", self.log / "elastic.log", before))
        files.append(self._keeper("slurmctld", "slurmctld"))
        files.append(LogFile("slurmctld", self.log / "slurmctld.log", before))
        return files

    def _hooks(self, host: str) -> list[Source]:
        return [LogFile("hook", path, None) for path in sorted(self.log.glob(f"hook-*-{host}.log"))]

    def _job_scripts(self, node: str) -> list[Source]:
        """Return what the user's last prolog and epilog printed on a node."""
        return [LogFile(name, path, None) for name in SCRIPTS for path in self.log.glob(f"{name}-{node}.log")]

    def _keeper(self, daemon: str, name: str) -> LogFile:
        """Return a daemon's output without the lines of its log file: how it ended and was restarted."""

        def new(line: str) -> bool:
            return not line.startswith(f"{daemon}: ") or "fatal" in line

        return LogFile(f"{daemon}'s end", self.log / f"{name}.out", None, new)

    def of_node(self, node: str) -> list[Source]:
        about = about_node(node)
        files: list[Source] = [self._node_state(node), *self._history(node)]
        if self.folders.process:
            files.append(BootReport(self.report(node), NODE_BEFORE, self._asked_for(node)))
            files.append(LogFile("boot", self.log / f"boot-{node}.log", None))
            files += self._hooks(node)
            files.append(self._keeper("slurmd", f"slurmd-{node}"))
            files.append(LogFile("slurmd", self.log / f"slurmd-{node}.log", "no slurmd has started here yet"))
            files += self._job_scripts(node)
        else:
            where = f"srun --nodelist={node} tail {self.log}/slurmd.log"
            if self.settings.design.provider == "local":
                report = Path(local.BUCKET) / "boot" / f"{node}.json"
                files.append(BootReport(report, NODE_BEFORE, self._asked_for(node)))
            show = f"./cluster exec --stack {self.settings.design.stack} -- {where}"
            files.append(Note(f"{node}'s own logs", [f"(they are on {node}: `{show}`)"]))
        never = "the controller has not started yet"
        files.append(LogFile("elastic daemon, on this node", self.log / "elastic.log", never, about))
        files.append(LogFile("slurmctld, on this node", self.log / "slurmctld.log", never, about))
        return files

    def _asked_for(self, node: str) -> float | None:
        """Return when Slurm last asked for a node, since the epoch; `None` if the log does not say."""
        about = about_node(node)
        resumed = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) resume ")
        line = self._last_line("elastic.log", lambda line: resumed.match(line) is not None and about(line))
        return None if line is None else datetime.fromisoformat(line.split()[0]).timestamp()

    def _last_line(self, log: str, wanted: Wanted) -> str | None:
        """Return the last line of a log that a filter wants; `None` if there is none that can be read."""
        try:
            descriptor = open_log(self.log / log)
        except (FileNotFoundError, UnreadableError):
            return None
        try:
            lines, _ = tail(descriptor, 1, wanted)
        finally:
            os.close(descriptor)
        return lines[0] if lines else None

    def _node_state(self, node: str) -> Note:
        try:
            state = self.control.nodes().get(node)
        except (SlurmError, ValueError) as error:
            return Note(f"Slurm on {node}", [f"(does not answer: {error})"])
        if state is None:
            return Note(
                f"Slurm on {node}", ["(Slurm does not know this node: the stack file no longer has it)"]
            )
        words = "+".join([state.base, *sorted(state.flags)]).lower()
        return Note(f"Slurm on {node}", [words, *([f"reason: {state.reason}"] if state.reason else [])])

    def _history(self, node: str) -> Iterable[Source]:
        """Yield the node's last changes of state, if it has ever been up and they can be read."""
        with suppress(OSError, foreign.UnusableError):
            if changes := history.read(Path(str(self.folders.elastic / history.FILE)), node):
                yield Note(f"{node}'s last changes of state", list(change_lines(changes)))

    def of_job(self, name: str) -> list[Source]:
        match = _JOB.fullmatch(name)
        assert match is not None
        jobs, silent = self._jobs()
        tasks = sorted((job for job in jobs.values() if _is(job, int(match[1]), match[2])), key=_place)
        since = self._submitted(tasks)
        ids = sorted({job.id for job in tasks} | ({int(match[1])} if match[2] is None else set()))
        aside = self._benchmarks()
        folders = [
            folder
            for job in ids
            for folder in aside.get(job, [])
            if not (note := folder / JOB_FILE).exists() or not is_earlier(note.stat(), since)
        ]
        log = LogFile(
            "slurmctld, on this job",
            self.log / "slurmctld.log",
            "the controller has not started yet",
            about_jobs(ids),
        )
        seen = log.last(1) if log.path.exists() else []
        if not tasks and not folders and (not seen or seen == ["(nothing about it)"]):
            raise UnknownNameError(f"no job has the number {name}. {self.known()}")
        about = self._state_of(tasks, silent, folders)
        elastic = LogFile(
            "elastic daemon, on this job",
            self.log / "elastic.log",
            "the controller has not started yet",
            lambda line: any(re.search(rf"\bjob {job}\b", line) is not None for job in ids),
        )
        return [
            Note(f"job {name}", about),
            log,
            elastic,
            *self._on_nodes(tasks[-MOST_TASKS:]),
            *self._outputs(name, tasks, folders, since),
        ]

    def _on_nodes(self, jobs: list[JobState]) -> list[Source]:
        if self.folders.process:
            return logs_here(self.log, jobs)
        return logs_on_nodes(jobs, f"{self.log}/slurmd.log", self.settings.design.stack)

    def _state_of(self, jobs: list[JobState], silent: str, folders: list[Path]) -> list[str]:
        if jobs:
            shown = jobs[-MOST_TASKS:]
            lines = [line for job in shown for line in facts(job)]
            if len(jobs) > MOST_TASKS:
                states = Counter(job.state.lower() for job in jobs)
                summary = ", ".join(f"{count} {state}" for state, count in states.most_common())
                lines.insert(0, f"{len(jobs)} tasks ({summary}); these are the last:")
            return lines
        if silent:
            return [f"(Slurm does not answer: {silent})"]
        forgot = "Slurm has forgotten it: it keeps a job for five minutes after its end"
        return [f"({forgot})", *(f"run in {folder}" for folder in folders)]

    def _submitted(self, jobs: list[JobState]) -> float | None:
        """Return when a job or all tasks of an array were submitted, in seconds since the epoch.

        `None` means that nothing tells it.
        """
        times = [job.submit_time for job in jobs if not job.restarts and job.submit_time is not None]
        if times or not jobs:
            return min(times, default=None)
        # A requeue gives the job a new time of submission, so the first one is taken from slurmctld's log.
        number = jobs[0].array_job or jobs[0].het_job or jobs[0].id
        first = re.compile(rf"\[([^]]+)\] _slurm_rpc_submit_batch\w*: JobId={number}\b")
        line = self._last_line("slurmctld.log", lambda line: first.match(line) is not None)
        match = first.match(line or "")
        try:
            found = datetime.fromisoformat(match[1]).timestamp() if match else None
        except ValueError:
            return None
        # slurmctld may have another time zone than this process. Then its times do not help.
        requeued = jobs[0].submit_time
        return None if found is None or requeued is None or found > requeued else found

    def _outputs(
        self, name: str, jobs: list[JobState], folders: list[Path], since: float | None
    ) -> Iterable[Source]:
        """Return the output files of a job that was submitted at a time, as far as that is known."""
        outputs: dict[Path, tuple[str, int]] = {}
        ended: dict[Path, str] = {}
        nowhere = f"its script says by --output; by default slurm-{name}.out where it was submitted"
        # For an array, only the last tasks are shown.
        for number, fields in sorted(self._written_by([job.id for job in jobs[-MOST_TASKS:]]).items()):
            if not is_batch(fields):
                nowhere = "it has none: srun and salloc write to the terminal that they were called from"
            for file in output_files(number, fields, last_digit=self.knows_last_digit(fields)):
                # A run that was submitted again writes to the same path. The old output was moved aside.
                if any(folder.parent == Path(file.path).parent for folder in folders):
                    continue
                path, machine = self.place(file.path, fields["batchhost"])
                outputs.setdefault(path, (file.kind, file.owner))
                if machine is not None and not machine.exists():
                    ended[path] = f"it was in the /tmp of {machine.name}, which ended with that machine"
        for folder in folders:
            for path in sorted(folder.glob("out-*.txt")):
                outputs.setdefault(path, ("output", folder.lstat().st_uid))
        if outputs.pop(Path("/dev/null"), None) is not None:
            nowhere = "it goes to /dev/null, which keeps nothing"
        if not outputs:
            yield Note("output", [f"({nowhere})"])
        for path, (kind, owner) in outputs.items():
            missing = ended.get(path, NOT_WRITTEN if self.folders.process else ELSEWHERE)
            yield LogFile(kind, path, missing, since=since, owner=owner)
        yield Explained(
            LogFile(kind, path, None, since=since, owner=owner) for path, (kind, owner) in outputs.items()
        )

    def place(self, path: str, node: str) -> tuple[Path, Path | None]:
        """Return where a job's file is on this machine.

        Returns:
            Its path, and the folder that is the node's /tmp if the file is in it.
        """
        if self.folders.process and self.settings.design.partition_of(node) is not None:
            with suppress(OSError, ValueError):  # no machine has a /tmp of its own
                shared = foreign.record(Path(self.folders.shared_in_tmp))
                if (below := in_own_tmp(path, shared)) is not None:
                    tmp = Path(self.folders.temporary(node))
                    return tmp / below, tmp
        return Path(path), None

    def knows_last_digit(self, fields: Mapping[str, str]) -> bool:
        """Return whether this release fills in %b, which only few ask for."""
        patterns = fields["stdout"] + fields["stderr"]
        if all(match[3] != "b" for match in _SYMBOL.finditer(patterns)):
            return True
        try:
            return knows_last_digit(self.control.run("squeue", "--version"))
        except SlurmError:
            return True

    def _written_by(self, jobs: list[int]) -> dict[int, dict[str, str]]:
        """Return where jobs write, by id. It is empty if Slurm does not answer or does not know the jobs."""
        try:
            return self.control.outputs(jobs)
        except SlurmError:
            return {}


def _is(job: JobState, number: int, task: str | None) -> bool:
    if task is not None:
        return job.array_job == number and job.array_task == task
    return number in (job.id, job.array_job, job.het_job)


def _place(job: JobState) -> tuple[int, int, int]:
    """Return a key that puts the tasks of an array into their order.

    The last one of them has the array's id.
    """
    first = re.match(r"\d+", job.array_task or "")
    return (job.array_job or job.het_job or job.id, int(first[0]) if first else 0, job.id)
