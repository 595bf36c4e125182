"""Checks of the users whom the stack makes on its machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from infra.config.rules.context import CLUSTER, Context
from infra.config.sharing import UserConfig

OF_MACHINES = ("id", "groups", "ssh_keys", "sudo")
"""The keys of a user that say who they are on the machines."""
FIRST_ID, LAST_ID, FIRST_LARGE_ID = 1001, 60000, 165536
"""1000 is the image's user. From 60001 to 65535 are numbers of systemd and nobody, and the image's user has
those from 100000 to 165535 for containers (/etc/subuid)."""
MACHINE_NAME = r"[a-z_][a-z0-9_-]{0,30}"
"""systemd-sysusers and useradd make no other users."""
_SYSTEM = """
root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats nobody admin adm tty
disk kmem dialout fax voice cdrom floppy tape sudo audio dip operator src shadow utmp video sasl plugdev staff
users nogroup wheel docker lxd incus libvirt kvm render input crontab netdev rdma sgx messagebus syslog uuidd
tcpdump sshd pollinate landscape fwupd-refresh usbmux ubuntu debian ec2-user ssm-user ec2-instance-connect
munge slurm mysql sssd statd dnsmasq systemd-network systemd-resolve systemd-timesync systemd-journal
systemd-coredump polkitd tss _chrony _rpc _apt _ssh
"""
SYSTEM_NAMES = frozenset(_SYSTEM.split())
"""Users and groups of the images and of what the boot installs. Several of the groups give rights."""


class Refusal(NamedTuple):
    """Why a user has none of the keys of `OF_MACHINES`."""

    code: str
    allowed: str
    advice: str


def check_users(c: Context) -> None:
    """Check who the users are on the machines; what they may use of Slurm is checked elsewhere."""
    users = [(index, user) for index, user in enumerate(c.cluster.users) if _sound(c, index)]
    if (refusal := _others_make_users(c)) is not None:
        for index, user in users:
            _refuse(c, index, user, refusal)
        return
    for index, user in users:
        if user.id is None:
            for key in OF_MACHINES:
                if getattr(user, key):
                    allowed = "nothing without `id`: the stack does not make this user"
                    advice = f"write the number of {user.name}, like id: 2001, or remove it"
                    c.add(
                        "users.needs-id", (*CLUSTER, "users", index, key), getattr(user, key), allowed, advice
                    )
        else:
            _check_made(c, index, user)
    _check_unique(c, [(index, user) for index, user in users if user.id is not None])


def _sound(c: Context, index: int) -> bool:
    return c.sound((*CLUSTER, "users", index))


def _others_make_users(c: Context) -> Refusal | None:
    """Return why the stack makes no users; `None` where it does."""
    if c.provider == "gcp":
        return Refusal(
            code="users.on-gcp",
            allowed="nothing on Google Cloud: OS Login gives each user a number and takes their keys",
            advice="remove it, and name who may log in under access.users",
        )
    if c.cluster.has_process_machines():
        return Refusal(
            code="users.on-processes",
            allowed="nothing where machines are processes: they are their owner's alone",
            advice="remove it, or write local: {isolation: container}",
        )
    if c.cluster.scheduler != "slurm":
        return Refusal(
            code="users.on-batch",
            allowed="nothing with scheduler: batch: nobody logs in to its machines",
            advice="remove it",
        )
    return None


def _refuse(c: Context, index: int, user: UserConfig, refusal: Refusal) -> None:
    for key in OF_MACHINES:
        if (value := getattr(user, key)) not in (None, [], False):
            at = (*CLUSTER, "users", index, key)
            c.add(refusal.code, at, value, refusal.allowed, refusal.advice)


def _check_made(c: Context, index: int, user: UserConfig) -> None:
    at = (*CLUSTER, "users", index)
    if user.name in SYSTEM_NAMES:
        allowed = "a name that means nothing to the system, for a user with `id`"
        c.add("users.system-name", (*at, "name"), user.name, allowed, "choose another name")
    elif not re.fullmatch(MACHINE_NAME, user.name):
        allowed = "a to z, 0 to 9, _ and -, at most 31 characters, for a user with `id`"
        c.add("users.machine-name", (*at, "name"), user.name, allowed)
    if not _is_free(user.id):
        allowed = f"{FIRST_ID} to {LAST_ID}, or {FIRST_LARGE_ID} and more: other numbers are the system's"
        c.add("users.system-id", (*at, "id"), user.id, allowed)
    for number, group in enumerate(user.groups):
        name, _, gid = group.partition(":")
        if gid and (name in SYSTEM_NAMES or not _is_free(int(gid))):
            c.add(
                "users.system-group",
                (*at, "groups", number),
                group,
                "the name alone of a group that the machines have, or NAME:ID of a new one, whose name and "
                "number are not the system's",
                f"write {name}, or another name or number",
            )


def _is_free(number: int | None) -> bool:
    return number is not None and (FIRST_ID <= number <= LAST_ID or number >= FIRST_LARGE_ID)


def _check_unique(c: Context, users: list[tuple[int, UserConfig]]) -> None:
    """Check that no two users or groups share a name or a number."""
    first_name: dict[str, int] = {}
    first_id: dict[int | None, int] = {}
    for index, user in users:
        if (other := first_name.setdefault(user.name, index)) != index:
            allowed = f"a name of its own: users[{other}] has it"
            c.add("users.name-twice", (*CLUSTER, "users", index, "name"), user.name, allowed)
        if (other := first_id.setdefault(user.id, index)) != index:
            allowed = f"a number of its own: users[{other}] has it"
            c.add("users.id-twice", (*CLUSTER, "users", index, "id"), user.id, allowed)
    owners = {user.id: f"the user {user.name}" for _, user in users}
    names = {user.name: user.id for _, user in users}
    for index, number, group, gid in _numbered(users):
        known = names.setdefault(group, gid)
        owner = owners.setdefault(gid, f"the group {group}")
        if known != gid or owner != f"the group {group}":
            why = f"{group} has the number {known}" if known != gid else f"{gid} is the number of {owner}"
            at = (*CLUSTER, "users", index, "groups", number)
            allowed = f"one number for each group, which nobody else has: {why}"
            c.add("users.group-clash", at, f"{group}:{gid}", allowed)


def _numbered(users: list[tuple[int, UserConfig]]) -> Iterator[tuple[int, int, str, int]]:
    """Yield the groups with numbers: index of the user and of the group, name, number."""
    for index, user in users:
        for number, group in enumerate(user.groups):
            name, _, gid = group.partition(":")
            if gid:
                yield index, number, name, int(gid)
