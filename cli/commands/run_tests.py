"""What `./cluster test` runs: the quality gates, and pytest on each suite of `suites()`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.errors import UserError
from infra.program.locations import cache_root
from localcloud import images
from operations.local import container_images, environment_builds, system_packages
from operations.processes import signal_group

WIDE = "wide"
"""The marker of tests that only `./cluster test --all` runs: the same claims, tested more widely."""
SLOWEST = 15
LONGEST_TRAINING = 3660
"""Seconds after which a test of the workload is ended from outside of Python; beyond any test's own limit."""
ROOM_SIDE_BY_SIDE = 9 << 30
"""The bytes of free memory that mypy (3 GB), trainings and pytest's workers need together."""
INTERRUPTED = "interrupted: the tests take their clusters down first (Ctrl-C again: they end at once)"
RUFF = [sys.executable, "-m", "ruff"]
GATES = {
    "ruff check": [*RUFF, "check", "--quiet", "."],
    "ruff format --check": [*RUFF, "format", "--check", "--quiet", "."],
    "mypy --strict": [sys.executable, "-m", "mypy", f"--cache-dir={cache_root() / 'mypy'}"],
}


@dataclass(frozen=True, slots=True)
class Suite:
    """A part of the tests that one pytest runs.

    Attributes:
        folders: Where its tests are.
        python: The interpreter of its environment.
        workers: How many processes run them. tests/support/accounts.py keeps the tests of a file together,
            and says which files begin first.
        options: More options for pytest.
        measured: Whether to measure the coverage of branches. Each worker then compiles all code anew, for
            seconds of CPU.
    """

    name: str
    folders: tuple[str, ...]
    python: Path = Path(sys.executable)
    workers: int = 1
    options: tuple[str, ...] = ()
    measured: bool = True

    def command(self, notes: Path, *, everything: bool) -> list[str]:
        """Return its command line.

        Args:
            notes: The folder for pytest's cache and the coverage.
            everything: Whether to run the wide tests, too.
        """
        measure = ["slipcover", "--dont-wrap-pytest", "--json", "--out", str(self.coverage(notes))]
        words = [str(self.python), *(["-m", *measure] if self.measured else [])]
        words += ["-m", "pytest", *self.folders, *self.options]
        words += ["-o", f"cache_dir={notes / self.name}", f"--durations={SLOWEST}", "--durations-min=1"]
        if not everything:
            words += ["-m", f"not {WIDE}"]
        if self.workers > 1:
            words += ["--numprocesses", str(self.workers)]
        return words

    def coverage(self, notes: Path) -> Path:
        return notes / f"{self.name}.json"

    def failed_tests(self, notes: Path) -> list[str]:
        """Return the tests that failed, and the files that could not be read, as pytest has noted them."""
        try:
            return sorted(json.loads((notes / self.name / "v" / "cache" / "lastfailed").read_text()))
        except FileNotFoundError:
            return []


def suites(project: Path, trainer: Path, cores: int) -> list[Suite]:
    """Return the suites; together they have every test once. The first is the longest.

    Args:
        trainer: The folder of the training environment.
        cores: The machine's number of CPU cores.
    """
    real = ("tests/cluster", "tests/remote")
    workload = "tests/workload"
    rest = {f"tests/{path.name}" for path in (project / "tests").iterdir() if _has_tests(path)}
    return [
        # They need the cores, which more workers would only take from each other.
        Suite("tests", tuple(sorted(rest - {*real, workload})), workers=min(8, cores)),
        # TensorFlow uses all cores, so one worker is enough.
        Suite(
            "tests of the workload", (workload,), trainer / "bin" / "python",
            options=("-o", f"faulthandler_timeout={LONGEST_TRAINING}"),
        ),
        # They mostly wait. Each worker has a cluster of its own, which is not measured: these tests alone run
        # only one branch in five hundred.
        Suite("tests of real clusters", real, workers=min(8, 4 + 2 * cores), measured=False),
    ]  # fmt: skip


def _has_tests(path: Path) -> bool:
    return path.match("test_*.py") or any(path.rglob("test_*.py"))


def run(project: Path, arguments: Sequence[str], *, everything: bool = False) -> int:
    """Run the quality gates and all suites; with arguments, run only pytest with them.

    Every suite waits at times, for a cluster, a training's other worker or a process. If there is enough
    memory, they run at the same time, so that no core is idle meanwhile. The first one's output is shown at
    once, the others' when all are over.

    Args:
        project: The checkout.
        arguments: The arguments for pytest. A file that is named there runs completely, with its wide tests.
        everything: Whether to run the wide tests, too.

    Returns:
        The exit status: 0 if all passed, else 1. With arguments it is pytest's own.
    """
    jobs = Jobs(project)
    if arguments:
        return jobs.run("pytest", [sys.executable, "-m", "pytest", *arguments])
    began = time.monotonic()
    gates = dict(GATES)
    mypy = gates.popitem()
    for name, command in gates.items():
        say(name)
        jobs.run(name, command)
    table = suites(project, _prepare(project), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-tests-") as folder:
        notes = Path(folder)
        steps = [(suite.name, suite.command(notes, everything=everything)) for suite in table]
        if _free_memory() >= ROOM_SIDE_BY_SIDE:
            jobs.run_side_by_side([*steps, mypy], notes)
        else:
            for name, command in (mypy, *steps):
                say(name)
                jobs.run(name, command)
        if coverages := [file for suite in table if (file := suite.coverage(notes)).exists()]:
            say("branch coverage")
            jobs.run("branch coverage", merged(coverages, notes / "all.json"))
        tests = [test for suite in table for test in suite.failed_tests(notes)]
    took = f"in {time.monotonic() - began:.0f} s"
    say(
        "\n".join([f"failed {took}: {', '.join(jobs.failed)}", *tests])
        if jobs.failed
        else f"all passed {took}"
    )
    return 1 if jobs.failed else 0


def _prepare(project: Path) -> Path:
    """Install what the tests need, as far as possible, and return the folder of the training environment."""
    try:
        system_packages.ensure(say)
        system_packages.add_pmix(say)
    except UserError as error:
        say(f"tests of a real cluster are skipped: {error}")
    try:
        system_packages.ensure(say, accounting=True)
    except UserError as error:
        say(f"tests of accounting are skipped: {error}")
    try:
        if os.geteuid() == 0:
            system_packages.ensure_for(system_packages.CONTAINERS, say)
            # Made here, because its time would otherwise count for the first test that needs it.
            images.ensure(images.recipe(), container_images.image_folder(), say)
    except (UserError, images.ImageError) as error:
        say(f"tests of machines that boot are skipped: {error}")
    try:
        system_packages.ensure_for(system_packages.TESTS, say)
    except UserError as error:
        say(f"tests over SSH, of MPI, of a controller's firewall and of its name server are skipped: {error}")
    say("the training environment")
    uv = Path(sys.executable).with_name("uv")
    return environment_builds.build_environment(
        project, "cpu", cache_root() / "apps" / "envs", uv, groups=("test",)
    )


def merged(files: Sequence[Path], file: Path) -> list[str]:
    """Return the command that prints the coverage of all files together and writes it to another file."""
    return [sys.executable, "-m", "slipcover", "--out", str(file), "--merge", *map(str, files)]


@dataclass(slots=True)
class Jobs:
    """Runs named commands and remembers which failed.

    Each is in its own session. So a closed terminal ends nothing that `nohup` protects, and Ctrl-C reaches
    the commands only through this process: each gets it once, and pytest ends its clusters.

    Attributes:
        project: The folder that they run in.
        failed: The names of those that failed.
    """

    project: Path
    failed: list[str] = field(default_factory=list)

    def run(self, name: str, command: Sequence[str]) -> int:
        """Run a command to its end, with its output passed through, and return its exit status."""
        process = self._start(command)
        _wait([process])
        return self._note(name, process)

    def run_side_by_side(self, steps: Sequence[tuple[str, Sequence[str]]], notes: Path) -> None:
        """Run commands at the same time, and show the first one's output, then each other's.

        Args:
            notes: A folder for the output of those that are not shown at once.
        """
        (first, command), *others = steps
        say(f"{', '.join(name for name, _ in others)}: they begin now, and their output follows the others'")
        outputs = [notes / f"{name}.output" for name, _ in others]
        processes = [
            self._start(command, output) for (_, command), output in zip(others, outputs, strict=True)
        ]
        say(first)
        processes.insert(0, self._start(command))
        try:
            _wait(processes)
        finally:
            for (name, _), output in zip(others, outputs, strict=True):
                say(name)
                print(output.read_text(encoding="utf-8", errors="replace"), end="", flush=True)
        for (name, _), process in zip(steps, processes, strict=True):
            self._note(name, process)

    def _start(self, command: Sequence[str], output: Path | None = None) -> subprocess.Popen[bytes]:
        if output is None:
            return subprocess.Popen(command, cwd=self.project, start_new_session=True)
        with output.open("wb") as file:
            return subprocess.Popen(
                command, cwd=self.project, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _note(self, name: str, process: subprocess.Popen[bytes]) -> int:
        if process.returncode:
            self.failed.append(name)
        return process.returncode


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for the end of all, and pass every Ctrl-C on to them.

    Raises:
        KeyboardInterrupt: There was a Ctrl-C, and all have ended.
    """
    interrupts = 0
    while any(process.returncode is None for process in processes):
        try:
            for process in processes:
                process.wait()
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts == 1:
                say(INTERRUPTED)
            for process in processes:
                if process.poll() is None:
                    # pytest gives up at the second one; the third leaves clusters behind.
                    signal_group(process, signal.SIGINT if interrupts < 3 else signal.SIGKILL)
    if interrupts:
        raise KeyboardInterrupt


def _free_memory() -> int:
    """Return the bytes that programs may still use; 0 if the kernel does not tell."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def say(text: str) -> None:
    """Print a line that tells the parts of the output apart."""
    print(f"\n== {text}", flush=True)
