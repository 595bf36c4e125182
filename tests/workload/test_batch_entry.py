"""The entry point of a multi-node parallel job: real processes stand for nodes, and any of them can fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batch_job import ID, BatchJob, until
from workload import result
from workload.batch import entry, nodes, program, settings
from workload.batch.nodes import MainNode
from workload.batch.protocol import capacity, interface, versions
from workload.errors import WorkloadError

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
folder, rank, what = Path(os.environ["SLURM_STACKS_FOLDER"]), int(os.environ["RANK"]), sys.argv[1]
parent = os.getppid()
def asked(number, frame):
    (folder / f"saved-{rank}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, asked)
(folder / f".started-{rank}").write_text(json.dumps({**os.environ, "PID": str(os.getpid())}))
(folder / f".started-{rank}").rename(folder / f"started-{rank}")
while what != "succeed" and len(list(folder.glob("started-*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.02)
if what == "succeed" and rank == 0:
    values = {"images_per_second": 812.5, "loss": 0.25, "nodes": 99}
    Path(os.environ["SLURM_STACKS_RESULT"]).write_text(json.dumps(values))
    Path(os.environ["SLURM_STACKS_PROGRESS"]).write_text('{"epoch": 1, "loss": 0.25}\\n')
if what == "stall" and rank == 0:
    sys.exit(0)
if what.startswith("fail") and rank == int(what[4:]):
    sys.exit(3)
# With a container all of its processes end; here nobody else does it.
while what != "succeed" and os.getppid() == parent:
    time.sleep(0.02)
"""

Make = Callable[..., BatchJob]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Make]:
    made: list[BatchJob] = []
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def make(nodes: int, what: str, **more: Any) -> BatchJob:
        env = {"SLURM_STACKS_WAIT_SECONDS": "100", **more.pop("env", {})}
        command = (sys.executable, "-S", str(program), what)
        made.append(BatchJob(tmp_path, nodes, *command, env=env, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def started(job: BatchJob) -> list[dict[str, str]]:
    """Return the variables of each rank's program, once all have started."""
    return [json.loads(path.read_text()) for path in job.wait_for_files("started-*", job.nodes)]


def all_gone(programs: list[dict[str, str]]) -> None:
    """Wait until no program is left that could hold the GPUs."""
    for variables in programs:
        process = Path("/proc", variables["PID"])
        until(lambda gone=process: not gone.exists(), lambda left=process: f"{left} is left")  # type: ignore[misc]


def test_all_nodes_run_the_program_and_the_main_node_tells_the_result(job: Make) -> None:
    """One node is late, the main node is not the first, and strangers' connections change nothing."""
    three = job(3, "succeed", main=1)
    three.start(1, 0)
    port, other = int(three.variables(0)["SLURM_STACKS_PORT"]), {"kind": "hello", "node": 0, "versions": {}}
    for line in (b"GET / HTTP/1.1\r\n\r\n", json.dumps(other).encode() + b"\n"):
        until(lambda text=line: _sent(port, text), three.logs)  # type: ignore[misc]
    three.start(2)
    assert three.wait() == [0, 0, 0], three.logs()
    programs = started(three)
    assert [p["AWS_BATCH_JOB_NODE_INDEX"] for p in programs] == ["1", "0", "2"], "rank 0 is the main node"
    assert {(p["WORLD_SIZE"], p["LOCAL_RANK"], p["LOCAL_WORLD_SIZE"]) for p in programs} == {("3", "0", "1")}
    assert len({(p["MASTER_ADDR"], p["MASTER_PORT"]) for p in programs}) == 1
    clusters = [json.loads(p["TF_CONFIG"]) for p in programs]
    workers = clusters[0]["cluster"]["worker"]
    assert [address.partition(":")[0] for address in workers] == ["127.0.0.2", "127.0.0.1", "127.0.0.3"]
    for rank, cluster in enumerate(clusters):
        assert cluster == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}

    made = three.result()
    assert result.batch_mistakes(made) == []
    gpus = 3 * capacity()["gpus"]
    expected = {"scheduler": "batch", "nodes": 3, "gpus": gpus, "images_per_second": 812.5, "loss": 0.25}
    assert expected.items() <= made.items(), "of the same name, what the main node knows is right"
    assert made["job_id"] == ID
    assert made["history"] == [{"epoch": 1, "loss": 0.25}]
    assert json.loads((three.shared / "result.json").read_text()) == made
    (told,) = [line for line in three.log(1).splitlines() if line.startswith(entry.LINE)]
    assert json.loads(told.removeprefix(entry.LINE)) == {k: v for k, v in made.items() if k != "history"}


def _sent(port: int, text: bytes) -> bool:
    """Send this to the main node, and return whether it closed the connection."""
    with socket.socket() as stranger:
        stranger.settimeout(60)
        if stranger.connect_ex(("127.0.0.2", port)):
            return False
        stranger.sendall(text)
        while stranger.recv(4096):
            pass
    return True


def test_a_job_of_one_node_needs_no_variables_of_batch(job: Make) -> None:
    one = job(1, "succeed", env=dict.fromkeys(("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"), ""))
    one.start(AWS_BATCH_JOB_MAIN_NODE_INDEX="")
    assert one.wait() == [0], one.logs()
    assert one.result()["nodes"] == 1


def test_a_node_that_does_not_start_is_named(job: Make) -> None:
    four = job(4, "succeed")
    four.start(2)
    four.wait_for_log(2, "looking for the main node")
    four.start(0, SLURM_STACKS_WAIT_SECONDS="5")
    assert four.wait() == [1, 1], four.logs()
    for node in (0, 2):
        assert "nodes 1 and 3 of 4 did not register within 5 s. Look at their logs" in four.log(node)
    four.processes.clear()
    four.start(1, SLURM_STACKS_WAIT_SECONDS="1")
    assert four.wait() == [1]
    assert "the main node, 127.0.0.1, did not answer at port" in four.log(1)


def test_a_program_that_fails_ends_the_job_with_its_status(job: Make) -> None:
    three = job(3, "fail2")
    three.run_folder.mkdir(parents=True)
    (three.run_folder / "result.json").write_text("{}")
    three.start()
    programs = started(three)
    assert three.wait() == [3, 3, 3], three.logs()
    assert "the program on node 2 (127.0.0.3) ended with status 3" in three.log(0)
    assert [path.name for path in three.wait_for_files("saved-*", 2)] == ["saved-0", "saved-1"]
    assert not (three.run_folder / "result.json").exists(), "neither an earlier attempt's"
    all_gone(programs)


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGKILL, "it closed the connection"), (signal.SIGSTOP, "it has said nothing for 8 s")],
)
def test_a_lost_worker_ends_the_job(job: Make, number: signal.Signals, why: str) -> None:
    """A worker is lost if its process dies or its machine goes silent."""
    three = job(3, "wait", env={"SLURM_STACKS_SILENCE_SECONDS": "8"})
    three.start()
    programs = started(three)
    three.signal(1, number)
    three.wait_for_log(0, f"node 1 (127.0.0.2) is lost: {why}")
    three.signal(1, signal.SIGCONT)
    until(lambda: three.processes[0].poll() is not None, three.logs)
    statuses = three.wait()
    assert (statuses[0], statuses[2]) == (1, 1), three.logs()
    all_gone(programs)


def test_a_lost_main_node_ends_the_others(job: Make) -> None:
    three = job(3, "wait")
    three.start()
    programs = started(three)
    three.signal(0, signal.SIGKILL)
    assert three.wait() == [-signal.SIGKILL, 1, 1], three.logs()
    assert "the main node is lost: it closed the connection" in three.log(2)
    all_gone(programs)


@pytest.mark.parametrize("node", [0, 1])
def test_sigterm_lets_every_program_save_and_fails_the_job(job: Make, node: int) -> None:
    """Batch sends it when a job is terminated or its time is over; a machine may be taken away alone."""
    two = job(2, "wait")
    two.start()
    programs = started(two)
    two.signal(node, signal.SIGTERM)
    assert two.wait() == [143, 143], two.logs()
    assert "was asked to end (SIGTERM)" in two.log(0)
    assert len(two.wait_for_files("saved-*", 2)) == 2
    assert not (two.run_folder / "result.json").exists()
    all_gone(programs)


def test_sigterm_while_nodes_are_awaited(job: Make) -> None:
    three = job(3, "wait")
    three.start(1)
    three.wait_for_log(1, "looking for the main node")
    three.signal(1, signal.SIGTERM)
    assert three.wait() == [143], three.logs()
    assert "before the main node answered" in three.log(1)
    three.start(0, 2)
    three.wait_for_log(0, "node 2 (127.0.0.3) is here")
    three.signal(0, signal.SIGTERM)
    assert three.wait() == [143, 143, 143], three.logs()


def test_another_image_is_refused(job: Make) -> None:
    two = job(2, "wait")
    two.start(0, SLURM_STACKS_IMAGE="training@sha256:aa")
    two.start(1, SLURM_STACKS_IMAGE="training@sha256:bb")
    assert two.wait() == [1, 1], two.logs()
    sentence = (
        "node 1 (127.0.0.2) runs something else than the main node (image: training@sha256:bb, and here "
        "training@sha256:aa). Give all nodes of the job definition one image, by its digest"
    )
    assert sentence in two.log(0)
    assert sentence in two.log(1)


def test_a_node_without_its_file_system_says_so_at_the_main_node(job: Make) -> None:
    """The message ends the main node's wait for this node."""
    two = job(2, "wait")
    (two.folder / "file").touch()
    two.start(0)
    two.start(1, JOB_DIR=str(two.folder / "file"))
    assert two.wait() == [1, 1], two.logs()
    assert "node 1 (127.0.0.2) cannot take part: JOB_DIR: " in two.log(0)
    assert "Look whether the volume is mounted" in two.log(0)


def test_a_training_does_not_run_on_fewer_gpus_than_asked_for(job: Make) -> None:
    """Such a training would be slow, and cost the same."""
    two = job(2, "wait", env={"MPI_GPUS": str(2 * capacity()["gpus"] + 2)})
    two.start()
    assert two.wait() == [1, 1], two.logs()
    assert f"and the GPUs of all nodes are {2 * capacity()['gpus']}. Look at the GPUs" in two.log(1)


@pytest.mark.parametrize(
    ("different", "why"),
    [
        ({"gpus": 7}, "another number of GPUs than the main node: 7, and here"),
        ({"problem": "no disk"}, "node 1 (127.0.0.2) cannot take part: no disk"),
        ({"node": 0}, "there is no such node beside the main one: 0"),
        ({"node": 2}, "there is no such node beside the main one: 2"),
        ({"node": "1"}, "this is the main node of a job of AWS Batch"),
    ],
)
def test_what_a_node_may_not_say(job: Make, different: dict[str, Any], why: str) -> None:
    read = settings.read(job(2, "wait").variables(0))
    main = MainNode(read, [], {})
    hello = {"kind": "hello", "node": 1, "address": "127.0.0.2", "versions": versions(read), **capacity()}
    assert main._refusal(hello) is None
    refusal = main._refusal(hello | different)
    assert refusal is not None
    assert why in refusal


def test_a_worker_that_stalls_after_the_main_nodes_success_is_ended(
    job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "LEAVE_SECONDS", 1.0)
    two = job(2, "stall")
    two.start(1)
    variables = two.variables(0)
    read = settings.read(variables)
    settings.check_folders(read)
    status, outcome = asyncio.run(MainNode(read, two._command, variables).run())
    assert status == 0
    assert outcome is not None
    assert two.wait() == [0], two.logs()
    assert len(two.wait_for_files("saved-1", 1)) == 1


def test_a_program_that_is_not_there(job: Make) -> None:
    two = job(2, "wait")
    two._command = ("no-such-program",)
    two.start()
    assert two.wait() == [126, 126], two.logs()
    assert "no-such-program cannot be started: No such file or directory" in two.log(0)


GOOD = {
    "AWS_BATCH_JOB_NODE_INDEX": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.9",
    "JOB_DIR": "/fsx/resized",
    "SCRATCH_DIR": "/scratch",
    "EXTRA_MPI_PARAMS": "-x NCCL_MIN_NRINGS=8 -x 'A=b c'",
    "MPI_GPUS": "160",
    "BATCH_SIZE": "256",
}


def test_the_published_variables_are_read() -> None:
    read = settings.read(GOOD)
    assert (read.node, read.main, read.nodes, read.main_address) == (2, 0, 4, "10.0.0.9")
    assert read.extra_mpi == ("-x", "NCCL_MIN_NRINGS=8", "-x", "A=b c")
    assert (read.mpi_ranks, read.launch) == (160, "processes")


def test_all_mistakes_in_the_variables_are_in_one_message() -> None:
    wrong = {
        "AWS_BATCH_JOB_NUM_NODES": "",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "main",
        "JOB_DIR": "fsx",
        "SCRATCH_DIR": "",
        "EXTRA_MPI_PARAMS": "-x 'A",
        "MPI_GPUS": "many",
        "BATCH_SIZE": "0",
        "SLURM_STACKS_LAUNCH": "srun",
        "SLURM_STACKS_WAIT_SECONDS": "soon",
    }
    with pytest.raises(WorkloadError) as caught:
        settings.read(GOOD | wrong)
    assert [name for name in wrong if name not in str(caught.value)] == []
    with pytest.raises(WorkloadError, match="NODE_INDEX is 4, and AWS_BATCH_JOB_NUM_NODES is 4"):
        settings.read(GOOD | {"AWS_BATCH_JOB_NODE_INDEX": "4"})


def test_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert capacity(tmp_path) == {"gpus": 3, "cores": len(os.sched_getaffinity(0))}


def test_a_node_with_gpus_says_how_busy_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """nvidia-smi is a script that fails first. Its lines have the form of the driver's program."""
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 9; }}\n"
        'echo "$@" >&2; printf "98, 30841\\n94, 30840\\n[N/A], [N/A]\\n"\n'
    )
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(program, "capacity", lambda: {"gpus": 2})
    said: list[str] = []
    read = settings.read(GOOD)

    async def watch() -> None:
        running = asyncio.create_task(program.watch_gpus(read, 0.01))
        while not said:
            await asyncio.sleep(0.01)
            said.extend(capsys.readouterr().err.splitlines())
        running.cancel()

    asyncio.run(watch())
    assert said[0] == "slurm-stacks: node 2: GPUs busy: 96 % (98 94), memory at most 30.1 GiB each"
    monkeypatch.setattr(program, "capacity", lambda: {"gpus": 0})
    asyncio.run(program.watch_gpus(read))


def test_the_interface_of_an_address() -> None:
    assert interface("127.0.0.3") == "lo"
    assert interface("192.0.2.77") == ""
