"""`./cluster test`: the quality gates and every test that this machine can run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from infra.errors import UserError
from infra.local import packages, training
from infra.runner.locations import cache_root

GATES = (
    ("ruff check", ["-m", "ruff", "check", "--quiet", "."]),
    ("ruff format --check", ["-m", "ruff", "format", "--check", "--quiet", "."]),
    ("mypy --strict", ["-m", "mypy"]),
)
COVERAGE = ["--cov", "--cov-append", "--cov-report="]
MOST_WORKERS = 4
"""One more than cores: tests of a real cluster mostly wait. But each file brings a cluster of its own."""


def run_checks(project: Path, arguments: Sequence[str]) -> int:
    """Run the gates, the tests, and the tests that need TensorFlow; with arguments only pytest with them.

    Returns:
        0 if all passed. What was skipped, and why, is in pytest's own summary.
    """
    # The tests make clusters of their own; nothing of the caller's may lead them elsewhere.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PULUMI_CONFIG_"))}
    env |= {"PYTHONPATH": str(project), "SLURM_STACKS_PROJECT": str(project)}
    if arguments:
        return _run([sys.executable, "-m", "pytest", *arguments], project, env)

    failed = []
    for name, command in GATES:
        say(name)
        if _run([sys.executable, *command], project, env):
            failed.append(name)

    try:
        packages.ensure(say)
    except UserError as error:
        say(f"tests of a real cluster are skipped: {error}")
    try:
        packages.ensure(say, accounting=True)
    except UserError as error:
        say(f"tests of accounting are skipped: {error}")
    try:
        packages.ensure_for_tests(say)
    except UserError as error:
        say(f"tests over SSH are skipped: {error}")
    say("the training environment")
    trainer = training.build(
        project, "cpu", cache_root() / "apps" / "envs", Path(sys.executable).with_name("uv"), groups=("test",)
    )

    for leftover in (*project.glob(".coverage"), *project.glob(".coverage.*")):
        leftover.unlink()
    suites = (
        (
            "tests",
            [sys.executable, "-m", "pytest", "--ignore", "tests/workload", *COVERAGE, *_side_by_side()],
        ),
        (
            "tests of the workload",
            [str(trainer / "bin" / "python"), "-m", "pytest", "tests/workload", *COVERAGE],
        ),
    )
    for name, command in suites:
        say(name)
        started = time.monotonic()
        status = _run(command, project, env)
        say(f"{name}: {time.monotonic() - started:.0f} s")
        if status:
            failed.append(name)
    say("branch coverage")
    _run([sys.executable, "-m", "coverage", "report", "--skip-covered"], project, env)
    say(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def _side_by_side() -> list[str]:
    # A file's tests stay together: they share a cluster. In the order of their names, because the longest
    # (tests/cluster) then begin first.
    return [
        "--numprocesses",
        str(min(MOST_WORKERS, 1 + (os.cpu_count() or 1))),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _run(command: Sequence[str], project: Path, env: dict[str, str]) -> int:
    return subprocess.run(command, cwd=project, env=env, check=False).returncode
