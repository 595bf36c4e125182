"""The form with MPI: mpirun reaches the nodes over SSH, as on machines with networks of their own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import sshd
from tests.support.batch_job import BatchJob, until
from tests.support.net_machines import NetMachines, need_net_machines
from workload.batch import mpi, settings
from workload.errors import WorkloadError

ADDRESSES = ["10.98.1.1", "10.98.1.2", "10.98.1.3"]
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Runs a node whose processes all end with its first one, as a container's do."""
MARK = "batch-mpi-test"
PUBLISHED = "-x HOROVOD_HIERARCHICAL_ALLREDUCE=1 -x HOROVOD_FUSION_THRESHOLD=16777216 -x NCCL_MIN_NRINGS=8"

Make = Callable[..., BatchJob]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetMachines]:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (package openmpi-bin)")
    if missing := sshd.missing():
        pytest.skip(missing)
    need_net_machines()
    net_machines = NetMachines(tmp_path_factory.mktemp("machines"))
    try:
        for number, address in enumerate(ADDRESSES):
            net_machines.start(f"node-{number}", address)
        yield net_machines
    finally:
        net_machines.close()


@pytest.fixture
def job(tmp_path: Path, machines: NetMachines) -> Iterator[Make]:
    made: list[BatchJob] = []

    def make(script: str, **more: Any) -> BatchJob:
        env = {"SLURM_STACKS_LAUNCH": "mpi", "SLURM_STACKS_WAIT_SECONDS": "100"}
        env["EXTRA_MPI_PARAMS"] = PUBLISHED
        env |= more.pop("env", {})
        command = ("sh", "-c", f": {MARK}; {script}")
        inside = more.pop("inside", [])
        made.append(
            BatchJob(
                tmp_path,
                3,
                *command,
                addresses=ADDRESSES,
                into=lambda node: [*machines.into(f"node-{node}"), *inside],
                env=env,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.close()
    until(lambda: left() == [], lambda: f"left: {left()}")


def left() -> list[str]:
    """Return the command lines of ranks that still run."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue
        if MARK.encode() in line and b"workload.batch.entry" not in line:
            found.append(line.decode(errors="replace"))
    return found


def test_ranks_run_on_all_nodes_with_what_the_job_definition_says(job: Make) -> None:
    text = (
        'echo "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $(hostname) $NCCL_SOCKET_IFNAME $NCCL_MIN_NRINGS '
        '$BATCH_SIZE $JOB_DIR" >"$SLURM_STACKS_FOLDER/rank-$OMPI_COMM_WORLD_RANK"; '
        'echo \'{"images_per_second": 12}\' >"$SLURM_STACKS_RESULT"'
    )
    three = job(text, env={"MPI_GPUS": "3", "EXTRA_MPI_PARAMS": f"{PUBLISHED} --map-by node -bind-to none"})
    three.start()
    assert three.wait() == [0, 0, 0], three.logs()
    ranks = [path.read_text().split() for path in three.wait_for_files("rank-*", 3)]
    rest = ["eth0", "8", "8", str(three.shared)]
    assert ranks == [[str(n), "3", f"node-{n}", *rest] for n in range(3)]
    assert (three.result()["launch"], three.result()["images_per_second"]) == ("mpi", 12)


def test_a_rank_that_fails_ends_the_job_with_its_status(job: Make) -> None:
    three = job('[ "$OMPI_COMM_WORLD_RANK" = 2 ] && exit 7; sleep 300')
    three.start()
    assert three.wait() == [7, 7, 7], three.logs()
    assert "the program on the main node ended with status 7" in three.log(0)


def test_a_lost_node_ends_the_job(job: Make) -> None:
    three = job('touch "$SLURM_STACKS_FOLDER/began-$OMPI_COMM_WORLD_RANK"; sleep 300', inside=CONTAINER)
    three.start()
    three.wait_for_files("began-*", 3 * len(os.sched_getaffinity(0)))
    three.signal(1, signal.SIGKILL)
    assert three.wait() == [1, -signal.SIGKILL, 1], three.logs()
    assert "node 1 (10.98.1.2) is lost: it closed the connection" in three.log(0)


def test_more_ranks_than_gpus_are_refused(job: Make) -> None:
    three = job("true", env={"MPI_GPUS": "160"})
    three.start()
    assert three.wait() == [1, 1, 1], three.logs()
    cores = 3 * len(os.sched_getaffinity(0))
    assert f"MPI_GPUS is 160, and the nodes have {cores} together: GPUs, or cores" in three.log(0)


def test_without_a_program_nothing_starts(tmp_path: Path) -> None:
    batch_job = BatchJob(tmp_path, 1, env={"SLURM_STACKS_LAUNCH": "mpi"})
    batch_job.start()
    assert batch_job.wait() == [1]
    assert "the built-in training of ResNet-50 does not use MPI" in batch_job.log(0)
    batch_job.close()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    """The main node of the published job definition. mpirun need not be installed."""
    monkeypatch.setattr(mpi, "program", lambda name, package: f"/usr/bin/{name}")
    monkeypatch.setattr(mpi, "interface", lambda address: "eth0")
    env = {
        "AWS_BATCH_JOB_NODE_INDEX": "0",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
        "AWS_BATCH_JOB_NUM_NODES": "20",
        "JOB_DIR": "/fsx/resized",
        "SCRATCH_DIR": "/scratch",
        "EXTRA_MPI_PARAMS": PUBLISHED,
        "MPI_GPUS": "160",
        "SLURM_STACKS_LAUNCH": "mpi",
    }
    return settings.read(env)


def test_mpirun_is_called_as_published(published: settings.Settings, tmp_path: Path) -> None:
    slots = {f"10.0.0.{n}": 8 for n in range(20)}
    env = {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_MIN_NRINGS": "4", "SECRET": "x"}
    env["JOB_DIR"] = "/fsx/resized"
    made = mpi.command(published, slots, tmp_path, tmp_path / "config", env, ["python3", "train.py"])
    line = " ".join(made)
    for part in (
        "-np 160",
        "-mca plm_rsh_no_tree_spawn 1",
        "-bind-to socket -map-by slot",
        "-mca pml ob1 -mca btl ^openib -mca btl_tcp_if_include eth0",
        "-x JOB_DIR -x NCCL_SOCKET_IFNAME -x PATH",
        f"{PUBLISHED} -wdir /scratch python3 train.py",
    ):
        assert part in line
    assert "SECRET" not in line
    assert made.count("NCCL_MIN_NRINGS") == 0, "EXTRA_MPI_PARAMS gives it a value, and mpirun takes one alone"
    hosts = (tmp_path / "hosts").read_text().splitlines()
    assert (len(hosts), hosts[0], hosts[19]) == (20, "10.0.0.0 slots=8", "10.0.0.19 slots=8")


def test_own_parameters_take_the_place_of_ours(published: settings.Settings, tmp_path: Path) -> None:
    """EFA needs other parameters, for example, and mpirun refuses two values of one parameter."""
    given = "--mca pml cm -mca btl_tcp_if_include eth1 --bind-to none --map-by node"
    extra = tuple(given.split())
    efa = replace(published, extra_mpi=extra, mpi_ranks=None)
    made = mpi.command(efa, {"10.0.0.1": 8, "10.0.0.2": 8}, tmp_path, tmp_path / "config", {}, ["p"])
    assert " ".join(made).count(" pml ") == 1
    assert [made.count(word) for word in ("btl_tcp_if_include", "-bind-to", "-map-by")] == [1, 0, 0]
    assert made[made.index("-np") + 1] == "16", "without MPI_GPUS all are used"
    with pytest.raises(WorkloadError, match="MPI_GPUS is 17, and the nodes have 16 together"):
        mpi.ranks(replace(published, mpi_ranks=17), {"10.0.0.1": 8, "10.0.0.2": 8})
