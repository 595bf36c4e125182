"""Tests of shared file systems: exports on the controller, clients elsewhere, and messages on failures."""

from __future__ import annotations

import dataclasses
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.bootstrap import machine_steps, steps
from node.bootstrap.command import CommandError
from node.bootstrap.command import run as really
from node.bootstrap.vm import disks, mounts, users
from node.design.model import Network
from node.design.storage import Mount
from tests.support.recorded import COMPUTE, NFS, machine

SOURCES = {
    "mounts": {
        "/home": {"disk": "vol-0aaa"},
        "/apps": {"disk": "vol-0bbb"},
        "/efs": {"source": "fs-1.efs.eu-west-1.amazonaws.com:/"},
        "/fsx": {"source": "fs-2.fsx.eu-west-1.amazonaws.com@tcp:/abcdef"},
    }
}
EFS = Mount("/efs", "efs", options="nfsvers=4.1", name="scratch")
FSX = Mount("/fsx", "fsx_lustre", options="relatime,flock,_netdev", name="scratch")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(mounts, "SERVER_SECONDS", 0.3)
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", tmp_path / "mountinfo")
    monkeypatch.setattr(disks, "volume", lambda _context, mount: f"/dev{mount.path}")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every server answers. The servers that were asked are recorded."""
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(mounts, "_reach", lambda server, port: seen.append((server, port)))
    return seen


IN_MEMORY = "30 1 0:30 / {root}/tmp rw - tmpfs tmpfs rw\n"


@pytest.mark.parametrize(
    ("mib", "role", "mounted", "bound"),
    [
        (37888, "compute", IN_MEMORY, True),
        (37888, "compute", IN_MEMORY + "31 30 8:1 /t {root}/tmp rw - ext4 /dev/vda1 rw\n", False),
        (37888, "compute", "", False),
        (0, "compute", IN_MEMORY, False),
        (37888, "login", IN_MEMORY, False),
    ],
)
def test_a_nodes_tmp_in_memory_is_put_on_its_disk(
    tmp_path: Path, asked: list[tuple[str, int]], mib: int, role: str, mounted: str, bound: bool
) -> None:
    nodes = (dataclasses.replace(COMPUTE, tmp_disk_mib=mib),)
    context, run = machine(tmp_path, role, f"{role}-0", driver=SOURCES, partitions=nodes)
    root = tmp_path / "root"
    (tmp_path / "mountinfo").write_text(mounted.format(root=root))
    machine_steps.mounts(context)
    place = root / "var/lib/slurm-stacks/tmp"
    assert (f"mount --bind {place} {root}/tmp" in run.calls) is bound
    assert not bound or stat.S_IMODE(place.stat().st_mode) == 0o1777


def test_the_controller_mounts_its_disks_and_exports_them(tmp_path: Path) -> None:
    context, run = machine(
        tmp_path, "controller", "controller", driver=SOURCES, network=Network(cidr="10.0.0.0/16")
    )
    assert machine_steps.mounts(context) == "/home and /apps"
    root = tmp_path / "root"
    assert [call for call in run.calls if call.startswith("mount")] == [
        f"mount -o defaults /dev/home {root}/home",
        f"mount -o defaults /dev/apps {root}/apps",
    ]
    exports = (root / mounts.EXPORTS).read_text().splitlines()
    assert [line.split()[0] for line in exports] == ["/home", "/apps"]
    assert all(line.split()[1].startswith("10.0.0.0/16(rw,") for line in exports)
    assert all("mountpoint" in line for line in exports)
    # A user's own client has no port below 1024, and nfsd refuses all others unless it is told otherwise.
    assert not any("insecure" in line for line in exports)
    assert run.calls.count("systemctl restart nfs-server") == 1
    assert stat.S_IMODE((root / "home" / "bench").stat().st_mode) == 0o1777
    assert stat.S_IMODE((root / "apps" / "data").stat().st_mode) == 0o1777


def test_in_an_existing_network_the_security_groups_are_the_bounds(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "controller", "controller", driver=SOURCES)
    machine_steps.mounts(context)
    assert "/home *(" in (tmp_path / "root" / mounts.EXPORTS).read_text()


def test_a_node_mounts_what_the_controller_exports(tmp_path: Path, asked: list[tuple[str, int]]) -> None:
    context, run = machine(tmp_path, mounts=(*NFS, EFS, FSX), driver=SOURCES)
    assert machine_steps.mounts(context) == "/home and /apps and /efs and /fsx"
    root = tmp_path / "root"
    assert run.calls == [
        # Before anything is there that a user's own client could reach.
        f"nft -f {root}/etc/slurm-stacks/nfs.nft",
        "systemctl enable slurm-stacks-nfs.service",
        f"mount -t nfs -o rw,hard 10.0.0.5:/home {root}/home",
        f"mount -t nfs -o rw,hard 10.0.0.5:/apps {root}/apps",
        f"mount -t nfs4 -o nfsvers=4.1 fs-1.efs.eu-west-1.amazonaws.com:/ {root}/efs",
        "modprobe lustre",
        f"mount -t lustre -o relatime,flock,_netdev fs-2.fsx.eu-west-1.amazonaws.com@tcp:/abcdef {root}/fsx",
    ]
    assert asked == [
        ("10.0.0.5", 2049),
        ("10.0.0.5", 2049),
        ("fs-1.efs.eu-west-1.amazonaws.com", 2049),
        ("fs-2.fsx.eu-west-1.amazonaws.com", 988),
    ]
    assert all(options["timeout"] <= mounts.TRY_SECONDS for options in run.options)
    assert not (root / "home" / "bench").exists()


FILER = Mount("/home", "nfs", existing="filer.lab:/export/home", options="rw,hard")
FILED = {"mounts": {**SOURCES["mounts"], "/home": {"source": "filer.lab:/export/home"}}}


@pytest.mark.parametrize(("host", "role"), [("cpu-0", "compute"), ("controller", "controller")])
def test_an_export_of_somebodys_is_mounted_on_every_machine_and_not_exported_again(
    tmp_path: Path, asked: list[tuple[str, int]], host: str, role: str
) -> None:
    context, run = machine(tmp_path, role, host, mounts=(FILER, NFS[1]), driver=FILED)
    assert machine_steps.mounts(context) == "/home and /apps"
    root = tmp_path / "root"
    assert run.calls[2] == f"mount -t nfs -o rw,hard filer.lab:/export/home {root}/home"
    assert asked[0] == ("filer.lab", 2049)
    exports = root / mounts.EXPORTS
    if role == "controller":
        assert [line.split()[0] for line in exports.read_text().splitlines()] == ["/apps"]
    assert list((root / "home").glob(".slurm-stacks*")) == [], "the trial file is gone"


def test_an_export_that_root_may_not_write_to_is_one_message(
    tmp_path: Path, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = machine(tmp_path, "controller", "controller", mounts=(FILER, NFS[1]), driver=FILED)
    really_touch = Path.touch

    def squashed(path: Path) -> None:
        if path.parent.name == "home":
            raise PermissionError(13, "Permission denied", str(path))
        really_touch(path)

    monkeypatch.setattr(Path, "touch", squashed)
    with pytest.raises(PermissionError, match=r"filer\.lab:/export/home to this network with no_root"):
        machine_steps.mounts(context)


def test_every_user_may_write_to_shared_scratch(tmp_path: Path, asked: list[tuple[str, int]]) -> None:
    scratch = Mount("/scratch", "nfs", served_by="controller", name="scratch")
    sources = {"mounts": {**SOURCES["mounts"], "/scratch": {"disk": "vol-0ccc"}}}
    context, _ = machine(
        tmp_path, "controller", "controller", mounts=(*NFS, scratch, EFS, FSX), driver=sources
    )
    root = tmp_path / "root"
    machine_steps.mounts(context)
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("home", "apps", "scratch", "fsx")}
    assert modes == {"home": 0o755, "apps": 0o755, "scratch": 0o1777, "fsx": 0o1777}


def test_scratch_that_somebody_has_set_up_keeps_its_mode(
    tmp_path: Path, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = machine(tmp_path, "controller", "controller", mounts=(*NFS, EFS), driver=SOURCES)
    # It is mounted already: the mount stays, and so do its files.
    monkeypatch.setattr(mounts, "KINDS", {**mounts.KINDS, "efs": lambda *_: None})
    folder = tmp_path / "root" / "efs"
    folder.mkdir()
    folder.chmod(0o2770)
    machine_steps.mounts(context)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2770


def test_somebodys_own_file_system_keeps_its_mode(tmp_path: Path, asked: list[tuple[str, int]]) -> None:
    theirs = Mount("/data", "nfs", existing="filer.lab:/export/data", options="rw,hard")
    sources = {"mounts": {**SOURCES["mounts"], "/data": {"source": "filer.lab:/export/data"}}}
    context, _ = machine(tmp_path, "controller", "controller", mounts=(*NFS, theirs), driver=sources)
    machine_steps.mounts(context)
    assert stat.S_IMODE((tmp_path / "root" / "data").stat().st_mode) == 0o755


def test_nodes_leave_the_mode_of_scratch_to_the_controller(
    tmp_path: Path, asked: list[tuple[str, int]]
) -> None:
    context, _ = machine(tmp_path, mounts=(*NFS, EFS), driver=SOURCES)
    machine_steps.mounts(context)
    assert stat.S_IMODE((tmp_path / "root" / "efs").stat().st_mode) == 0o755


def test_a_mount_that_is_there_stays_and_another_is_no_match(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=NFS[:1], driver=SOURCES)
    target = tmp_path / "root" / "home"
    info = tmp_path / "mountinfo"
    info.write_text(f"1 2 0:1 / {target} rw - nfs4 10.0.0.5:/home rw\n")
    machine_steps.mounts(context)
    assert run.calls == []
    info.write_text(f"1 2 0:1 / {target} rw - nfs4 10.9.9.9:/home rw\n")
    with pytest.raises(
        RuntimeError, match=r"10\.9\.9\.9:/home is mounted there, and should be 10\.0\.0\.5:/home"
    ):
        machine_steps.mounts(context)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        yield listening


def test_a_server_that_does_not_answer_is_never_mounted(
    tmp_path: Path, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard mount of a silent server would wait for ever."""
    monkeypatch.setattr(mounts, "NFS_PORT", server.getsockname()[1])
    context, run = machine(tmp_path, mounts=(EFS,), driver={"mounts": {"/efs": {"source": "127.0.0.1:/"}}})
    with pytest.raises(TimeoutError) as caught:
        machine_steps.mounts(context)
    first, why = str(caught.value).splitlines()
    assert first == (
        "/efs: 127.0.0.1:/ could not be mounted for 0.3 s; has it a mount target in this zone, and does its "
        "security group let this machine in?"
    )
    assert "Connection refused" in why
    assert not any(call.startswith("mount") for call in run.calls)
    server.listen()
    assert machine_steps.mounts(context) == "/efs"


@pytest.mark.usefixtures("asked")
def test_a_controller_that_is_still_booting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "SERVER_SECONDS", 60.0)
    context, run = machine(tmp_path, "login", "login-0", mounts=NFS[:1], driver=SOURCES)
    refused = ["", "mount.nfs: access denied", "mount.nfs: access denied"]

    def answer(*_argv: str) -> str:
        if said := refused.pop():
            raise CommandError(f"mount: exit status 32\n{said}", 32)
        return ""

    run.answer("mount", answer)
    assert machine_steps.mounts(context) == "/home"
    assert len(run.calls) == 3
    monkeypatch.setattr(mounts, "SERVER_SECONDS", 0.1)
    run.answer("mount", CommandError("mount: exit status 32\nmount.nfs: access denied", 32))
    with pytest.raises(TimeoutError, match=r"(?s)logs --stack test controller.*access denied"):
        machine_steps.mounts(context)


LIMIT = mounts.SERVER_SECONDS + mounts.TRY_SECONDS


def test_the_limits_fit_into_the_step() -> None:
    (limit,) = [step.timeout for step in steps.STEPS if step.name == "mounts"]
    assert limit > LIMIT, "or the step would end without its words"


def test_scratch_is_any_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Mount("/local_scratch", "nvme", roles=("compute",), options="noatime,nofail")
    monkeypatch.setattr(disks, "scratch", lambda _context: "/dev/nvme1n1")
    context, run = machine(tmp_path, mounts=(scratch,))
    machine_steps.mounts(context)
    target = tmp_path / "root" / "local_scratch"
    assert run.calls == [f"mount -o noatime,nofail /dev/nvme1n1 {target}"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o1777


def test_storage_of_another_cloud_is_named(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, mounts=(Mount("/x", "filestore"),))
    with pytest.raises(ValueError, match=r"/x: storage of kind filestore is not on this provider \(.*efs"):
        machine_steps.mounts(context)


# --- users -----------------------------------------------------------------------------------------------


class Person:
    def __init__(self, name: str, uid: int, home: str) -> None:
        self.pw_name, self.pw_uid, self.pw_gid, self.pw_dir = name, uid, uid, home


def test_the_login_user_gets_from_the_head_to_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, run = machine(tmp_path, "controller", "controller")
    entries = [
        Person("root", 0, "/root"),
        Person("ubuntu", 1000, "/home/ubuntu"),
        Person("x", 1001, "/srv/x"),
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    for entry in entries:
        (tmp_path / "root" / entry.pw_dir.lstrip("/") / ".ssh").mkdir(parents=True)
    folder = tmp_path / "root" / "home" / "ubuntu" / ".ssh"
    (folder / "authorized_keys").write_text("ssh-ed25519 FROM-EC2")
    (folder / "authorized_keys").chmod(0o600)

    def as_the_user(*argv: str) -> str:
        assert argv[:6] == ("setpriv", "--reuid", "1000", "--regid", "1000", "--init-groups")
        return really(*argv[argv.index("/bin/sh") :])

    run.answer("setpriv", as_the_user)
    for _ in range(2):
        users.prepare(context)
    public_key = (folder / "id_slurm_stacks.pub").read_text()
    assert (folder / "authorized_keys").read_text() == f"ssh-ed25519 FROM-EC2\n{public_key}"
    assert public_key.startswith("ssh-ed25519 ")
    assert public_key.endswith(f" ubuntu@{context.settings.design.name}\n")
    assert stat.S_IMODE((folder / "id_slurm_stacks").stat().st_mode) == 0o600
    assert not [path for path in (tmp_path / "root").rglob("id_*") if "ubuntu" not in path.parts]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_users_links_take_nothing_of_roots(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links in a user's folder let the boot neither read nor give away what belongs to root."""
    nobody = pwd.getpwnam("nobody")
    ada = pwd.struct_passwd(("nobody", "x", nobody.pw_uid, nobody.pw_gid, "", "/home/ada", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [ada])
    monkeypatch.setattr(users, "NOBODY", nobody.pw_uid + 1)
    with tempfile.TemporaryDirectory() as made:
        (top := Path(made)).chmod(0o755)
        context, run = machine(top, "controller", "controller")
        run.answer("setpriv", really)
        (secret := top / "secret").write_text("root's\n")
        secret.chmod(0o600)
        (folder := top / "root" / "home" / "ada" / ".ssh").mkdir(parents=True)
        for name in ("id_slurm_stacks", "id_slurm_stacks.pub", "authorized_keys"):
            (folder / name).symlink_to(secret)
        for path in (folder.parent, folder):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        users.prepare(context)
        assert "nobody gets no key for `ssh NODE`: " in (output := capsys.readouterr().err)
        assert "Permission denied" in output
        assert (secret.read_text(), secret.stat().st_uid) == ("root's\n", 0)
        for path in folder.glob("*keys*"):
            path.unlink()
        (folder / "id_slurm_stacks.pub").unlink()
        users.prepare(context)
        public_key = (folder / "id_slurm_stacks.pub").read_text()
        assert (folder / "authorized_keys").read_text() == public_key
        assert (folder / "id_slurm_stacks").stat().st_uid == nobody.pw_uid
        assert not (folder / "id_slurm_stacks").is_symlink()


def test_ssh_takes_the_users_key_of_the_cluster_to_its_nodes(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "login", "login-0")
    users.configure_ssh(context)
    client = tmp_path / "root" / users.CLIENT
    assert "ProxyCommand" not in client.read_text(), "nodes are found by their names"
    known = dict(line.split(" ", 1) for line in really("ssh", "-G", "-F", str(client), "t4-3").splitlines())
    assert known["hostname"] == "t4-3"
    assert known["identityfile"] == "~/.ssh/id_slurm_stacks"
    assert (known["stricthostkeychecking"], known["userknownhostsfile"]) == ("false", "/dev/null")
    assert "id_slurm_stacks" not in really("ssh", "-G", "-F", str(client), "github.com")
