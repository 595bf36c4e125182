"""`./cluster test`: the quality gates and the tests that this machine can run."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from cli.local import image, system_packages, training
from cli.runner.process import Processes
from infra.errors import UserError
from infra.program.locations import cache_root
from localcloud import images, layers
from node.slurm import environment

WIDE = "wide"
"""The marker of tests that only `./cluster test --all` runs: the same claims, tested more widely."""
SLOWEST = 15
REAL = ("tests/cluster", "tests/engine")
"""Tests that run programs as separate processes: they mostly wait, and coverage would see little of them."""
WORKLOAD = "tests/workload"
MOST_WORKERS = 8
MOST_CLUSTERS = 6
"""The largest number of files in `REAL` that run at once; each starts its own cluster."""
LONGEST_TRAINING = 3660
"""Seconds after which a test of the workload is ended from outside of Python; beyond any test's own limit."""
ROOM_SIDE_BY_SIDE = 8 << 30
"""The bytes of free memory that mypy (3 GB), trainings and tests of real clusters need together."""
SHOW_SECONDS = 0.2
GRACEFUL_INTERRUPTS = 2
"""The number of interrupts that are passed on: pytest ends its clusters after the first and gives up at the
second."""
INTERRUPTED = "interrupted: the tests take their clusters down first (Ctrl-C again: they end at once)"

Step = tuple[str, list[str]]
"""A name and its command."""


def run_checks(project: Path, arguments: Sequence[str], *, everything: bool = False) -> int:
    """Run the quality gates and all tests; with arguments, run only pytest with them.

    Every suite waits at times, for a cluster, a training's other worker or a process. If there is enough
    memory, they run at the same time, so that no core is idle meanwhile. Their output comes one after the
    other.

    Args:
        project: The checkout.
        arguments: The arguments for pytest. A file that is named there runs completely, with its wide tests.
        everything: Whether to run the wide tests, too.

    Returns:
        0 if all passed. pytest's own summary says what was skipped or left out, and why.
    """
    # The tests make their own clusters; no variable of the caller may lead them elsewhere.
    env = {
        name: value
        for name, value in environment.without_slurm(os.environ).items()
        if not name.startswith((environment.OURS, "PULUMI_CONFIG_"))
    }
    # Container images often set it; then every worker compiles every test, and every command our code.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"PYTHONPATH": str(project), "SLURM_STACKS_PROJECT": str(project)}
    if arguments:
        return _run([sys.executable, "-m", "pytest", *arguments], project, env)

    began = time.monotonic()
    checks = _Checks(project, env)
    checks.run("ruff check", [sys.executable, "-m", "ruff", "check", "--quiet", "."])
    checks.run("ruff format --check", [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."])
    trainer = _prepare(project)
    left_out = [] if everything else ["-m", f"not {WIDE}"]
    which = [*left_out, f"--durations={SLOWEST}", "--durations-min=1"]
    cores = os.cpu_count() or 1
    real: Step = (
        "tests of real clusters",
        [sys.executable, "-m", "pytest", *REAL, *which, *_side_by_side(min(MOST_CLUSTERS, 1 + 2 * cores))],
    )
    elsewhere = [f"--ignore={folder}" for folder in (*REAL, WORKLOAD)]
    with tempfile.TemporaryDirectory(prefix="slurm-stacks-coverage-") as folder:
        measured = [Path(folder, "tests.json"), Path(folder, "workload.json")]
        pytest = _measured(Path(sys.executable), measured[0])
        workload = _measured(trainer / "bin" / "python", measured[1])
        hang = ["-o", f"faulthandler_timeout={LONGEST_TRAINING}"]
        training_suite: Step = ("tests of the workload", [*workload, WORKLOAD, *which, *hang])
        others: list[Step] = [
            ("mypy --strict", [sys.executable, "-m", "mypy", f"--cache-dir={cache_root() / 'mypy'}"]),
            # The other suites use a core while a worker waits, and the tests that wait come first. Another
            # worker would collect all tests once more.
            ("tests", [*pytest, *elsewhere, *which, *_side_by_side(min(MOST_WORKERS, cores))]),
        ]
        if _free_memory() >= ROOM_SIDE_BY_SIDE:
            with checks.beside(*real), checks.beside(*training_suite):
                checks.run_all(others)
        else:
            checks.run_all([*others, training_suite, real])
        if found := [file for file in measured if file.exists()]:
            say("branch coverage")
            _run(_merged(found, Path(folder, "all.json")), project, env)
    took = f"in {time.monotonic() - began:.0f} s"
    say(f"failed {took}: {', '.join(checks.failed)}" if checks.failed else f"all passed {took}")
    return 1 if checks.failed else 0


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
            images.ensure(images.recipe(), image.folder(), say)
    except (UserError, layers.ImageError) as error:
        say(f"tests of machines that boot are skipped: {error}")
    try:
        system_packages.ensure_for(system_packages.TESTS, say)
    except UserError as error:
        say(f"tests over SSH, of MPI, of a controller's firewall and of its name server are skipped: {error}")
    say("the training environment")
    uv = Path(sys.executable).with_name("uv")
    return training.build(project, "cpu", cache_root() / "apps" / "envs", uv, groups=("test",))


def _measured(python: Path, file: Path) -> list[str]:
    """The command of a pytest that writes its branch coverage to a file; pyproject.toml says of what code."""
    return [
        str(python),
        "-m",
        "slipcover",
        "--dont-wrap-pytest",
        "--json",
        "--out",
        str(file),
        "-m",
        "pytest",
    ]


def _merged(files: Sequence[Path], file: Path) -> list[str]:
    """The command that prints the coverage of all files together and writes it to another file."""
    return [sys.executable, "-m", "slipcover", "--out", str(file), "--merge", *map(str, files)]


class _Checks:
    """Runs named commands and remembers which failed.

    Args:
        project: The folder that they run in.
        env: Their environment.
    """

    def __init__(self, project: Path, env: Mapping[str, str]) -> None:
        self._project = project
        self._env = env
        self.failed: list[str] = []

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run a command to its end, with its output passed through."""
        say(name)
        self._run(name, command, None)

    def run_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.run(*step)

    @contextlib.contextmanager
    def beside(self, name: str, command: Sequence[str]) -> Iterator[None]:
        """Run a command at the same time as the body; its output is shown from the end of the body on."""
        # Without a buffer, because the output is read while the command runs.
        with tempfile.TemporaryFile(buffering=0) as output:
            thread = threading.Thread(target=self._run, args=[name, command, output])
            say(f"{name}: they begin now, and their output follows the others'")
            thread.start()
            try:
                yield
            finally:
                say(name)
                shown = _Shown(output)
                _wait(lambda: shown.until(lambda: not thread.is_alive()))
                thread.join()

    def _run(self, name: str, command: Sequence[str], output: IO[bytes] | None) -> None:
        began = time.monotonic()
        if _run(command, self._project, self._env, output):
            self.failed.append(name)
        say(f"{name}: {time.monotonic() - began:.0f} s")


class _Shown:
    """Prints the content of a file while it is being written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._place = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def until(self, over: Callable[[], bool]) -> None:
        while not over():
            self._show()
            time.sleep(SHOW_SECONDS)
        self._show()

    def _show(self) -> None:
        # pread does not move the file's position, at which the command writes.
        while piece := os.pread(self._file.fileno(), 1 << 16, self._place):
            self._place += len(piece)
            print(self._decoder.decode(piece), end="", flush=True)


def _side_by_side(workers: int) -> list[str]:
    # The tests of a file stay together, because they share a cluster. The files begin in the order of
    # collection (tests/support/accounts.py), the longest first.
    return ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]


def _free_memory() -> int:
    """The bytes that programs may still use; 0 if the kernel does not tell."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


_running = Processes()


def _run(
    command: Sequence[str], project: Path, env: Mapping[str, str], output: IO[bytes] | None = None
) -> int:
    """Run a command to its end, in its own session, and return its exit status.

    So a closed terminal ends nothing that `nohup` protects, and Ctrl-C reaches the commands only through this
    process: each gets it once, and pytest ends its clusters.
    """
    process = subprocess.Popen(
        command, cwd=project, env=env, stdout=output, stderr=output, start_new_session=True
    )
    with _running.watched(process):
        _wait(process.wait)
    return process.returncode


def _wait(over: Callable[[], object]) -> None:
    """Wait for the end of the commands, and pass every Ctrl-C on to them.

    Raises:
        KeyboardInterrupt: There was a Ctrl-C, and the commands have ended.
    """
    interrupts = 0
    while True:
        try:
            over()
            break
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts <= GRACEFUL_INTERRUPTS:
                say(INTERRUPTED if interrupts == 1 else "interrupted again: clusters of tests may stay up")
            _running.signal(signal.SIGINT if interrupts <= GRACEFUL_INTERRUPTS else signal.SIGKILL)
    if interrupts:
        raise KeyboardInterrupt
