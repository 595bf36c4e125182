"""The doctor's check of memory, compared with a cluster's and a training's needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.findings import Severity
from cli.providers.local.diagnosis import host as resources
from node.design.model import BenchmarkDesign, SlurmSettings
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_host import host, seen

DESIGN = design()
TRAINED = BenchmarkDesign("keras-mnist", "debug", 2, 0, 1, "sync", "auto")
NEEDED_MIB = resources.HEAD_MIB + 2 * (resources.NODE_MIB + resources.WORKER_MIB)


def meminfo(available: int, swap: int = 0) -> dict[str, str]:
    return {
        "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available * 1024} kB\nSwapFree: {swap * 1024} kB\n"
    }


@pytest.mark.parametrize(
    ("free", "swap", "severity"),
    [
        (NEEDED_MIB, 0, "fine"),
        (NEEDED_MIB // 2 - 1, 1, "fine"),
        (NEEDED_MIB // 2 - 1, 0, "stops"),
    ],
)
def test_memory_for_the_training(tmp_path: Path, free: int, swap: int, severity: str) -> None:
    found = list(resources.memory(host(tmp_path, meminfo(free, swap)), DESIGN, TRAINED))
    (only,) = found
    sentences.finding(only, "memory.free", Severity(severity), f"{free + swap} MiB", NEEDED_MIB)


def test_without_a_training_a_cluster_takes_little(tmp_path: Path) -> None:
    assert seen(resources.memory(host(tmp_path, meminfo(200)), DESIGN, None)) == {"memory.free": "fine"}


def test_accounting_takes_memory_too(tmp_path: Path) -> None:
    with_it = design(slurm=SlurmSettings(accounting=True))
    least = (resources.HEAD_MIB + resources.ACCOUNTING_MIB) // 2
    for free, severity in ((least - 1, "stops"), (least, "fine")):
        found = seen(resources.memory(host(tmp_path, meminfo(free)), with_it, None))
        assert found["memory.free"] == severity


def test_memory_that_is_not_told(tmp_path: Path) -> None:
    assert list(resources.memory(host(tmp_path), DESIGN, None)) == []


@pytest.mark.parametrize(
    "files",
    [
        {
            "/proc/self/cgroup": "0::/docker/x\n",
            "/sys/fs/cgroup/docker/x/memory.max": "max\n",
            "/sys/fs/cgroup/docker/x/memory.current": "5\n",
            "/sys/fs/cgroup/docker/memory.max": f"{500 * 2**20}\n",
            "/sys/fs/cgroup/docker/memory.current": f"{100 * 2**20}\n",
        },
        {
            "/proc/self/cgroup": "4:cpu,cpuacct:/y\n9:memory:/x\n",
            "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{500 * 2**20}\n",
            "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": f"{100 * 2**20}\n",
        },
        {
            # A container that sees its own group as the root.
            "/proc/self/cgroup": "0::/\n",
            "/sys/fs/cgroup/memory.max": f"{500 * 2**20}\n",
            "/sys/fs/cgroup/memory.current": f"{100 * 2**20}\n",
        },
    ],
    ids=["unified", "by controller", "in a container"],
)
def test_a_containers_memory_counts(tmp_path: Path, files: dict[str, str]) -> None:
    (found,) = resources.memory(host(tmp_path, {**meminfo(50_000), **files}), DESIGN, TRAINED)
    assert seen([found]) == {"memory.free": "stops"}
    sentences.finding(found, "memory.free", Severity.STOPS, "400")
