"""Finds the log files of the controller, of a node, or of a job.

Everything is looked up in files, so that it works without any running daemon. If Slurm answers, its facts are
shown as well.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from node.logs.explanations import Explained
from node.logs.filters import about_jobs, about_node
from node.logs.job_facts import facts
from node.logs.job_output import SYMBOL, in_own_tmp, is_batch, output_files
from node.logs.slurmd_lines import logs_here, logs_on_nodes
from node.logs.sources import BootReport, LogFile, Note, Source, is_earlier
from node.logs.text import UnreadableError, Wanted, open_log, printable, tail
from node.slurm.control import Control, SlurmError
from node.slurm.hostlist import fold, fold_numbers
from node.slurm.states import JobState
from node.slurm.version import knows_last_digit
from node.system import foreign

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
        nodes = {path.name[len("boot-") : -len(".log")] for path in self.log.glob("boot-*.log")}
        if not self.folders.process and self._knows_boots():
            nodes |= {path.stem for path in Path(local.BUCKET).glob("boot/*.json")}
        return sorted(nodes - {CONTROLLER, *(host.name for host in self.settings.design.hosts)})

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
        runs: dict[int, list[Path]] = {}
        for note in self.bench.glob(f"*/*/{JOB_FILE}"):
            # Any user may have put anything there.
            with suppress(foreign.UnusableError, OSError):
                text = foreign.read(note, STATE_BYTES).data.strip()
                if _NUMBER.fullmatch(text):
                    runs.setdefault(int(text), []).append(note.parent)
        for folder in self.bench.glob("*/*/job-*"):
            if _NUMBER.fullmatch(text := os.fsencode(folder.name.removeprefix("job-"))):
                runs.setdefault(int(text), []).append(folder)
        return runs

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
            submitted = datetime.fromisoformat(match[1]).timestamp() if match else None
        except ValueError:
            return None
        # slurmctld may have another time zone than this process. Then its times do not help.
        requeued = jobs[0].submit_time
        return None if submitted is None or requeued is None or submitted > requeued else submitted

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
        if all(match[3] != "b" for match in SYMBOL.finditer(patterns)):
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
