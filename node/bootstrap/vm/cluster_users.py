"""The stack file's users on a machine: accounts with equal numbers everywhere, groups, keys, sudo, homes.

Accounts are made by one run of systemd-sysusers, however many there are, because every node's boot waits for
it. Homes are made once, by the controller, on the file system that all machines share. Keys are in a folder
of root's, so that one that leaves the stack file lets nobody in any longer.

A node that is up applies a later list before its next job (`users_prolog`).
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from node.bootstrap.command import Runner
from node.bootstrap.context import Context
from node.bootstrap.vm import users as login_users
from node.design.sharing import User, of_machines, users_line
from node.system import files, foreign
from node.system.locks import locked

KEYS = "etc/ssh/slurm-stacks-keys"
SSHD = "etc/ssh/sshd_config.d/10-slurm-stacks.conf"
"""The file sorts before others, because sshd uses the first value of each setting."""
SSHD_TEXT = f"""\
# Written by slurm-stacks: the users' own files, and the keys of the stack file.
AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys2 /{KEYS}/%u
"""
SUDO = "etc/sudoers.d/slurm-stacks-users"
SUDO_HEADER = "# Written by slurm-stacks: users with `sudo: true` in the stack file.\n"
SKELETON = "etc/skel"
SHELL = "/bin/bash"
EXPIRED = "1970-01-02"
RECORD = "users.json"
APPLIED = "users-applied"
"""The file with the second line of slurm.conf whose users this machine has."""
APPLY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Entry:
    """An account in /etc/passwd."""

    uid: int
    home: str


@dataclass(slots=True)
class Known:
    """What this machine has: accounts, groups, and what earlier calls have made of them.

    Attributes:
        groups: Group -> its number.
        members: Group -> its members.
        made: User whom we have made -> number.
        gone: The users whom we have made and who have left the stack file.
        joined: Group -> the members whom we have put into it.
        ours: Group that we have made -> number.
    """

    accounts: dict[str, Entry]
    groups: dict[str, int]
    members: dict[str, frozenset[str]]
    made: dict[str, int]
    gone: frozenset[str]
    joined: dict[str, frozenset[str]]
    ours: dict[str, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the functions need of a machine.

    Attributes:
        root: The root folder of its files.
        lib: The folder with its records.
        shared: The folder of homes.
        host: Whether it lasts as long as the cluster: a controller or login machine.
        logs_in: Whether users log in there from outside.
    """

    root: Path
    lib: Path
    shared: str
    run: Runner
    host: bool
    logs_in: bool


def of(context: Context) -> Machine:
    return Machine(
        context.at(""),
        context.path(context.folders.lib),
        context.settings.site.shared,
        context.run,
        host=context.role != "compute",
        logs_in=context.has_users,
    )


def prepare(context: Context) -> None:
    """Make the users on this machine, and their homes if it is the controller. `/home` is mounted."""
    users = of_machines(context.settings.design.users)
    made, told = apply(of(context), users)
    if context.role == "controller":
        told += homes(context, made)
    context.report.content["facts"].update({"users": "; ".join(told)} if told else {})


def prepare_late(context: Context) -> None:
    """Put users into the groups that hooks have made, and note the groups that are missing still."""
    users = of_machines(context.settings.design.users)
    apply(of(context), users)
    groups = _known(of(context)).groups if users else {}
    lacking = sorted(_memberships(users).keys() - groups.keys())
    facts = context.report.content["facts"]
    told = [facts["users"]] if "users" in facts else []
    told += [f"this machine has no group {name}: write {name}:ID to have it made" for name in lacking]
    facts.update({"users": "; ".join(told)} if told else {})


def apply(machine: Machine, users: Sequence[User]) -> tuple[list[User], list[str]]:
    """Give the machine the accounts of these users, and lock those who have left the list.

    A user whose name or number is taken is left out: one mistake must not stop everybody's cluster.

    Returns:
        The users who are there now, and sentences on those who have left or are left out.
    """
    record = machine.lib / RECORD
    if not users and not record.exists():
        return [], []
    files.folder(machine.lib)
    # Prologs of several jobs may come here at once.
    with locked(machine.lib / f".{RECORD}.lock", mode=0o600):
        known = _known(machine)
        clashes = Clashes(users, known, machine.shared)
        made = clashes.without(users)
        told = _lock_gone(machine, users, known) + clashes.lines
        _make(machine, made, known)
        _sudo(machine, made)
        if machine.logs_in:
            _keys(machine, made)
        _remember(machine, made, known)
        files.write(machine.lib / APPLIED, f"{users_line(users)}\n".encode())
    return made, told


class Clashes:
    """The users and groups whose names or numbers are others' on this machine.

    Attributes:
        lines: A sentence for each.
    """

    def __init__(self, users: Sequence[User], known: Known, shared: str) -> None:
        self._known = known
        self._group_names = {gid: name for name, gid in known.groups.items()}
        former = {uid: name for name, uid in known.made.items()}
        self._user_names = former | {entry.uid: name for name, entry in known.accounts.items()}
        found = {user.name: self._of_user(user, shared) for user in users}
        groups = {name: self._of_group(name, gid) for name, gid in sorted(numbered_groups(users).items())}
        self._users = {name for name, line in found.items() if line}
        self._groups = {name for name, line in groups.items() if line}
        self.lines = [f"{name} is not made: {line}" for name, line in found.items() if line]
        self.lines += [f"the group {name} is not made: {line}" for name, line in groups.items() if line]

    def without(self, users: Sequence[User]) -> list[User]:
        """Return the users who can be made, in the groups that can be made."""
        return [
            replace(user, groups=tuple(g for g in user.groups if g.partition(":")[0] not in self._groups))
            for user in users
            if user.name not in self._users
        ]

    def _of_user(self, user: User, shared: str) -> str:
        assert user.id is not None
        known = self._known
        have = known.accounts.get(user.name)
        uid = known.made.get(user.name) if have is None else have.uid
        if uid not in (None, user.id):
            return f"the id here is {uid}, and the stack file says {user.id}"
        if have is not None and have.home != f"{shared}/{user.name}":
            return f"there is a user of this name, whose home is {have.home}"
        other = self._user_names.get(user.id, user.name)
        if other != user.name:
            left = ", who has left the stack file" if other in known.made else ""
            return f"the id {user.id} is that of {other}{left}"
        if (gid := known.groups.get(user.name, user.id)) != user.id:
            return f"there is a group of this name with the id {gid}"
        if (group := self._group_names.get(user.id, user.name)) != user.name:
            return f"the id {user.id} is that of the group {group}"
        return ""

    def _of_group(self, name: str, gid: int) -> str:
        if (have := self._known.groups.get(name, gid)) != gid:
            return f"the id here is {have}, and the stack file says {gid}"
        if (group := self._group_names.get(gid, name)) != name:
            return f"the id {gid} is that of the group {group}"
        return ""


def numbered_groups(users: Sequence[User]) -> dict[str, int]:
    """Return the groups that the stack file numbers: name -> number."""
    pairs = (group.partition(":") for user in users for group in user.groups)
    return {name: int(number) for name, _, number in pairs if number}


def _memberships(users: Sequence[User]) -> dict[str, frozenset[str]]:
    """Return group -> its members of the stack file."""
    found: dict[str, set[str]] = {}
    for user in users:
        for group in user.groups:
            found.setdefault(group.partition(":")[0], set()).add(user.name)
    return {name: frozenset(members) for name, members in found.items()}


def _known(machine: Machine) -> Known:
    accounts = {
        fields[0]: Entry(int(fields[2]), fields[5]) for fields in _lines(machine.root / "etc/passwd", 7)
    }
    groups = {fields[0]: fields for fields in _lines(machine.root / "etc/group", 4)}
    try:
        record = foreign.record(machine.lib / RECORD)
    except FileNotFoundError:
        record = {}
    return Known(
        accounts,
        {name: int(fields[2]) for name, fields in groups.items()},
        {name: frozenset(filter(None, fields[3].split(","))) for name, fields in groups.items()},
        {str(name): int(uid) for name, uid in record.get("made", {}).items()},
        frozenset(record.get("gone", ())),
        {str(name): frozenset(members) for name, members in record.get("joined", {}).items()},
        {str(name): int(gid) for name, gid in record.get("groups", {}).items()},
    )


def _lines(file: Path, count: int) -> Iterator[list[str]]:
    for line in file.read_text(errors="replace").splitlines():
        if len(fields := line.split(":")) == count and fields[2].isdigit():
            yield fields


def _lock_gone(machine: Machine, users: Sequence[User], known: Known) -> list[str]:
    """Lock the accounts of users who have left, and end their logins; open those who are back."""
    wanted = {user.name for user in users}
    gone = [name for name in sorted(known.made) if name not in wanted]
    for name in gone:
        if name in known.gone or name not in known.accounts:
            continue
        machine.run("usermod", "--expiredate", EXPIRED, name)
        if machine.host:
            # 1: nobody of this name is logged in. Jobs are Slurm's.
            machine.run("loginctl", "terminate-user", name, allow=(0, 1))
    for name in sorted(known.gone & wanted & known.accounts.keys()):
        machine.run("usermod", "--expiredate", "", name)
    new = [name for name in gone if name not in known.gone]
    return [
        f"{name} (id {known.made[name]}) has left the stack file: the account is locked, "
        f"{machine.shared}/{name} stays"
        for name in new
    ]


def _make(machine: Machine, users: Sequence[User], known: Known) -> None:
    """Make what is missing, in one run, and take users out of groups that they have left."""
    numbers, members = numbered_groups(users), _memberships(users)
    missing = [user for user in users if user.name not in known.accounts]
    there = known.groups.keys() | numbers.keys()
    lines = [f"g {name} {gid}" for name, gid in sorted(numbers.items()) if name not in known.groups]
    lines += [f"g {user.name} {user.id}" for user in missing if user.name not in known.groups]
    lines += [
        f'u {user.name} {user.id}:{user.name} "" {machine.shared}/{user.name} {SHELL}' for user in missing
    ]
    lines += [
        f"m {name} {group}"
        for group, names in sorted(members.items())
        if group in there
        for name in sorted(names - known.members.get(group, frozenset()))
    ]
    if lines:
        text = "".join(f"{line}\n" for line in lines)
        machine.run("systemd-sysusers", "-", stdin=text, timeout=APPLY_SECONDS)
    for group, names in sorted(known.joined.items()):
        left = (names - members.get(group, frozenset())) & known.members.get(group, frozenset())
        for name in sorted(left):
            machine.run("gpasswd", "--delete", name, group)


def _sudo(machine: Machine, users: Sequence[User]) -> None:
    file = machine.root / SUDO
    names = sorted(user.name for user in users if user.sudo)
    if not names:
        file.unlink(missing_ok=True)
        return
    text = SUDO_HEADER + "".join(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n" for name in names)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, text.encode(), 0o440)


def _keys(machine: Machine, users: Sequence[User]) -> None:
    """Write each user's keys, and have sshd read them."""
    folder = files.folder(machine.root / KEYS)
    keys = {user.name: "".join(f"{key}\n" for key in user.ssh_keys) for user in users if user.ssh_keys}
    for name, text in keys.items():
        files.write(folder / name, text.encode())
    for file in folder.iterdir():
        if file.name not in keys:
            file.unlink()
    config = machine.root / SSHD
    config.parent.mkdir(parents=True, exist_ok=True)
    if files.write(config, SSHD_TEXT.encode()):
        machine.run("systemctl", "try-reload-or-restart", "ssh.service")


def _remember(machine: Machine, users: Sequence[User], known: Known) -> None:
    made = known.made | {user.name: user.id for user in users}
    members, numbers = _memberships(users), known.ours | numbered_groups(users)
    record = {
        "made": made,
        "gone": sorted(made.keys() - {user.name for user in users}),
        "joined": {group: sorted(names) for group, names in sorted(members.items())},
        "groups": numbers,
    }
    files.write(machine.lib / RECORD, json.dumps(record, indent=1).encode(), 0o600)


# --- homes, on the controller -----------------------------------------------------------------------------


def homes(context: Context, users: Sequence[User]) -> list[str]:
    """Make the homes that are missing, and a key in each with which the cluster's machines let the user in.

    Returns:
        A sentence for each home that belongs to somebody else.
    """
    told = []
    for user in users:
        assert user.id is not None
        home = f"{context.settings.site.shared}/{user.name}"
        place = context.at(home.lstrip("/"))
        try:
            owner = place.lstat().st_uid
        except FileNotFoundError:
            make_home(place, user.id, context.at(SKELETON))
            owner = user.id
        if owner != user.id:
            told.append(f"{home} belongs to the id {owner}, and {user.name} has {user.id}")
        elif not os.path.lexists(place / ".ssh" / f"{login_users.KEY}.pub"):
            login_users.keys_if_possible(context, pwd.getpwnam(user.name))
    return told


def make_home(place: Path, uid: int, skeleton: Path) -> None:
    """Make a home folder from the skeleton. It has its name only when it is complete."""
    draft = place.with_name(f".{place.name}.{os.urandom(8).hex()}")
    draft.mkdir(mode=0o700)
    if skeleton.is_dir():
        shutil.copytree(skeleton, draft, symlinks=True, dirs_exist_ok=True)
    for folder, names, others in os.walk(draft):
        for name in (*names, *others):
            os.chown(Path(folder, name), uid, uid, follow_symlinks=False)
    os.chown(draft, uid, uid)
    draft.chmod(stat.S_IRWXU)
    draft.rename(place)
