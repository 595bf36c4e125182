"""Whether process machines can know each other by name, and Slurm's programs the cluster without SLURM_CONF.

A probe makes a hosts namespace.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from localcloud import addresses, hosts_namespace
from localcloud.machines import base_python, has_hosts_namespace, set_hosts_namespace
from operations import programs
from operations.local.run_directory import RunDirectory

PROBE_SECONDS = 60.0
PROBE_NAME = "slurm-stacks-probe"
PROBE = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
NAMESPACE_SETTINGS = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
"""Kernel settings that deny namespaces to ordinary users: file, denying value, and the cure."""


def update(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Find out and save whether machines that start from now on know each other by name."""
    problem = unsupported_reason(addresses.ensure_block(run.path))
    for text in (problem, no_slurm_folder()):
        if text is not None:
            say(text)
    if has_hosts_namespace(run.path) != (problem is None):
        set_hosts_namespace(run.path, possible=problem is None)


def unsupported_reason(first: str) -> str | None:
    """Return why machines cannot know each other by name, with the cure; `None` if they can.

    Args:
        first: The first address of their block.
    """
    if not addresses.usable(first):
        return _sentence(
            "only 127.0.0.1 of the loopback's addresses leads to this host",
            "as root: ip address add 127.0.0.1/8 dev lo",
        )
    problem = _probe(addresses.head_address(first, 0))
    if not problem:
        return None
    if not hosts_namespace.HOSTS.exists():
        return _sentence("this host has no /etc/hosts", "as root: echo 127.0.0.1 localhost >/etc/hosts")
    if os.geteuid() == 0:
        return _sentence(
            f"this root may not make namespaces ({problem})",
            "if it is a container's, start that with --privileged",
        )
    for file, value, cure in NAMESPACE_SETTINGS:
        if Path(file).exists() and Path(file).read_text().strip() == value:
            return _sentence(
                f"this kernel lets no ordinary user make namespaces ({file} is {value})",
                f"as root: sysctl -w {cure}",
            )
    return _sentence(f"this kernel does not let an ordinary user make namespaces ({problem})", "run as root")


def no_slurm_folder() -> str | None:
    """Return why programs that remove SLURM_CONF do not find the cluster although there are namespaces."""
    folder = hosts_namespace.SLURM
    if folder.is_dir():
        return None
    return (
        "programs that remove SLURM_CONF from their environment do not find the cluster here, and all else "
        f"works: this host has no folder {folder}, in whose place they would see the cluster's; "
        f"as root: mkdir {folder}"
    )


def _sentence(cause: str, cure: str) -> str:
    return (
        "nodes do not know each other by name here, nor do programs without SLURM_CONF know the cluster, and "
        f"all else works: {cause}; {cure}"
    )


def _probe(address: str) -> str:
    """Make a hosts namespace with this address. Returns what went wrong; empty if it works."""
    python = [base_python(), "-I", "-S"]
    with tempfile.TemporaryDirectory() as folder:
        cloud = Path(folder) / "cloud"
        cloud.mkdir()
        hosts_namespace.slurm_folder(cloud).mkdir()
        (cloud / "hosts").write_text(f"{address} {PROBE_NAME}\n")
        command = [*python, hosts_namespace.__file__, str(cloud), PROBE_NAME, "--exec", *python, "-c", PROBE]
        done = programs.capture(command, seconds=PROBE_SECONDS)
    if done.out.split() == [PROBE_NAME, address]:
        return ""
    errors = done.err.strip().splitlines()
    return errors[0].partition("by name: ")[2] or errors[0] if errors else "/etc/hosts is not asked for names"
