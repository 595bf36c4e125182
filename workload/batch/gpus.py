"""Writes to a node's log, once a minute, how busy its GPUs are."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

from workload.batch.node import capacity, say
from workload.batch.settings import Settings

SECONDS = 60.0
"""The time between two lines."""
PATIENCE_SECONDS = 20.0
PROGRAM = "nvidia-smi"
"""The driver's own program, which NVIDIA's runtime puts into the container ("utility")."""
QUERY = ("--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")


async def watch(settings: Settings, seconds: float = SECONDS) -> None:
    """Print a line every `seconds`. It returns at once if there is no GPU."""
    program = shutil.which(PROGRAM)
    if program is None or not capacity()["gpus"]:
        return
    while True:
        await asyncio.sleep(seconds)
        if line := described(await _asked(program)):
            say(settings, line)


def described(text: str) -> str:
    """Return the log line for the output of nvidia-smi; an empty string if the output has no numbers."""
    rows = [line.split(", ") for line in text.splitlines()]
    numbers = [(int(row[0]), int(row[1])) for row in rows if len(row) == 2 and all(map(str.isdigit, row))]
    if not numbers:
        return ""
    busy = " ".join(f"{percent}" for percent, _ in numbers)
    mean = sum(percent for percent, _ in numbers) / len(numbers)
    memory = max(mib for _, mib in numbers) / 1024
    return f"GPUs busy: {mean:.0f} % ({busy}), memory at most {memory:.1f} GiB each"


async def _asked(program: str) -> str:
    """Return the program's output; an empty string if it fails or hangs, because the training must go on."""
    with contextlib.suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            program, *QUERY, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                printed, _ = await process.communicate()
                return printed.decode(errors="replace")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return ""
