"""The example hook users.sh makes ordinary users: the real script and tools, with user databases of its own.

It runs in a mount namespace with its own /etc and /home, so this machine gets no user.
"""

from __future__ import annotations

import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra.aws import access
from infra.ssh import Target
from node.bootstrap.vm import users
from operations import openssh
from tests.support import sshd
from tests.support.checkout import ROOT
from tests.support.private_mounts import PrivateMounts

HOOK = ROOT / "examples" / "hooks" / "users.sh"
PASSWD = """\
root:x:0:0:root:/root:/bin/bash
ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash
eve:x:2009:2009::/srv/eve:/bin/bash
sshd:x:103:65534::/run/sshd:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
GROUP = """\
root:x:0:
sudo:x:27:ubuntu
lxd:x:105:ubuntu
ubuntu:x:1000:
research:x:2050:
eve:x:2009:
nogroup:x:65534:
"""
KEYS = [
    f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{middle}{'A' * 42} ada@{place}"
    for middle, place in (("IA", "home"), ("IB", "work"))
]


class Machine(PrivateMounts):
    """A machine's user databases and /home.

    Attributes:
        home: What is mounted at /home.
    """

    def __init__(self, folder: Path, home: Path | None) -> None:
        super().__init__()
        self.home = home
        etc, lock = folder / "etc", folder / "lock"
        for path in (etc, lock):
            path.mkdir(parents=True)
        files = {"passwd": PASSWD, "group": GROUP, "shadow": "", "gshadow": "", "subuid": "", "subgid": ""}
        for name, text in files.items():
            (etc / name).write_text(text)
        for name in ("login.defs", "pam.d", "skel", "default", "nsswitch.conf", "ssl", "ssh"):
            self.run("sh", "-c", f"[ ! -e /etc/{name} ] || cp -r /etc/{name} {etc}/")
        (etc / "skel" / ".profile").write_text("# new\n")
        self.etc = etc
        # Each process of this namespace sees these mounts, and no other process does.
        self.run("mount", "--bind", str(etc), "/etc")
        if home is not None:
            self.run("mount", "--bind", str(home), "/home")

    def hook(self, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self("env", f"SLURM_STACKS_ROLE={role}", "SLURM_STACKS_HOST=host", "sh", str(HOOK), *arguments),
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def done(self, role: str, *arguments: str) -> str:
        done = self.hook(role, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def databases(self) -> dict[str, str]:
        """Each file that says who the users are, with its text."""
        names = ("passwd", "group", "shadow", "gshadow")
        return {name: (self.etc / name).read_text() for name in names}

    def as_user(self, user: str, *command: str) -> subprocess.CompletedProcess[str]:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env", *command]
        return subprocess.run(self(*become), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The file system that the cluster's machines share."""
    (folder := tmp_path / "home").mkdir()
    return folder


@pytest.fixture
def machines(tmp_path: Path, home: Path) -> Iterator[tuple[Machine, Machine]]:
    """A controller and a node."""
    made = []
    try:
        for name in ("controller", "node"):
            made.append(Machine(tmp_path / name, home))
        yield made[0], made[1]
    finally:
        for machine in made:
            machine.close()


def owner(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def content(folder: Path) -> dict[str, tuple[bytes, float, int, int]]:
    """path -> what is in it, since when, whose it is and with which mode."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime, path.stat().st_uid, path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_user_has_a_home_and_keys_from_the_controller_and_is_known_on_every_machine(
    machines: tuple[Machine, Machine], home: Path
) -> None:
    controller, node = machines
    said = controller.done("controller", f"ada:2001:{KEYS[0]}", "bob:2002", f"ada:2001:{KEYS[1]}")
    assert said.splitlines()[:2] == ["the user ada has the number 2001", "the user bob has the number 2002"]
    ssh = home / "ada" / ".ssh"
    assert owner(home / "ada") == (2001, 2001, 0o700)
    assert owner(ssh) == (2001, 2001, 0o700)
    assert owner(ssh / users.KEY) == (2001, 2001, 0o600)
    assert owner(ssh / "authorized_keys") == (2001, 2001, 0o600)
    assert owner(home / "ada" / ".profile")[:2] == (2001, 2001)
    public_key = (ssh / f"{users.KEY}.pub").read_text().strip()
    assert public_key.startswith("ssh-ed25519 ")
    assert (ssh / "authorized_keys").read_text().splitlines() == [public_key, *KEYS]
    assert (home / "bob" / ".ssh" / "authorized_keys").read_text().count("\n") == 1

    before = content(home)
    node.done("compute", f"ada:2001:{KEYS[0]}", "bob:2002")
    assert content(home) == before, "the home comes from the controller"
    for machine in machines:
        assert machine.run("getent", "passwd", "ada") == "ada:x:2001:2001::/home/ada:/bin/bash\n"
        assert machine.run("getent", "group", "ada") == "ada:x:2001:\n"
        assert machine.as_user("ada", "cat", "/home/ada/.ssh/authorized_keys").returncode == 0
        assert machine.as_user("bob", "cat", "/home/ada/.ssh/authorized_keys").returncode != 0


def test_such_a_user_has_no_rights_of_an_administrator(machines: tuple[Machine, Machine]) -> None:
    controller, _ = machines
    controller.done("controller", "ada:2001")
    assert controller.run("id", "-Gn", "ada") == "ada\n"
    for group in ("sudo", "lxd"):
        assert controller.run("getent", "group", group).strip().split(":")[-1] == "ubuntu"
    (password,) = [
        line.split(":")[1] for line in controller.databases()["shadow"].splitlines() if line[:4] == "ada:"
    ]
    assert password.startswith("!"), "nobody logs in with a password"


@pytest.mark.skipif(sshd.SSHD is None, reason="openssh-server is not installed")
def test_sshd_lets_the_user_in_with_each_key(
    machines: tuple[Machine, Machine], home: Path, tmp_path: Path
) -> None:
    """The person's own key counts, and on a node the key that the controller has made."""
    controller, node = machines
    person, host = sshd.make_key(tmp_path / "person"), sshd.make_key(tmp_path / "host")
    for machine, role in ((controller, "controller"), (node, "compute")):
        machine.done(role, f"ada:2001:{sshd.public(person)}")
    own = tmp_path / "own"
    shutil.copy(home / "ada" / ".ssh" / users.KEY, own)
    sshd.PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    for machine, key in ((controller, person), (node, own)):
        # pam_unix looks at the account. The distribution's other modules do not work in every container.
        (machine.etc / "pam.d").mkdir(exist_ok=True)
        (machine.etc / "pam.d" / "sshd").write_text(
            "account required pam_unix.so\nsession required pam_unix.so\n"
        )
        # sshd serves its standard input, as inetd calls it.
        server = shlex.join(
            machine(str(sshd.SSHD), "-i", "-e", "-f", "/dev/null", "-h", str(host), "-o", "UsePAM yes")
        )
        done = subprocess.run(
            [
                "ssh", "-F", "none", "-i", str(key), "-l", "ada", "-o", "IdentitiesOnly=yes",
                "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
                "-o", "UserKnownHostsFile=/dev/null", "-o", f"ProxyCommand={server}", "host", "id -un; pwd",
            ],
            capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.stdout == "ada\n/home/ada\n", done.stderr


def test_the_stanza_sends_a_key_under_the_name_that_ssh_was_given(tmp_path: Path) -> None:
    """With Session Manager and no EC2 key pair the proxy brings a key for the user who logs in."""
    (python := tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/called\n')
    python.chmod(0o755)
    proxy = access.ssh_proxy("eu-west-1", "ssm", None, lambda line: f"{python} {line}")
    target = Target("i-0123", "ubuntu", (), proxy_command=proxy)
    (config := tmp_path / "config").write_text(openssh.stanza("cluster", target, tmp_path / "known_hosts"))
    for words, user in ((["cluster"], "ubuntu"), (["-l", "ada", "cluster"], "ada")):
        command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", *words, "true"]
        subprocess.run(command, capture_output=True, check=False, timeout=60, stdin=subprocess.DEVNULL)
        called = (tmp_path / "called").read_text()
        assert called.endswith(f"proxy --region eu-west-1 --instance i-0123 --user {user} --port 22\n")


def test_a_second_run_changes_nothing(machines: tuple[Machine, Machine], home: Path) -> None:
    controller, node = machines
    arguments = [f"ada:2001:{KEYS[0]}", "bob:2002"]
    for machine, role in ((controller, "controller"), (node, "compute")):
        machine.done(role, *arguments)
        before = machine.databases(), content(home)
        machine.done(role, *arguments)
        assert (machine.databases(), content(home)) == before


def test_a_key_comes_on_a_line_of_its_own_and_a_removed_user_stays(
    machines: tuple[Machine, Machine], home: Path
) -> None:
    controller, _ = machines
    controller.done("controller", "ada:2001", "bob:2002")
    file = home / "ada" / ".ssh" / "authorized_keys"
    file.write_text(KEYS[1])
    controller.done("controller", f"ada:2001:{KEYS[0]}")
    lines = file.read_text().splitlines()
    assert len(lines) == 3
    assert (lines[0], lines[2]) == (KEYS[1], KEYS[0])
    assert controller.run("id", "-u", "bob") == "2002\n"


def test_a_home_that_is_there_already_is_the_users_if_the_number_is_the_same(
    machines: tuple[Machine, Machine], home: Path
) -> None:
    controller, _ = machines
    (old := home / "ada").mkdir()
    (old / "work").write_text("kept")
    controller.run("chown", "-R", "2001:2001", str(old))
    refused = controller.hook("controller", "ada:2002")
    assert refused.returncode == 1
    assert refused.stderr == "ada:2002: /home/ada belongs to the number 2001: give the user this number\n"
    controller.done("controller", "ada:2001")
    assert (old / "work").read_text() == "kept"
    assert not (old / ".profile").exists()
    assert (old / ".ssh" / users.KEY).exists()


def test_links_in_a_users_folder_lead_to_nothing_of_roots(
    machines: tuple[Machine, Machine], home: Path, tmp_path: Path
) -> None:
    """Nor do they stop the controller's boot."""
    controller, _ = machines
    controller.done("controller", "ada:2001")
    (secret := tmp_path / "secret").write_text("root's\n")
    secret.chmod(0o600)
    ssh = home / "ada" / ".ssh"
    for name in (f"{users.KEY}.pub", "authorized_keys"):
        (ssh / name).unlink()
        (ssh / name).symlink_to(secret)
    done = controller.hook("controller", f"ada:2001:{KEYS[0]}", "bob:2002")
    assert done.returncode == 0
    assert "ada:2001: the keys were not written into /home/ada/.ssh\n" in done.stderr
    assert (secret.read_text(), owner(secret)) == ("root's\n", (0, 0, 0o600))
    assert (home / "bob" / ".ssh" / users.KEY).exists()


MISTAKES = {
    "ada": "ada: a user is written as NAME:UID or NAME:UID:SSH PUBLIC KEY",
    ":2001": ":2001: a name has only",
    "Ada:2001": "Ada:2001: a name has only",
    "1ada:2001": "1ada:2001: a name has only",
    "../x:2001": "../x:2001: a name has only",
    "-ada:2001": "-ada:2001: a name has only",
    f"{'a' * 33}:2001": f"{'a' * 33}:2001: a name has at most 32 characters",
    "ubuntu:1000": "ubuntu:1000: the name ubuntu has a meaning for the system",
    "docker:2001": "docker:2001: the name docker has a meaning for the system",
    "ada:": "ada:: the number of a user is from 1000 to 60000",
    "ada:x": "ada:x: the number of a user is from 1000 to 60000",
    "ada:999": "ada:999: the number of a user is from 1000 to 60000",
    "ada:02001": "ada:02001: the number of a user is from 1000 to 60000",
    "ada:60001": "ada:60001: the number of a user is from 1000 to 60000",
    "ada:1000": "ada:1000: the number 1000 is the user ubuntu's on this machine",
    "ada:2050": "ada:2050: the number 2050 is the group research's on this machine",
    "eve:2001": "eve:2001: the user eve has the number 2009 on this machine",
    "eve:2009": "eve:2009: the user eve has the home folder /srv/eve on this machine",
    "research:2001": "research:2001: the group research has the number 2050 on this machine",
    "ada:2001:": "ada:2001: ssh-keygen reads no public key in what follows the second colon",
    "ada:2001:ssh-ed25519 x": "ada:2001: ssh-keygen reads no public key in what follows the second colon",
    f"ada:2001:{KEYS[0]}\n{KEYS[1]}": "ada:2001: an SSH public key is one line",
}


def test_a_mistake_ends_the_hook_with_one_message_before_anything_is_made(
    machines: tuple[Machine, Machine], home: Path
) -> None:
    before = [machine.databases() for machine in machines]
    for argument, message in MISTAKES.items():
        for machine, role in zip(machines, ("controller", "compute"), strict=True):
            done = machine.hook(role, "bob:2002", argument)
            assert (done.returncode, done.stdout) == (1, ""), argument
            assert done.stderr.startswith(message), argument
            assert done.stderr.count("\n") == 1, argument
    assert [machine.databases() for machine in machines] == before
    assert list(home.iterdir()) == []


def test_two_users_cannot_have_one_number(machines: tuple[Machine, Machine]) -> None:
    done = machines[1].hook("compute", "ada:2001", "bob:2001")
    assert done.returncode == 1
    assert done.stderr == "bob:2001: the number 2001 is the user ada's on this machine\n"


def test_without_a_shared_home_nobody_is_made(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine", None)
    try:
        if subprocess.run(machine("mountpoint", "-q", "/home"), check=False).returncode == 0:
            pytest.skip("this machine has a file system at /home")
        before = machine.databases()
        done = machine.hook("controller", "ada:2001")
        assert (done.returncode, machine.databases()) == (1, before)
        assert done.stderr.startswith("/home: no file system is mounted there")
    finally:
        machine.close()


def test_the_page_shows_arguments_that_the_hook_takes(machines: tuple[Machine, Machine], home: Path) -> None:
    page = (ROOT / "docs" / "hooks.md").read_text().partition("## Users of your own")[2]
    (hook,) = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["hooks"]
    assert (hook["role"], ROOT / hook["source"]) == ("all", HOOK)
    machines[0].done("controller", *hook["args"])
    assert sorted(path.name for path in home.iterdir()) == ["ada", "bob"]
