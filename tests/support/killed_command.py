"""A `./cluster` that ends by SIGKILL where it calls a function: a closed laptop, at a chosen moment."""

from __future__ import annotations

import subprocess
import sys

from tests.support.checkout import Checkout

PROGRAM = """
import os, pkgutil, signal, sys
from cli import main
places, sys.argv = sys.argv[1].split(), ["cluster", *sys.argv[2:]]
for place in places:
    holder, _, name = place.rpartition(".")
    def end(*_arguments, **_options):
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(pkgutil.resolve_name(holder), name, end)
main.main()
"""
CLOSED = "cli.changes.decision._agreed"
"""What `down` calls when it has closed the partitions, and has told no job to end."""
DESTROY = "cli.commands.operate._destroy"


def run(checkout: Checkout, places: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is killed at the first of these functions."""
    folder = str(checkout.folder)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, " ".join(places), *words, "--stack", checkout.stack],
        env={**checkout.env, "PYTHONPATH": folder, "SLURM_STACKS_PROJECT": folder},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
