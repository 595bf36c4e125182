"""The stack file's users on a machine: what is made, what is refused, and who has left."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.bootstrap.vm import cluster_users, users_prolog
from node.bootstrap.vm.cluster_users import Machine, apply, make_home
from node.design.folders import Folders
from node.design.sharing import User, digest_of_machines, users_line
from tests.support.doubles import settings

PASSWD = "root:x:0:0:root:/root:/bin/bash\nadmin:x:1000:1000::/home/admin:/bin/bash\n"
GROUP = "root:x:0:\ndocker:x:990:admin\nadmin:x:1000:\nusers:x:100:\n"
ADA = User("ada", id=2001, groups=("research:3001", "docker"), ssh_keys=("ssh-ed25519 AAAA ada",), sudo=True)
BOB = User("bob", id=2002, groups=("research:3001",))


class Sysusers:
    """Runs systemd-sysusers on the folder in place of the machine's root, and records everything else."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.calls: list[str] = []

    def __call__(self, *argv: str, **options: Any) -> str:
        if argv[0] != "systemd-sysusers":
            self.calls.append(" ".join(argv))
            return ""
        command = [argv[0], f"--root={self._root}", "-"]
        done = subprocess.run(command, input=options["stdin"], text=True, capture_output=True, check=False)
        assert (done.returncode, "already used" in done.stderr) == (0, False), done.stderr
        return str(done.stdout)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A login machine's files; the first user is the image's."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    return Machine(tmp_path, tmp_path / "lib", "/home", Sysusers(tmp_path), host=True, logs_in=True)


def entries(machine: Machine, name: str) -> dict[str, list[str]]:
    lines = (machine.root / "etc" / name).read_text().splitlines()
    return {line.split(":")[0]: line.split(":")[1:] for line in lines}


def commands(machine: Machine) -> list[str]:
    run = machine.run
    assert isinstance(run, Sysusers)
    found, run.calls = run.calls, []
    return found


needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-sysusers") is None, reason="systemd-sysusers as root"
)


@needs_root
def test_users_have_their_numbers_groups_keys_and_rights(machine: Machine) -> None:
    assert apply(machine, [ADA, BOB]) == ([ADA, BOB], [])
    accounts, groups = entries(machine, "passwd"), entries(machine, "group")
    assert accounts["ada"] == ["x", "2001", "2001", "", "/home/ada", "/bin/bash"]
    assert accounts["bob"][1:3] == ["2002", "2002"]
    assert (groups["ada"][1], groups["research"][1], groups["docker"][1]) == ("2001", "3001", "990")
    assert set(groups["research"][2].split(",")) == {"ada", "bob"}
    assert set(groups["docker"][2].split(",")) == {"admin", "ada"}
    assert (machine.root / cluster_users.KEYS / "ada").read_text() == "ssh-ed25519 AAAA ada\n"
    assert not (machine.root / cluster_users.KEYS / "bob").exists()
    sudo = machine.root / cluster_users.SUDO
    assert sudo.read_text().splitlines()[1:] == ["ada ALL=(ALL:ALL) NOPASSWD: ALL"]
    assert sudo.stat().st_mode & 0o7777 == 0o440
    assert commands(machine) == ["systemctl try-reload-or-restart ssh.service"]
    # The machine has what it should have: nothing runs.
    assert apply(machine, [ADA, BOB]) == ([ADA, BOB], [])
    assert commands(machine) == []


@needs_root
def test_who_leaves_is_locked_and_who_returns_is_not(machine: Machine) -> None:
    apply(machine, [ADA, BOB])
    commands(machine)
    _, told = apply(machine, [BOB])
    assert told == ["ada (id 2001) has left the stack file: the account is locked, /home/ada stays"]
    assert commands(machine) == [
        "usermod --expiredate 1970-01-02 ada",
        "loginctl terminate-user ada",
        "gpasswd --delete ada docker",
        "gpasswd --delete ada research",
    ]
    assert not (machine.root / cluster_users.KEYS / "ada").exists()
    assert not (machine.root / cluster_users.SUDO).exists()
    carl = User("carl", id=2001)
    left = "carl is not made: the id 2001 is that of ada, who has left the stack file"
    assert apply(machine, [BOB, carl]) == ([BOB], [left])
    assert commands(machine) == []
    apply(machine, [ADA, BOB])
    assert commands(machine) == ["usermod --expiredate  ada"]
    assert apply(machine, [])[0] == []
    assert commands(machine)[0] == "usermod --expiredate 1970-01-02 ada"


@needs_root
def test_who_clashes_with_this_machines_users_is_left_out_and_named(machine: Machine) -> None:
    with (machine.root / "etc/passwd").open("a") as stream:
        stream.write("eve:x:2005:2005::/home/eve:/bin/sh\nroom:x:2009:2009::/srv/room:/bin/sh\n")
    kate = User("kate", id=2011, groups=("users:3002", "mine:990", "lab:3003"), sudo=True)
    clashing = [
        User("eve", id=2006),
        User("mike", id=2005),
        User("room", id=2009),
        User("docker", id=2010, sudo=True, ssh_keys=("ssh-ed25519 AAAA",)),
        User("lars", id=990),
    ]
    made, told = apply(machine, [*clashing, kate])
    assert made == [replace(kate, groups=("lab:3003",))]
    assert told == [
        "eve is not made: the id here is 2005, and the stack file says 2006",
        "mike is not made: the id 2005 is that of eve",
        "room is not made: there is a user of this name, whose home is /srv/room",
        "docker is not made: there is a group of this name with the id 990",
        "lars is not made: the id 990 is that of the group docker",
        "the group mine is not made: the id 990 is that of the group docker",
        "the group users is not made: the id here is 100, and the stack file says 3002",
    ]
    assert entries(machine, "passwd").keys() == {"root", "admin", "eve", "room", "kate"}
    assert "docker" not in (machine.root / cluster_users.SUDO).read_text()
    assert list((machine.root / cluster_users.KEYS).iterdir()) == []
    # A user whom a hook has made with this number is the stack's from now on.
    eve = User("eve", id=2005)
    assert apply(machine, [eve, kate])[0][0] == eve


@needs_root
def test_a_home_is_whole_and_the_users_alone(tmp_path: Path) -> None:
    skeleton = tmp_path / "skel"
    (skeleton / "bin").mkdir(parents=True)
    (skeleton / "bin/hello").write_text("hello")
    (skeleton / "link").symlink_to("/etc/shadow")
    owner = Path("/etc/shadow").stat().st_uid
    make_home(tmp_path / "ada", 2001, skeleton)
    home = tmp_path / "ada"
    assert (home.stat().st_uid, home.stat().st_mode & 0o7777) == (2001, 0o700)
    assert {(path.name, path.lstat().st_uid) for path in home.rglob("*")} == {
        ("bin", 2001), ("hello", 2001), ("link", 2001),
    }  # fmt: skip
    assert Path("/etc/shadow").stat().st_uid == owner, "a link in the skeleton is not followed"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_digest_follows_what_machines_have_and_nothing_else() -> None:
    first = digest_of_machines([ADA, BOB])
    assert first == digest_of_machines([BOB, ADA, User("os-login")])
    assert first == digest_of_machines([replace(ADA, shares=7, account="x"), BOB])
    others = [
        [ADA],
        [replace(ADA, sudo=False), BOB],
        [replace(ADA, id=2003), BOB],
        [replace(ADA, groups=()), BOB],
        [replace(ADA, ssh_keys=()), BOB],
    ]
    assert len({first, *map(digest_of_machines, others)}) == 6


# --- the prolog of nodes that are up ----------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Folders:
    folders = Folders(replace(settings(tmp_path), design=replace(settings(tmp_path).design, isolation="vm")))
    for path in (folders.spool / "conf-cache", folders.lib, folders.log, folders.code / "bin"):
        Path(str(path)).mkdir(parents=True)
    program = Path(str(folders.code / "bin" / users_prolog.PROGRAM))
    program.write_text("#!/bin/sh\necho applied\n")
    program.chmod(0o755)
    return folders


def prolog(folders: Folders, conf: str, applied: str | None, user: int, checks: str = "true") -> str:
    """Run the prolog, and return what the program has written that applies the list."""
    Path(str(folders.spool / "conf-cache/slurm.conf")).write_text(conf)
    if applied is not None:
        Path(str(folders.lib / cluster_users.APPLIED)).write_text(f"{applied}\n")
    log = Path(str(folders.log / "users.log"))
    log.unlink(missing_ok=True)
    done = subprocess.run(
        ["/bin/sh", "-c", users_prolog.prolog_text(folders, checks)],
        env={"SLURM_JOB_UID": str(user)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if checks == "true" else 1), done.stderr
    return log.read_text() if log.exists() else ""


def test_a_node_applies_the_list_before_a_job_only_where_it_has_another_or_lacks_the_user(
    node: Folders,
) -> None:
    known, unknown = os.getuid(), 987654
    with pytest.raises(KeyError):
        pwd.getpwuid(unknown)
    line = users_line([ADA])
    conf = f"# Rendered\n{line}\n\nClusterName=one\n"
    assert prolog(node, conf, None, known) == "applied\n"
    assert prolog(node, conf, line, known) == ""
    assert prolog(node, conf, line, unknown) == "applied\n"
    assert prolog(node, conf, users_line([BOB]), known) == "applied\n"
    assert prolog(node, "# Rendered\n\nClusterName=one\n", line, unknown) == "", "the stack makes none"
    assert prolog(node, conf, line, known, checks="false") == "", "what else a prolog does has the last word"


def published(tmp_path: Path, users: Sequence[dict[str, Any]], digest: str | None = None) -> Path:
    content = json.dumps({"design": {"users": users, "of-another-release": 1}}).encode()
    bucket = tmp_path / "bucket"
    bucket.mkdir(exist_ok=True)
    (bucket / "s.json").write_bytes(content)
    entry = {"key": "s.json", "sha256": digest or hashlib.sha256(content).hexdigest()}
    (bucket / "current.json").write_text(json.dumps({"settings": entry}))
    return bucket


def test_a_node_reads_the_users_that_are_published_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its = settings(tmp_path)
    monkeypatch.setattr("node.bootstrap.vm.clouds.local.BUCKET", str(tmp_path / "bucket"))
    published(tmp_path, [{"name": "ada", "id": 2001}, {"name": "grace"}])
    assert users_prolog.published_users(its) == [User("ada", id=2001)]
    published(tmp_path, [], digest="0" * 64)
    with pytest.raises(ValueError, match="another digest"):
        users_prolog.published_users(its)
    published(tmp_path, [{"name": "ada", "id": 2001, "of-another-release": 1}])
    with pytest.raises(ValueError, match="of-another-release"):
        users_prolog.published_users(its)
