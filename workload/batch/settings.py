"""A node's settings in a multi-node parallel job, from its environment variables.

AWS Batch sets the variables `AWS_BATCH_…`; the job definition sets the others. The names JOB_DIR,
SCRATCH_DIR, BATCH_SIZE, EXTRA_MPI_PARAMS and MPI_GPUS are those of the published job definition.
Source: docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workload.errors import WorkloadError

PORT = 23456
"""The port of the main node at which the others register. Each node of a job has its own
network interface, so no other program uses the port."""
SSH_PORT = 23457
WAIT_SECONDS = 1800.0
"""How long the main node waits for the others. Their machines may pull an image of several GB first."""
SILENCE_SECONDS = 60.0
PROCESSES, MPI = "processes", "mpi"


@dataclass(frozen=True, slots=True)
class Settings:
    """One node's settings.

    Attributes:
        node: The number of this node, from 0.
        main: The number of the main node.
        nodes: The number of nodes.
        main_address: The main node's address; None on the main node itself.
        job: The id of the job, the same on every node.
        attempt: The number of this attempt, from 1.
        folder: JOB_DIR: a folder that all nodes see.
        scratch: SCRATCH_DIR: where the program starts, on the node's own disk.
        launch: How the program starts: `processes` or `mpi`.
        extra_mpi: EXTRA_MPI_PARAMS: further arguments of mpirun.
        mpi_ranks: MPI_GPUS: the number of MPI's ranks; None for one for each GPU or core.
        image: The image's name, which the image sets in SLURM_STACKS_IMAGE.
        address: The node's own address; empty means the one by which nodes reach each other.
        port: The main node's port, at which the others register.
        ssh_port: The port of each node's sshd.
        wait: Seconds that nodes wait for each other.
        silence: Seconds without a message after which a node counts as lost.
    """

    node: int
    main: int
    nodes: int
    main_address: str | None
    job: str
    attempt: int
    folder: Path
    scratch: Path
    launch: str
    extra_mpi: tuple[str, ...]
    mpi_ranks: int | None
    image: str
    address: str
    port: int
    ssh_port: int
    wait: float
    silence: float

    @property
    def is_main(self) -> bool:
        return self.node == self.main

    @property
    def run_folder(self) -> Path:
        """The folder of this job, which its later attempts have, too."""
        return self.folder / "runs" / self.job

    def rank(self, node: int) -> int:
        """Return a node's rank: the main node is 0, the others follow in the order of their numbers."""
        return [self.main, *(n for n in range(self.nodes) if n != self.main)].index(node)


def read(env: Mapping[str, str]) -> Settings:
    """Read a node's settings. If Batch has set none of its three numbers, this is the job's only node.

    Raises:
        WorkloadError: Variables are missing or wrong; the message names all of them.
    """
    reader = _Reader(env)
    batch = ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_MAIN_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES")
    alone = not any(env.get(name) for name in batch)
    node, main = (0 if alone else reader.number(name, 0) for name in batch[:2])
    nodes = 1 if alone else reader.number(batch[2], 1)
    if not reader.wrong:
        for name, number in zip(batch, (node, main), strict=False):
            if number >= nodes:
                reader.wrong.append(f"{name} is {number}, and {batch[2]} is {nodes}: numbers begin at 0")
    address = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    # Batch does not set this variable on the main node.
    main_address = None if node == main else reader.address(address, needed=True)
    launch = env.get("SLURM_STACKS_LAUNCH") or PROCESSES
    if launch not in (PROCESSES, MPI):
        reader.wrong.append(f"SLURM_STACKS_LAUNCH is {launch!r}: {PROCESSES} or {MPI} is expected")
    settings = Settings(
        node=node,
        main=main,
        nodes=nodes,
        main_address=main_address,
        # Each node has its own id: the job's id with #<number>.
        job=(env.get("AWS_BATCH_JOB_ID") or "local").partition("#")[0],
        attempt=reader.number("AWS_BATCH_JOB_ATTEMPT", 1, 1),
        folder=reader.folder("JOB_DIR"),
        scratch=reader.folder("SCRATCH_DIR"),
        launch=launch,
        extra_mpi=reader.arguments("EXTRA_MPI_PARAMS"),
        mpi_ranks=reader.number("MPI_GPUS", 1, 0) or None,
        image=env.get("SLURM_STACKS_IMAGE", ""),
        address=reader.address("SLURM_STACKS_ADDRESS", needed=False) or "",
        port=reader.number("SLURM_STACKS_PORT", 1, PORT),
        ssh_port=reader.number("SLURM_STACKS_SSH_PORT", 1, SSH_PORT),
        wait=reader.seconds("SLURM_STACKS_WAIT_SECONDS", WAIT_SECONDS),
        silence=reader.seconds("SLURM_STACKS_SILENCE_SECONDS", SILENCE_SECONDS),
    )
    reader.number("BATCH_SIZE", 1, 1)  # for the program; a mistake must show early
    if reader.wrong:
        raise WorkloadError("; ".join(reader.wrong))
    return settings


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.wrong: list[str] = []

    def number(self, name: str, least: int, default: int | None = None) -> int:
        text = self._env.get(name, "").strip()
        if not text and default is not None:
            return default
        if not text:
            self.wrong.append(f"{name} is not set: AWS Batch sets it in multi-node parallel jobs")
        elif not (text.isascii() and text.isdigit()) or int(text) < least:
            self.wrong.append(f"{name} is {text!r}: a whole number of at least {least} is expected")
        else:
            return int(text)
        return least

    def seconds(self, name: str, default: float) -> float:
        text = self._env.get(name, "").strip()
        try:
            value = float(text) if text else default
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            self.wrong.append(f"{name} is {text!r}: a number of seconds is expected")
        return value

    def address(self, name: str, *, needed: bool) -> str | None:
        text = self._env.get(name, "").strip()
        if not text:
            if needed:
                self.wrong.append(f"{name} is not set: AWS Batch sets it on every node but the main one")
            return None
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            self.wrong.append(f"{name} is {text!r}: an IPv4 address is expected")
            return None

    def folder(self, name: str) -> Path:
        text = self._env.get(name, "").strip()
        if not Path(text).is_absolute():
            given = repr(text) if text else "not set"
            self.wrong.append(f"{name} is {given}: an absolute path is expected, such as /fsx/resized")
        return Path(text)

    def arguments(self, name: str) -> tuple[str, ...]:
        text = self._env.get(name, "")
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            self.wrong.append(f"{name} is {text!r}: {error}")
            return ()


def check_folders(settings: Settings) -> None:
    """Make the folders, and check that this node can write to them.

    Raises:
        WorkloadError: A folder cannot be made or written; the message names it and the mount to check.
    """
    for name, folder in (("JOB_DIR", settings.run_folder), ("SCRATCH_DIR", settings.scratch)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            mark = folder / f".write-{settings.node}"
            mark.touch()
            mark.unlink()
        except OSError as error:
            raise WorkloadError(
                f"{name}: {folder} cannot be written ({error.strerror}). Look whether the volume is mounted "
                "in the container (mountPoints of the job definition) and on the machine"
            ) from error
