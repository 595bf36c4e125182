"""The doctor's checks of memory and the kernel's limits, compared with a cluster's and a training's needs."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from cli.findings import Severity
from cli.providers.local.diagnosis import host as resources
from node.design.model import BenchmarkDesign, Partition, SlurmSettings
from tests.support import sentences
from tests.support.doubles import design
from tests.support.fake_host import host, process, seen

DESIGN = design()
TRAINED = BenchmarkDesign("keras-mnist", "debug", 2, 0, 1, "sync", "auto")
LARGE = design(Partition("debug", "local.small", 1, 100, 0, 1000))
NEEDED_MIB = resources.HEAD_MIB + 2 * (resources.NODE_MIB + resources.WORKER_MIB)


def meminfo(available: int, swap: int = 0) -> dict[str, str]:
    return {
        "/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {available * 1024} kB\nSwapFree: {swap * 1024} kB\n"
    }


# --- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "swap", "severity"),
    [
        (NEEDED_MIB, 0, "fine"),
        (NEEDED_MIB - 1, 0, "warns"),
        (NEEDED_MIB - 1, 1, "fine"),
        (NEEDED_MIB // 2 - 1, 0, "stops"),
    ],
)
def test_memory_for_the_training(tmp_path: Path, free: int, swap: int, severity: str) -> None:
    found = list(resources.memory(host(tmp_path, meminfo(free, swap)), DESIGN, TRAINED))
    (only,) = found
    sentences.finding(only, "memory.free", Severity(severity), f"{free + swap} MiB", NEEDED_MIB)


def test_without_a_training_a_cluster_takes_little(tmp_path: Path) -> None:
    assert seen(resources.memory(host(tmp_path, meminfo(200)), DESIGN, None)) == {"memory.free": "fine"}
    assert seen(resources.memory(host(tmp_path, meminfo(200)), LARGE, None)) == {
        "memory.free": "fine", "memory.nodes": "warns",
    }  # fmt: skip
    assert seen(resources.memory(host(tmp_path, meminfo(13_000)), LARGE, None)) == {"memory.free": "fine"}


def test_accounting_takes_memory_and_threads_too(tmp_path: Path) -> None:
    with_it = design(slurm=SlurmSettings(accounting=True))
    least = resources.HEAD_MIB + resources.ACCOUNTING_MIB
    for free, severity in ((least - 1, "warns"), (least + 100, "fine")):
        found = seen(resources.memory(host(tmp_path, meminfo(free)), with_it, None))
        assert found["memory.free"] == severity
    most = resources.HEAD_THREADS + resources.ACCOUNTING_THREADS
    for threads, severity in ((most - 1, "stops"), (most, "fine")):
        here = host(tmp_path, limits={resource.RLIMIT_NPROC: threads})
        assert seen(resources.processes(here, with_it, None))["processes.free"] == severity


def test_memory_that_is_not_told(tmp_path: Path) -> None:
    assert seen(resources.memory(host(tmp_path), DESIGN, None)) == {"memory.free": "warns"}


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


# --- processes -------------------------------------------------------------------------------------------

NEEDED = resources.HEAD_THREADS + 2 * (resources.NODE_THREADS + resources.WORKER_THREADS)


def test_no_limit_on_processes(tmp_path: Path) -> None:
    assert seen(resources.processes(host(tmp_path), DESIGN, TRAINED)) == {"processes.free": "fine"}


def test_the_users_limit_counts_what_runs_already(tmp_path: Path) -> None:
    running = {**process(1, threads=30), **process(2, threads=20), **process(3, uid=7, threads=900)}

    def found(most: int, **facts: Any) -> dict[str, str]:
        here = host(tmp_path, running, limits={resource.RLIMIT_NPROC: most}, **facts)
        return seen(resources.processes(here, DESIGN, TRAINED))

    assert found(NEEDED + 50) == {"processes.free": "fine"}
    assert found(NEEDED + 49) == {"processes.free": "stops"}
    assert found(10, uid=0) == {"processes.free": "fine"}, "root has no such limit"
    assert found(NEEDED + 50, cpus=4) == {"processes.free": "stops"}, "more cores, more threads"


@pytest.mark.parametrize("file", ["pid_max", "threads-max"])
def test_the_kernels_limits_count_everybody(tmp_path: Path, file: str) -> None:
    running = {**process(1, uid=0, threads=100), **process(2, uid=7, threads=100)}
    path = f"/proc/sys/kernel/{file}"
    enough = host(tmp_path, {**running, path: f"{NEEDED + 200}\n"})
    assert seen(resources.processes(enough, DESIGN, TRAINED)) == {"processes.free": "fine"}
    few = host(tmp_path, {path: f"{NEEDED + 199}\n"})
    (found,) = resources.processes(few, DESIGN, TRAINED)
    assert seen([found]) == {"processes.free": "stops"}
    sentences.finding(found, "processes.free", Severity.STOPS, file)


def test_a_containers_limit_on_processes(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/x\n",
        "/sys/fs/cgroup/x/pids.max": "300\n",
        "/sys/fs/cgroup/x/pids.current": "100\n",
    }
    (found,) = resources.processes(host(tmp_path, files), DESIGN, TRAINED)
    assert seen([found]) == {"processes.free": "stops"}
    sentences.finding(found, "processes.free", Severity.STOPS, "pids.max", "300", "200")
    files["/sys/fs/cgroup/x/pids.max"] = "max\n"
    assert seen(resources.processes(host(tmp_path, files), DESIGN, TRAINED)) == {"processes.free": "fine"}


def test_all_nodes_at_once_may_be_too_many(tmp_path: Path) -> None:
    here = host(tmp_path, limits={resource.RLIMIT_NPROC: 5000})
    assert seen(resources.processes(here, LARGE, TRAINED)) == {
        "processes.free": "fine",
        "processes.nodes": "warns",
    }
    assert seen(resources.processes(here, DESIGN, TRAINED)) == {"processes.free": "fine"}


# --- files and sizes -------------------------------------------------------------------------------------


def test_open_files(tmp_path: Path) -> None:
    def found(most: int | None) -> dict[str, str]:
        few = {} if most is None else {resource.RLIMIT_NOFILE: most}
        return seen(resources.files(host(tmp_path, limits=few), LARGE))

    assert found(None) == {"files.open": "fine"}
    assert found(resources.HEAD_FILES + 2000) == {"files.open": "fine"}
    assert found(resources.HEAD_FILES + 1999) == {"files.open": "warns"}
    assert found(resources.HEAD_FILES - 1) == {"files.open": "stops"}


def test_addresses_that_jobs_inherit(tmp_path: Path) -> None:
    def found(most: int | None, trained: Any = TRAINED) -> dict[str, str]:
        few = {} if most is None else {resource.RLIMIT_AS: most}
        return seen(resources.addresses(host(tmp_path, limits=few), trained))

    assert found(None) == found(64 * 2**30) == {}
    assert found(2**30) == {"memory.address": "stops"}
    assert found(2**30, None) == {}
