"""The steps of whole machines: a cloud's, and containers on the local stack."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from infra.node.bootstrap import accounts, files, key_server, sshd, store
from infra.node.bootstrap.context import Context
from infra.node.bootstrap.own_slurm import ready, slurm
from infra.node.bootstrap.vm import mounts as of_clouds
from infra.node.bootstrap.vm import names as own_names
from infra.node.bootstrap.vm import people
from infra.node.model import Mount

__all__ = ["hosts", "mounts", "ready", "secrets", "slurm", "users"]

KEY = "munge.key"
KEY_SECONDS = {"login": 750.0, "compute": 110.0}
"""How long a machine waits for the controller's key: within the step's limit, so that it can say more.

A login machine is made with the controller, which may have to wait for its own right to the key; a node is
made much later."""
KEY_PAUSE_SECONDS = 1.0
TOOK = "took the cluster's munge key"
NEW_MODE = 0o755
"""The mode of the root folder of a file system that is new."""


def users(context: Context) -> str:
    """Slurm's and munge's users."""
    if os.geteuid() != 0:
        raise PermissionError("a machine of its own is brought up by root")
    user = context.settings.site.user
    wanted = (user, "munge")
    made = [user for user in wanted if _make_user(context, user)]
    return f"made {' and '.join(made)}" if made else f"{' and '.join(wanted)} are there"


def _make_user(context: Context, user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        pass
    else:
        return False
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += [
        "--shell",
        "/usr/sbin/nologin",
        *(["--uid", str(accounts.IDS[user])] if user in accounts.IDS else []),
        user,
    ]
    context.run(*command)
    return True


def hosts(context: Context) -> str:
    """The machine's name, and the controller's."""
    files.place(context.at("etc/hostname"), f"{context.host}\n".encode())
    if socket.gethostname() != context.host:
        socket.sethostname(context.host)
    return own_names.place(context)


def secrets(context: Context) -> str:
    """The munge key: the controller has it from the secret store, and everybody else from the controller.

    The controller of a new cluster makes it. A key that is only on this machine is not taken: the
    distribution's package makes one at its installation, which is no other machine's.
    """
    context.report.content["host_keys"] = sshd.host_keys(context)
    controller = context.role == "controller"
    key, word = _key_of_the_cluster(context) if controller else (_key_from_controller(context), TOOK)
    path = context.path(context.folders.munge_key)
    files.folder(path.parent, 0o700, context.munge_user)
    files.place(path, key, 0o400, context.munge_user)
    if controller:
        log = context.path(context.folders.log) / "keys.log"
        service = key_server.service(context.settings.site.python, context.folders.code, path, log)
        context.services.stop(service.name)
        context.services.start(service)
    return word


def _key_of_the_cluster(context: Context) -> tuple[bytes, str]:
    place = store.of(context.settings)
    if (key := place.get(KEY)) is not None:
        return key, TOOK
    key = os.urandom(key_server.KEY_BYTES)
    place.put(KEY, key)
    return key, "made the munge key"


def _key_from_controller(context: Context) -> bytes:
    longest = KEY_SECONDS[context.role]
    deadline = time.monotonic() + longest
    while True:
        try:
            return key_server.fetch(context.settings.site.controller_address)
        except key_server.KeyUnavailableError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the controller has given no munge key for {longest:g} s ({error}): "
                    "see what its boot came to "
                    f"(./cluster logs --stack {context.settings.design.stack} controller)"
                ) from error
        time.sleep(KEY_PAUSE_SECONDS)


def mounts(context: Context) -> str:
    """What this role mounts; what is mounted already stays."""
    mine, kinds = context.mounts(), of_clouds.kinds(context)
    for mount in mine:
        if mount.kind not in kinds:
            raise ValueError(
                f"{mount.path}: storage of kind {mount.kind} is not on this provider "
                f"(there is: {', '.join(kinds)})"
            )
        kinds[mount.kind](context, mount)
    site = context.settings.site
    for folder in (site.shared, site.apps):
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"{folder}: no such folder, and nothing is mounted there")
    if context.role == "controller":
        # Any user may stage a benchmark there, and nobody takes away another's: as in /tmp.
        files.folder(Path(site.shared) / "bench", 0o1777)
        _open_scratch(context, mine)
    of_clouds.export(context)
    if context.role == "controller":
        people.prepare(context)
    if context.people:
        people.way_to_nodes(context)
    return " and ".join(mount.path for mount in mine) or "nothing to mount"


def _open_scratch(context: Context, mine: Sequence[Mount]) -> None:
    """Let every user write to shared scratch file systems, each into what is theirs, as in /tmp.

    A new file system belongs to root alone. One whose owner or mode somebody has chosen keeps both.
    """
    site = context.settings.site
    for mount in mine:
        folder = context.at(mount.path.lstrip("/"))
        if str(folder) in (site.shared, site.apps) or mount.path in (site.shared, site.apps):
            continue
        there = folder.stat()
        if there.st_uid == os.geteuid() and stat.S_IMODE(there.st_mode) == NEW_MODE:
            folder.chmod(0o1777)
