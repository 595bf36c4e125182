"""`./cluster test`: the quality gates and the tests that this machine can run."""

from __future__ import annotations

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
from infra.local import packages, training
from infra.runner.locations import cache_root
from infra.runner.process import Processes

WIDE = "wide"
"""The marker of tests that only `./cluster test --all` runs: the same promises on a wider field."""
COVERAGE = ["--cov", "--cov-append", "--cov-report="]
SLOWEST = 15
MOST_WORKERS = 6
"""Twice the cores and one: tests of a real cluster mostly wait. But each file brings a cluster of its own."""
ROOM_SIDE_BY_SIDE = 8 << 30
"""Bytes of free memory with which mypy (3 GB) and trainings run beside the other tests."""
GRACEFUL_INTERRUPTS = 2
"""pytest takes its clusters down after the first one, and gives that up at the second."""

Step = tuple[str, list[str]]
"""A name, and the command."""


def run_checks(project: Path, arguments: Sequence[str], *, everything: bool = False) -> int:
    """Run the gates, the tests, and the tests that need TensorFlow; with arguments only pytest with them.

    mypy and the tests that need TensorFlow run beside the others where there is room for both; their output
    comes at the end.

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
    which = [*COVERAGE, *left_out, f"--durations={SLOWEST}", "--durations-min=1"]
    beside: list[Step] = [
        ("mypy --strict", [sys.executable, "-m", "mypy", f"--cache-dir={cache_root() / 'mypy'}"]),
        (
            "tests of the workload",
            [str(trainer / "bin" / "python"), "-m", "pytest", "tests/workload", *which],
        ),
    ]
    tests = [sys.executable, "-m", "pytest", "--ignore", "tests/workload", *which, *_side_by_side()]
    if _free_memory() >= ROOM_SIDE_BY_SIDE:
        with checks.beside(beside):
            _compile_tests(project, env)
            checks.run("tests", tests)
    else:
        for name, command in (beside[0], ("tests", tests), beside[1]):
            checks.run(name, command)
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
    except UserError as error:
        say(f"tests of machines that boot are skipped: {error}")
    try:
        packages.ensure_for_tests(say)
    except UserError as error:
        say(f"tests over SSH are skipped: {error}")
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

    @contextlib.contextmanager
    def beside(self, steps: Sequence[Step]) -> Iterator[None]:
        """Run the steps one after another beside the body, and show each one's output after it."""
        with contextlib.ExitStack() as files:
            outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in steps]
            thread = threading.Thread(target=self._run_all, args=[steps, outputs])
            say(f"beside the tests, shown after them: {', '.join(name for name, _ in steps)}")
            thread.start()
            try:
                yield
            finally:
                _wait(thread.join)
            for (name, _), output in zip(steps, outputs, strict=True):
                say(name)
                output.seek(0)
                print(output.read().decode(errors="replace"), end="", flush=True)

    def _run_all(self, steps: Sequence[Step], outputs: Sequence[IO[bytes]]) -> None:
        for (name, command), output in zip(steps, outputs, strict=True):
            self._run(name, command, output)

    def _run(self, name: str, command: Sequence[str], output: IO[bytes] | None) -> None:
        began = time.monotonic()
        if _run(command, self._project, self._env, output):
            self.failed.append(name)
        say(f"{name}: {time.monotonic() - began:.0f} s")


def _compile_tests(project: Path, env: Mapping[str, str]) -> None:
    """Compile the tests once, so that not every worker does it. What is wrong with them the run says."""
    command = [sys.executable, "-m", "pytest", "--ignore", "tests/workload", "--collect-only", "-qq"]
    subprocess.run(command, cwd=project, env=env, stdout=subprocess.DEVNULL, check=False)


def _side_by_side() -> list[str]:
    # A file's tests stay together: they share a cluster. In the order in which they are collected, because
    # tests/conftest.py has those of real clusters, which take longest, begin first.
    return [
        "--numprocesses",
        str(min(MOST_WORKERS, 1 + 2 * (os.cpu_count() or 1))),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]


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
