"""Gives processes a share of a core, so that two cores can measure more than two workers; needs root.

The kernel's CPU bandwidth control does it (the CFS quota of a cgroup, version 1 or 2). The period is short,
5 ms: a worker that has used its share waits for less than one, and the others for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

PERIOD = 5_000
"""Microseconds."""
ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def shares(count: int, share: float) -> Iterator[Sequence[Path]]:
    """Make `count` cgroups, each of which gets `share` of a core, and remove them at the end.

    Yields:
        Their `cgroup.procs` files. A process that writes its id there belongs to the cgroup from then on.

    Raises:
        SystemExit: the kernel or the rights do not allow it.
    """
    first = (ROOT / "cpu/cpu.cfs_quota_us").exists()
    made: list[Path] = []
    try:
        try:
            for rank in range(count):
                folder = (ROOT / "cpu" if first else ROOT) / f"slurm-stacks-bench-{os.getpid()}-{rank}"
                folder.mkdir()
                made.append(folder)
                limit(folder, first, int(share * PERIOD))
        except OSError as error:
            raise SystemExit(f"shares of a core need root and a cpu controller: {error}") from error
        yield [folder / "cgroup.procs" for folder in made]
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def limit(folder: Path, first: bool, quota: int) -> None:
    """Give a cgroup `quota` microseconds of CPU time in each period; `first` for version 1."""
    if first:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (folder / "cpu.max").write_text(f"{quota} {PERIOD}")
