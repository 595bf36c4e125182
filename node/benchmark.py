"""A benchmark run on the login machine: an idempotent submit, cancel, and the run's status.

The name of a run's folder is a digest of its content (`<shared>/bench/<workload digest>/<run digest>`). So
the same request is always the same run, however often it is made and over which connection.

Every user may make folders there, and knows the names. So a run is one's own only if its folder is: another
user's is shown as that user's, and whatever it holds is read as what a stranger has written.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from node.design.folders import Folders
from node.design.model import Settings
from node.slurm import environment
from node.slurm.control import Slurm, SlurmDown, is_unanswered
from node.slurm.hostlist import fold
from node.slurm.states import JobState
from node.system import files, foreign, locks, subprocesses

Jobs = Mapping[int, JobState]

SCRIPT = "run_keras"
MARK = "slurm-stacks:"
"""The prefix of the comment of a benchmark's job. The run's folder follows."""
JOB_FILE = "jobid"
RESULT_FILE = "result.json"
LABEL_FILE = "sweep.json"
"""What a run of a sweep is. It is there from before the submit until the user was told how the run ended."""
PROGRESS_FILE = "progress.json"
LINES_FILE = "progress.jsonl"
"""What a user's program says of itself, an object a line; the last one counts."""
WORK_FOLDER = "work"
"""The folder in which a user's program starts."""
TAIL_LINES = 15
TAIL_BYTES = 1 << 16
TAIL_FILES = 20
"""The most files of output whose ends are shown."""
RESULT_BYTES = 8 << 20
"""The most bytes of a result that are read: the longest valid one is shorter."""
STATE_BYTES = 1 << 16
"""The most bytes that are read of a file with a state or a number."""
SCALARS = (str, int, float, bool)


class Run:
    """A benchmark run in its folder.

    Args:
        folder: The run's folder, relative to `bench` in the shared folder.
    """

    def __init__(self, settings: Settings, control: Slurm, folder: str) -> None:
        self._settings = settings
        self._control = control
        self._name = folder
        self.folder = Path(settings.site.shared) / "bench" / folder

    def submit(self, script: str | None, *, again: bool = True, after: Sequence[int] = ()) -> int:
        """Return the run's job. Submits a new one if no job waits, runs or has a result.

        Args:
            script: The batch script. `None`: the one that the run was prepared with (`prepare`).
            again: Whether to submit a new job if the last one ended without a result.
            after: Jobs that a new job waits for, whether they succeed or fail. Slurm may have forgotten them.

        Raises:
            SlurmDown: The controller does not answer. The same call may work later.
            RuntimeError: sbatch refused the job; the message is sbatch's. Or the run belongs to another user
                and has failed, or its folder is in one of another user. Or it was prepared, and is no more.
        """
        if not self._is_own():
            return self._of_another(again)
        self._check_parent()
        with self._locked() as lock:
            if lock is None:  # Another user has made the folder since.
                return self._of_another(again)
            jobs = self._control.jobs()
            job = self._job_id(jobs)
            if job is not None:
                if not again or self._alive(job, jobs) or (self.folder / RESULT_FILE).exists():
                    self._note(job)
                    return job
                self._put_away(job)
            if script is not None:
                (self.folder / SCRIPT).write_text(script)
            elif not self.prepared:
                raise RuntimeError(f"{self.folder} waits no longer to be submitted: its sweep has ended")
            job = self._sbatch([number for number in after if number in jobs], lock)
            self._note(job)
            return job

    def prepare(self, script: str, label: Any) -> None:
        """Write the run's script and label, so that `submit` needs nothing else.

        Args:
            label: JSON that says what the run is to whoever finds it; it is kept until `close`.

        Raises:
            RuntimeError: The run belongs to another user, or its folder is in one of another user.
        """
        self._check_parent()
        with self._locked() as lock:
            if lock is None:
                raise RuntimeError(f"{self.folder} is another user's run ({self.owner})")
            (self.folder / SCRIPT).write_text(script)
            files.write(self.folder / LABEL_FILE, json.dumps(label).encode())

    def close(self) -> None:
        """Remove the label: no job is submitted for the run from here on. Repeated calls do nothing."""
        with suppress(FileNotFoundError), foreign.folder(self.folder) as handle:
            if os.fstat(handle).st_uid == os.geteuid():
                with locks.locked(Path(".lock"), folder=handle):
                    (self.folder / LABEL_FILE).unlink(missing_ok=True)

    @property
    def prepared(self) -> bool:
        """Whether the run has a label, which is this user's own."""
        return self._is_own() and (self.folder / LABEL_FILE).is_file()

    @property
    def label(self) -> Any:
        """The run's label; `None` if there is none, or it cannot be used."""
        return _read(self.folder / LABEL_FILE) if self._is_own() else None

    def _check_parent(self) -> None:
        """Refuse to use a folder whose owner could exchange what is in it."""
        for parent in (self.folder.parent.parent, self.folder.parent):
            if not foreign.is_trusted(_owner(parent)) or parent.is_symlink():
                raise RuntimeError(
                    f"{parent} belongs to another user, who could exchange what runs there as you: "
                    "have it removed, or have an administrator of the cluster run the same benchmark"
                )

    def _is_own(self) -> bool:
        """Return whether the run's folder is this user's own, or not there yet."""
        return _owner(self.folder) in (None, os.geteuid())

    @property
    def owner(self) -> str | None:
        """The name of the user who has made the run; `None` if it is this user's own, or not there yet."""
        user = _owner(self.folder)
        return None if user in (None, os.geteuid()) else foreign.name(user)

    def _of_another(self, again: bool) -> int:
        """Return the job of a run that another user submitted.

        The same request is the same run for all users.
        """
        jobs = self._control.jobs()
        job = self._job_id(jobs)
        if job is not None and (not again or self._alive(job, jobs) or (self.folder / RESULT_FILE).exists()):
            return job
        raise RuntimeError(
            f"{self.folder} is another user's run ({self.owner}) and has no result: only that user can "
            "submit it again. Change a value of the benchmark (epochs, seed, …) for a run of your own"
        )

    def cancel(self) -> int | None:
        """Cancel the run's job if it has not ended, and return its id."""
        job = self.job(self._control.jobs())
        if job is not None:
            self._control.cancel([job])
        return job

    def show(self, jobs: Jobs | None = None) -> dict[str, Any]:
        """Return the run's status: Slurm's job, the training's progress, the result, and the output's end.

        `owner` names the user whose run it is if that is another one, and is null for one's own.

        Args:
            jobs: Slurm's recent answer, so that many runs need one query only. `None` means that Slurm is
                asked now.
        """
        # Slurm is asked before the files are read: a job that has ended by then has written all of them.
        jobs = self._control.jobs() if jobs is None else jobs
        job = self._job_id(jobs)
        result, owner, problems = self._result()
        state = self._state(job, jobs)
        alive = state is not None and not state.is_over
        return {
            "folder": str(self.folder),
            "job": None
            if job is None
            else {
                "id": job,
                "state": state.state if state else "GONE",
                "nodes": fold(state.nodes) if state else "",
                "user": state.user if state else "",
                "partition": state.partition if state else "",
                "cause": state.cause if state else None,
                "alive": alive,
            },
            "owner": owner,
            "progress": self._progress(),
            "result": result,
            "tail": [*self._tail(), *problems],
        }

    def job(self, jobs: Jobs) -> int | None:
        """Return the id of the run's job. `None` means that there is none, or that it has ended."""
        job = self._job_id(jobs)
        return job if job is not None and self._alive(job, jobs) else None

    def _result(self) -> tuple[Any, str | None, list[str]]:
        """Return the result, the name of another user whose it is, and why it is of no use.

        The owner is that of the open files, which nobody can exchange.
        """
        try:
            with foreign.folder(self.folder) as handle:
                by = os.fstat(handle).st_uid
                parsed: Any = None
                problems: list[str] = []
                try:
                    content = foreign.read(Path(RESULT_FILE), RESULT_BYTES, handle)
                    by = content.owner if by == os.geteuid() else by
                    parsed = foreign.parse(content.data)
                except FileNotFoundError:
                    pass
                except (foreign.UnusableError, OSError, ValueError) as error:
                    problems = [f"({self.folder / RESULT_FILE} cannot be used: {error})"]
        except FileNotFoundError:
            return None, None, []
        except (foreign.UnusableError, OSError) as error:
            return None, self.owner, [f"({self.folder} cannot be used: {error})"]
        return parsed, None if by == os.geteuid() else foreign.name(by), problems

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Hold the lock of the run's folder, which is made. Gives `None` if it is another user's."""
        self.folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o755)
        # Somebody may have made either of them a moment ago.
        self._check_parent()
        try:
            with foreign.folder(self.folder) as handle:
                if os.fstat(handle).st_uid != os.geteuid():
                    yield None
                    return
                # From here on nobody else can exchange what is in the folder, nor the folder itself.
                with locks.locked(Path(".lock"), folder=handle) as lock:
                    yield lock
        except foreign.UnusableError as error:
            raise RuntimeError(f"{error}: remove it, and run the command again") from None

    def _job_id(self, jobs: Jobs) -> int | None:
        """Return the id from the run's folder, or from Slurm if a submit was interrupted before."""
        try:
            text = foreign.read(self.folder / JOB_FILE, STATE_BYTES).data.strip()
        except FileNotFoundError:
            active = [job for job in jobs if self._state(job, jobs) and not self._attic(job).exists()]
            return max(active, default=None)
        except (foreign.UnusableError, OSError):
            text = b""
        if not _JOB.fullmatch(text):
            if not self._is_own():
                return None
            raise RuntimeError(
                f"{self.folder / JOB_FILE} holds no number of a job: remove {self.folder}, or change a value "
                "of the benchmark (epochs, seed, …) for another run"
            )
        return int(text)

    def _state(self, job: int | None, jobs: Jobs) -> JobState | None:
        """Return the state of a job.

        It is also `None` if the id now belongs to a different job: storage may outlive a cluster, and a new
        cluster counts from 1 again. A comment can be anybody's, so the job's user counts too.
        """
        state = jobs.get(job) if job is not None else None
        if state is None or state.comment != self._comment:
            return None
        user = _owner(self.folder)
        user = os.geteuid() if user is None else user
        return state if state.user in (foreign.name(user), str(user)) else None

    @property
    def _comment(self) -> str:
        return f"{MARK}{self._name}"

    def _alive(self, job: int, jobs: Jobs) -> bool:
        state = self._state(job, jobs)
        return state is not None and not state.is_over

    def _note(self, job: int) -> None:
        files.write(self.folder / JOB_FILE, f"{job}\n".encode())

    def _attic(self, job: int) -> Path:
        return self.folder / f"job-{job}"

    def _put_away(self, job: int) -> None:
        """Move a failed job's files aside. The file with the id comes last: it marks the end of the move."""
        self._attic(job).mkdir(exist_ok=True)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == JOB_FILE):
            if (path.is_file() or path.name == WORK_FOLDER) and path.name != ".lock":
                path.replace(self._attic(job) / path.name)

    def _sbatch(self, after: Sequence[int], lock: int) -> int:
        # A job inherits its submitter's environment. A fixed environment makes all runs equal.
        env = environment.of_submitter(
            Folders(self._settings).slurm_conf,
            home=os.environ.get("HOME", "/"),
            user=os.environ.get("USER", self._settings.site.user),
            SLURM_STACKS_SUBMITTED=f"{time.time():.3f}",
        )
        options = ["--parsable", f"--comment={self._comment}"]
        if after:
            options.append(f"--dependency=afterany:{':'.join(map(str, after))}")
        # sbatch holds the lock: if this process is killed, the next submit waits for sbatch's end.
        command = ["/usr/bin/sbatch", *options, SCRIPT]
        ended = subprocesses.run(command, env, folder=self.folder, handles=[lock])
        if ended.status:
            if is_unanswered(ended.errors):
                raise SlurmDown(["sbatch"], ended.status, ended.errors)
            raise RuntimeError(ended.errors.strip() or f"sbatch: exit status {ended.status}")
        return int(ended.output.strip().split(";")[0])

    def _progress(self) -> Any:
        """Return the state that the batch script or the training has written.

        For a user's program it has `values`: what the program has printed last.
        """
        state = _read(self.folder / PROGRESS_FILE)
        lines = self.folder / LINES_FILE
        if isinstance(state, dict) and "script" in state and lines.exists():
            return {**state, "values": _last_object(lines)}
        return state

    def _tail(self) -> list[str]:
        lines: list[str] = []
        for path in sorted(self.folder.glob("out-*.txt"))[:TAIL_FILES]:
            lines += _end(path)[-TAIL_LINES:]
        return lines


_JOB = re.compile(rb"[0-9]{1,10}")
_owner = foreign.owner


def _end(path: Path) -> list[str]:
    """Return the last lines of a file, which may be long and is never read as a whole."""
    try:
        return foreign.end(path, TAIL_BYTES).decode(errors="replace").splitlines()
    except (foreign.UnusableError, OSError) as error:
        return [f"({error})"]


def _last_object(path: Path) -> dict[str, Any] | None:
    """Return the last line that is a JSON object of numbers and texts.

    A program may be writing one right now.
    """
    for line in reversed(_end(path)):
        try:
            parsed = foreign.parse(line)
        except ValueError:
            continue
        if isinstance(parsed, dict):
            return {key: value for key, value in parsed.items() if isinstance(value, SCALARS)}
    return None


def _read(path: Path) -> Any:
    """Return a small file's JSON; `None` if it is not there, or cannot be used."""
    try:
        return foreign.parse(foreign.read(path, STATE_BYTES).data)
    except (foreign.UnusableError, OSError, ValueError):
        return None
