"""What the scripts of this folder share: their options, cases in turns, and how figures are printed.

Each script is a module with a docstring that names a command line, `options()`, `main()`, and a constant
`PRINTS`, a regular expression for the figures that every run prints. `test_scripts.py` runs all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
Case = TypeVar("Case")


def parser(description: str | None, **quick: Any) -> argparse.ArgumentParser:
    """Return a script's parser with the option `--quick`.

    Args:
        description: The script's docstring.
        quick: The values of its other options in the quick form: a run of the smallest size that shows that
            the script works. Options behind `--quick` count more.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    values = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in quick.items())
    options.add_argument(
        "--quick", action=_Quick, nargs=0, const=quick, default=False, help=f"the least: {values}"
    )
    return options


class _Quick(argparse.Action):
    def __call__(self, parser: Any, namespace: argparse.Namespace, *_: Any) -> None:
        vars(namespace).update(self.const, quick=True)


class Targets:
    """Prints figures beside their targets, and remembers which were missed.

    Args:
        timed: Whether targets of time and memory count. A quick run's do not: any machine may be busy.
    """

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self.missed: list[str] = []

    def exactly(self, what: str, value: int, expected: int) -> None:
        """Print a count, which is the same on every machine."""
        self._print(what, f"{value}", f"{expected}", value == expected, True)

    def below(self, what: str, value: float, most: float, unit: str) -> None:
        """Print a figure of time or memory, which depends on the machine."""
        self._print(what, f"{value:.1f} {unit}", f"below {most:g}", value < most, self._timed)

    def _print(self, what: str, value: str, target: str, good: bool, counts: bool) -> None:
        print(f"  {what}: {value} (target: {target}){'' if good else '  MISSED'}", flush=True)
        if not good and counts:
            self.missed.append(what)

    def status(self) -> int:
        """Print which targets were missed, and return the script's exit status."""
        print(f"missed: {', '.join(self.missed) or 'nothing'}")
        return 1 if self.missed else 0


def in_turns(cases: Sequence[Case], rounds: int) -> Iterator[tuple[int, Case]]:
    """Yield (round, case), every second round backwards.

    So other load on the machine affects all cases alike, also load that grows or shrinks meanwhile.
    """
    for number in range(rounds):
        for case in cases[:: -1 if number % 2 else 1]:
            yield number, case


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, with the least and the most where there are several values."""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle + (f" ({min(values):.{digits}f}-{max(values):.{digits}f})" if len(values) > 1 else "")


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return how many times the base of the same round each value is."""
    return [value / first for value, first in zip(values, base, strict=True)]


def median_ms(work: Callable[[], object], repeat: int) -> float:
    """Run something `repeat` times, and return the median in milliseconds."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1000


def trainer() -> str:
    """Return the Python of the training environment, which is built if it is missing."""
    from infra.program.locations import cache_root
    from operations.local import environment_builds

    uv = ROOT / ".venv" / "bin" / "uv"
    return str(
        environment_builds.build_environment(ROOT, "cpu", cache_root() / "apps" / "envs", uv)
        / "bin"
        / "python"
    )


def enter_training_environment(script: str) -> None:
    """Start a script again by the training environment's Python, unless it runs there already."""
    os.environ |= {"TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(ROOT)}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if importlib.util.find_spec("tensorflow") is None:
        python = trainer()
        os.execv(python, [python, "-m", f"tests.bench.{script}", *sys.argv[1:]])
