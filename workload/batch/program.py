"""The program of a node: its environment variables, its start and end, and how busy it keeps the GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from workload import slurm
from workload.batch.protocol import capacity, say, with_interface
from workload.batch.settings import Settings
from workload.errors import WorkloadError
from workload.program import PROGRESS_LINES, VALUES

DEFAULT = ("python3", "-m", "workload.resnet.train")
"""The program that runs if the job names none."""
NOT_STARTED = 126
"""The exit status of a node whose program cannot be started, as in shells."""
GRACE_SECONDS = 20.0
"""The time between SIGTERM and SIGKILL. AWS Batch gives the container 30 seconds."""
GPU_SECONDS = 60.0
"""The time between two lines."""
NVIDIA_SMI_SECONDS = 20.0
NVIDIA_SMI = "nvidia-smi"
"""The driver's own program, which NVIDIA's runtime puts into the container ("utility")."""
GPU_QUERY = ("--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")


def results(settings: Settings) -> dict[str, str]:
    """Return the variables that tell a program where its results go. Slurm stacks use the same ones."""
    folder = settings.run_folder
    return {
        "SLURM_STACKS_FOLDER": str(folder),
        "SLURM_STACKS_PROGRESS": str(folder / PROGRESS_LINES),
        "SLURM_STACKS_RESULT": str(folder / VALUES),
    }


def environment(
    settings: Settings, env: Mapping[str, str], addresses: Sequence[str], master: str, address: str
) -> dict[str, str]:
    """Return the variables of the program on this node.

    Args:
        settings: This node's settings.
        env: This node's environment variables.
        addresses: The `host:port` of each node, in the order of their ranks.
        master: The `host:port` for MASTER_ADDR and MASTER_PORT.
        address: This node's address.
    """
    rank = settings.rank(settings.node)
    host, _, port = master.rpartition(":")
    return {**with_interface(env, address), **exported(settings.extra_mpi)[0]} | {
        "RANK": str(rank),
        "WORLD_SIZE": str(settings.nodes),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TF_CONFIG": slurm.tf_config(addresses, rank),
        **results(settings),
    }


def exported(extra: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Read what EXTRA_MPI_PARAMS means where no mpirun starts the program.

    Returns:
        The variables of its `-x NAME=VALUE`, and the words that have no effect. `-x NAME` needs none:
        programs have all of the node's variables.
    """
    variables: dict[str, str] = {}
    unused: list[str] = []
    words = iter(extra)
    for word in words:
        if word != "-x":
            unused.append(word)
            continue
        name, equals, value = next(words, "").partition("=")
        if equals:
            variables[name] = value
    return variables, unused


async def start(settings: Settings, command: Sequence[str], env: Mapping[str, str]) -> Process:
    """Start the program in SCRATCH_DIR.

    Raises:
        WorkloadError: It cannot be started.
    """
    return await Process.start(command, env, settings.scratch)


class Process:
    """A running program, in a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Process:
        """Start a program. It inherits standard output and standard error, but no locks or sockets.

        Raises:
            WorkloadError: It cannot be started.
        """
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *command,
                    env=dict(env),
                    cwd=folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        except OSError as error:
            raise WorkloadError(f"{command[0]} cannot be started: {error.strerror}") from error

    async def wait(self) -> int:
        """Wait for the end, and return the exit status as shells do: 128 + number for a signal."""
        status = await self._process.wait()
        # Processes that the program left behind would keep the GPUs.
        self._signal(signal.SIGKILL)
        return status if status >= 0 else 128 - status

    async def end(self) -> None:
        """Send SIGTERM, and SIGKILL if that is not enough."""
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self._process.wait()
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def described(status: int) -> str:
    """Return an exit status in words."""
    if status > 128 and status - 128 in set(signal.Signals):
        return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"


async def watch_gpus(settings: Settings, seconds: float = GPU_SECONDS) -> None:
    """Print a line every `seconds`. It returns at once if there is no GPU."""
    program = shutil.which(NVIDIA_SMI)
    if program is None or not capacity()["gpus"]:
        return
    while True:
        await asyncio.sleep(seconds)
        if line := gpu_use(await _ask_nvidia_smi(program)):
            say(settings, line)


def gpu_use(text: str) -> str:
    """Return the log line for the output of nvidia-smi; an empty string if the output has no numbers."""
    rows = [line.split(", ") for line in text.splitlines()]
    numbers = [(int(row[0]), int(row[1])) for row in rows if len(row) == 2 and all(map(str.isdigit, row))]
    if not numbers:
        return ""
    busy = " ".join(f"{percent}" for percent, _ in numbers)
    mean = sum(percent for percent, _ in numbers) / len(numbers)
    memory = max(mib for _, mib in numbers) / 1024
    return f"GPUs busy: {mean:.0f} % ({busy}), memory at most {memory:.1f} GiB each"


async def _ask_nvidia_smi(program: str) -> str:
    """Return the program's output; an empty string if it fails or hangs, because the training must go on."""
    with contextlib.suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            program, *GPU_QUERY, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(NVIDIA_SMI_SECONDS):
                printed, _ = await process.communicate()
                return printed.decode(errors="replace")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return ""
