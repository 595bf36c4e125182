"""Whether process machines can know each other by name here: found out by a view of one, for a moment."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from infra.local.cloud import addresses, view
from infra.local.cloud.machines import has_view, set_view, usable_python
from infra.local.possible import SWITCHES
from infra.local.site import RunDirectory

PROBE_SECONDS = 60.0
PROBE_NAME = "slurm-stacks-probe"
PROBE = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"


def settle(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Find out whether machines that start from now on know each other by name, and remember it."""
    problem = why_not(addresses.settle(run.path))
    if problem is not None:
        say(problem)
    if has_view(run.path) != (problem is None):
        set_view(run.path, possible=problem is None)


def why_not(first: str) -> str | None:
    """What keeps machines from knowing each other by name, a sentence with its cure; None where they can.

    Args:
        first: of the addresses that they would have.
    """
    if not addresses.usable(first):
        return _sentence(
            "only 127.0.0.1 of the loopback's addresses leads to this host",
            "as root: ip address add 127.0.0.1/8 dev lo",
        )
    problem = _probe(addresses.host(first, 0))
    if not problem:
        return None
    if not view.HOSTS.exists():
        return _sentence("this host has no /etc/hosts", "as root: echo 127.0.0.1 localhost >/etc/hosts")
    if os.geteuid() == 0:
        return _sentence(
            f"this root may not make namespaces ({problem})",
            "if it is a container's, start that with --privileged",
        )
    for file, value, cure in SWITCHES:
        if Path(file).exists() and Path(file).read_text().strip() == value:
            return _sentence(
                f"this kernel lets no ordinary user make namespaces ({file} is {value})",
                f"as root: sysctl -w {cure}",
            )
    return _sentence(f"this kernel does not let an ordinary user make namespaces ({problem})", "run as root")


def _sentence(cause: str, cure: str) -> str:
    return f"nodes do not know each other by name here, and all else works: {cause}; {cure}"


def _probe(address: str) -> str:
    """What goes wrong in a view of a machine with this address; empty: nothing."""
    python = [usable_python(), "-I", "-S"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hosts").write_text(f"{address} {PROBE_NAME}\n")
        try:
            done = subprocess.run(
                [*python, view.__file__, folder, PROBE_NAME, "--exec", *python, "-c", PROBE],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {PROBE_SECONDS:g} s"
    if done.stdout.split() == [PROBE_NAME, address]:
        return ""
    said = done.stderr.strip().splitlines()
    return said[0].partition("by name: ")[2] or said[0] if said else "/etc/hosts is not asked for names"
