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

from infra.errors import UserError
from infra.local import image, packages, training
from infra.local.cloud import images, layers
from infra.runner.locations import cache_root
from infra.runner.process import Processes

WIDE = "wide"
"""The marker of tests that only `./cluster test --all` runs: the same promises on a wider field."""
COVERAGE = ["--cov", "--cov-append", "--cov-report="]
SLOWEST = 15
REAL = ("tests/cluster", "tests/engine")
"""Tests of programs in processes of their own: they mostly wait, and coverage would see little of them."""
WORKLOAD = "tests/workload"
MOST_WORKERS = 8
MOST_CLUSTERS = 6
"""How many files of `REAL` run at once at most: each brings a cluster of its own."""
ROOM_SIDE_BY_SIDE = 8 << 30
"""Bytes of free memory with which mypy (3 GB) and trainings run beside tests of real clusters."""
SHOW_SECONDS = 0.2
GRACEFUL_INTERRUPTS = 2
"""pytest takes its clusters down after the first one, and gives that up at the second."""

Step = tuple[str, list[str]]
"""A name, and the command."""


def run_checks(project: Path, arguments: Sequence[str], *, everything: bool = False) -> int:
    """Run the gates and all tests; with arguments only pytest with them.

    The tests of real clusters mostly wait. Where there is memory for both, they run beside everything else,
    and their output comes at the end.

    Args:
        project: the checkout.
        arguments: for pytest. A file that is named there runs whole, with its wide tests.
        everything: the wide tests too.

    Returns:
        0 if all passed. What was skipped or left out, and why, is in pytest's own summary.
    """
    # The tests make clusters of their own; nothing of the caller's may lead them elsewhere.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PULUMI_CONFIG_"))}
    # Images of containers often set it: every worker would compile every test, and every command our code.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"PYTHONPATH": str(project), "SLURM_STACKS_PROJECT": str(project)}
    if arguments:
        return _run([sys.executable, "-m", "pytest", *arguments], project, env)

    began = time.monotonic()
    checks = _Checks(project, env)
    checks.run("ruff check", [sys.executable, "-m", "ruff", "check", "--quiet", "."])
    checks.run("ruff format --check", [sys.executable, "-m", "ruff", "format", "--check", "--quiet", "."])
    trainer = _prepare(project)
    for leftover in (*project.glob(".coverage"), *project.glob(".coverage.*")):
        leftover.unlink()
    left_out = [] if everything else ["-m", f"not {WIDE}"]
    pytest = [sys.executable, "-m", "pytest"]
    which = [*left_out, f"--durations={SLOWEST}", "--durations-min=1"]
    cores = os.cpu_count() or 1
    real: Step = (
        "tests of real clusters",
        [*pytest, *REAL, *which, *_side_by_side(min(MOST_CLUSTERS, 1 + 2 * cores))],
    )
    elsewhere = [f"--ignore={folder}" for folder in (*REAL, WORKLOAD)]
    others: list[Step] = [
        ("mypy --strict", [sys.executable, "-m", "mypy", f"--cache-dir={cache_root() / 'mypy'}"]),
        ("tests", [*pytest, *elsewhere, *COVERAGE, *which, *_side_by_side(min(MOST_WORKERS, cores))]),
        (
            "tests of the workload",
            [str(trainer / "bin" / "python"), "-m", "pytest", WORKLOAD, *COVERAGE, *which],
        ),
    ]
    if _free_memory() >= ROOM_SIDE_BY_SIDE:
        with checks.beside(*real):
            checks.run_all(others)
    else:
        checks.run_all([*others, real])
    say("branch coverage")
    _run([sys.executable, "-m", "coverage", "report", "--skip-covered"], project, env)
    took = f"in {time.monotonic() - began:.0f} s"
    say(f"failed {took}: {', '.join(checks.failed)}" if checks.failed else f"all passed {took}")
    return 1 if checks.failed else 0


def _prepare(project: Path) -> Path:
    """Install what the tests need, where that is possible; the training environment's folder."""
    try:
        packages.ensure(say)
    except UserError as error:
        say(f"tests of a real cluster are skipped: {error}")
    try:
        packages.ensure(say, accounting=True)
    except UserError as error:
        say(f"tests of accounting are skipped: {error}")
    try:
        if os.geteuid() == 0:
            packages.ensure_for_containers(say)
            # Here and not in the first test that needs it, whose time it would be.
            images.have(images.recipe(), image.folder(), say)
    except (UserError, layers.ImageError) as error:
        say(f"tests of machines that boot are skipped: {error}")
    try:
        packages.ensure_for_tests(say)
    except UserError as error:
        say(f"tests over SSH, of a controller's firewall and of its name server are skipped: {error}")
    say("the training environment")
    uv = Path(sys.executable).with_name("uv")
    return training.build(project, "cpu", cache_root() / "apps" / "envs", uv, groups=("test",))


class _Checks:
    """Runs named commands and remembers which failed.

    Args:
        project: the folder that they run in.
        env: their environment.
    """

    def __init__(self, project: Path, env: Mapping[str, str]) -> None:
        self._project = project
        self._env = env
        self.failed: list[str] = []

    def run(self, name: str, command: Sequence[str]) -> None:
        """Run a command to its end; its output is ours."""
        say(name)
        self._run(name, command, None)

    def run_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.run(*step)

    @contextlib.contextmanager
    def beside(self, name: str, command: Sequence[str]) -> Iterator[None]:
        """Run a command beside the body; what it prints is shown from the body's end on."""
        # Without a buffer: what the command writes is read while it runs.
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
    """Prints what is written to a file, while it is written."""

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
        # The command writes where the file's own position is, so that is not moved.
        while piece := os.pread(self._file.fileno(), 1 << 16, self._place):
            self._place += len(piece)
            print(self._decoder.decode(piece), end="", flush=True)


def _side_by_side(workers: int) -> list[str]:
    # A file's tests stay together, because they share a cluster. They begin in the order in which they are
    # collected (tests/support/accounts.py): the longest first.
    return ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]


def _free_memory() -> int:
    """Bytes that programs may still take; 0 where the kernel does not say."""
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
    """Run a command to its end, in a session of its own; its exit status.

    A terminal that is closed ends nothing that `nohup` protects, and Ctrl-C reaches the commands only by us:
    each gets it once, so that pytest takes its clusters down.
    """
    process = subprocess.Popen(
        command, cwd=project, env=env, stdout=output, stderr=output, start_new_session=True
    )
    with _running.watched(process):
        _wait(process.wait)
    return process.returncode


def _wait(over: Callable[[], object]) -> None:
    """Wait for the end of commands, which get every Ctrl-C.

    Raises:
        KeyboardInterrupt: there was one, and they have ended.
    """
    interrupts = 0
    while True:
        try:
            over()
            break
        except KeyboardInterrupt:
            interrupts += 1
            _running.signal(signal.SIGINT if interrupts <= GRACEFUL_INTERRUPTS else signal.SIGKILL)
    if interrupts:
        raise KeyboardInterrupt
