"""What process machines have in a namespace: names, Slurm's programs without SLURM_CONF, a /tmp of their own.

A probe finds out whether there can be such a namespace. Compute machines alone have a /tmp of their own, and
in it what belongs to the cluster or is named by the stack file.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.program import locations
from infra.program.stack import Stack
from localcloud import addresses, hosts_namespace
from localcloud.machines import base_python, has_hosts_namespace, set_hosts_namespace
from node.system import files
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


def update(run: RunDirectory, stack: Stack, say: Callable[[str], None]) -> None:
    """Find out and save what machines that start from now on have in their namespaces."""
    problem = unsupported_reason(addresses.ensure_block(run.path))
    for text in (problem, no_slurm_folder()):
        if text is not None:
            say(text)
    shared = run.cloud / hosts_namespace.SHARED_IN_TMP
    if problem is None:
        files.write(shared, json.dumps(shared_in_tmp(stack)).encode())
    else:
        shared.unlink(missing_ok=True)
    if has_hosts_namespace(run.path) != (problem is None):
        set_hosts_namespace(run.path, possible=problem is None)


def shared_in_tmp(stack: Stack) -> list[str]:
    """Return the paths below /tmp that are the same on all machines.

    These are the folders of clusters and of the checkout, the user's home, cache and state folders, this
    Python, and what the stack file names by its absolute path, such as data or a container's bundle. Any of
    them may be missing.
    """
    # Imported late, because `status` and `exec` import this module, and do not read the stack file.
    from infra.config import ConfigError, stack_file

    folders = [stack.project, locations.run_root(), locations.cache_root(), locations.state_root()]
    folders += [locations.home(), Path(sys.prefix), Path(sys.base_prefix)]
    with contextlib.suppress(KeyError):  # this user may have a home folder in $HOME only
        folders.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    with contextlib.suppress(ConfigError):  # `up` has refused a file with mistakes
        folders += map(Path, _paths(stack_file.all_values(stack.file, stack.project)))
    # A path may be a link, or lead through some.
    return hosts_namespace.outermost(
        path for named in map(str, folders) for path in (named, os.path.realpath(named))
    )


def _paths(value: object) -> Iterator[str]:
    """Find the absolute paths among values of a stack file, also in arguments such as `--data=/tmp/data`."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, str) and "\0" not in value:
        yield from (text for text in (value, value.partition("=")[2]) if text.startswith("/"))


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
        "nodes do not know each other by name here, they share this host's /tmp, and programs without "
        f"SLURM_CONF do not know the cluster; all else works: {cause}; {cure}"
    )


def _probe(address: str) -> str:
    """Make a compute machine's namespace with this address. Returns what went wrong; empty if it works."""
    python = [base_python(), "-I", "-S"]
    with tempfile.TemporaryDirectory() as folder:
        cloud, tmp = Path(folder) / "cloud", Path(folder) / "tmp"
        for inner in (cloud, tmp, hosts_namespace.slurm_folder(cloud)):
            inner.mkdir()
        (cloud / "hosts").write_text(f"{address} {PROBE_NAME}\n")
        (cloud / hosts_namespace.SHARED_IN_TMP).write_text(json.dumps([os.path.realpath(sys.base_prefix)]))
        enter = [hosts_namespace.__file__, str(cloud), PROBE_NAME, f"{hosts_namespace.TMP_OPTION}{tmp}"]
        command = [*python, *enter, "--exec", *python, "-c", PROBE]
        done = programs.capture(command, seconds=PROBE_SECONDS)
    if done.out.split() == [PROBE_NAME, address]:
        return ""
    if not (errors := done.err.strip().splitlines()):
        return "/etc/hosts is not asked for names"
    return errors[0].partition("namespace: ")[2] or errors[0]
