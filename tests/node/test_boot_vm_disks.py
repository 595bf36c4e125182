"""Tests of the disks of a cloud's machine: how they are found, and that data is never overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.bootstrap.command import run as really
from node.bootstrap.context import Context
from node.bootstrap.vm import disks
from node.bootstrap.vm.clouds import aws
from node.design.storage import Mount
from tests.support.checkout import ROOT
from tests.support.private_mounts import PrivateMounts
from tests.support.recorded import NFS, Recorder, machine

SOURCES = {
    "mounts": {
        "/home": {"disk": "vol-0aaa", "device": "/dev/sdf"},
        "/apps": {"disk": "vol-0bbb", "device": "/dev/sdg"},
    }
}
SCRATCH = (Mount("/local_scratch", "nvme", roles=("compute",), options="noatime,nofail"),)
NOTHING = ""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disks, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(disks, "ATTACH_SECONDS", 0.1)
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", tmp_path / "mountinfo")


def nvme(tmp_path: Path, name: str, model: str, serial: str = "", content: bytes = bytes(8192)) -> Path:
    folder = tmp_path / "root" / "sys" / "block" / name / "device"
    folder.mkdir(parents=True)
    (folder / "model").write_text(f"{model}   \n")
    (folder / "serial").write_text(f"{serial}\n")
    device = tmp_path / "root" / "dev" / name
    device.parent.mkdir(exist_ok=True)
    device.write_bytes(content)
    return device


def head(tmp_path: Path) -> tuple[Context, Recorder]:
    return machine(tmp_path, "controller", "controller", driver=SOURCES)


def test_volumes_are_known_by_their_ids_and_not_by_their_order(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    nvme(tmp_path, "nvme0n1", aws.EBS, "vol0root")
    apps = nvme(tmp_path, "nvme1n1", aws.EBS, "vol0bbb")
    home = nvme(tmp_path, "nvme2n1", aws.EBS, "vol0aaa")
    nvme(tmp_path, "nvme3n1", aws.INSTANCE_STORE, "vol0aaa")
    said = disks.prepare(context)
    assert said == f"/home: made ext4 on {home}; /apps: made ext4 on {apps}"
    made = [call.split()[-1] for call in run.calls if call.startswith("mkfs")]
    assert made == [str(home), str(apps)]


def test_on_xen_a_volume_is_known_by_its_attachment(tmp_path: Path) -> None:
    context, _ = head(tmp_path)
    device = tmp_path / "root" / "dev" / "xvdf"
    device.write_bytes(b"")
    assert aws.find(context, "vol-0aaa", "/dev/sdf") == str(device)
    assert aws.find(context, "vol-0bbb", "/dev/sdg") is None
    assert aws.find(context, "vol-0bbb", None) is None


def test_a_volume_that_never_comes_is_said(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    with pytest.raises(TimeoutError, match=r"/home: volume vol-0aaa was not attached .* in another zone"):
        disks.prepare(context)
    assert run.calls == []


def test_settings_that_do_not_know_the_disk_are_refused(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, "controller", "controller")
    with pytest.raises(ValueError, match=r"/home: the settings have no source .*site\.mounts"):
        disks.prepare(context)


@pytest.mark.parametrize(
    ("blkid", "content", "says"),
    [
        ("TYPE=ext4\n", b"data", None),
        ("TYPE=xfs\n", b"data", None),
        ("TYPE=LVM2_member\n", b"", "holds LVM2_member and no file system of ours"),
        ("PTTYPE=gpt\n", b"", "holds a partition table and no file system"),
        (NOTHING, bytes(100000) + b"x", "holds data and no file system"),
    ],
)
def test_a_disk_with_anything_on_it_is_never_made_anew(
    tmp_path: Path, blkid: str, content: bytes, says: str | None
) -> None:
    context, run = head(tmp_path)
    for name, serial in (("nvme1n1", "vol0aaa"), ("nvme2n1", "vol0bbb")):
        nvme(tmp_path, name, aws.EBS, serial, content)
    run.answer("blkid", blkid)
    if says is None:
        assert "was on" in disks.prepare(context)
    else:
        with pytest.raises(RuntimeError, match=f"{says}: it is not changed"):
            disks.prepare(context)
    assert not [call for call in run.calls if call.startswith("mkfs")]


def test_a_real_file_system_is_made_once(tmp_path: Path) -> None:
    """This runs the real blkid and mkfs on a file."""
    context, _ = head(tmp_path)
    context.run = really
    devices = [
        nvme(tmp_path, name, aws.EBS, serial, bytes(4 << 20))
        for name, serial in (("nvme1n1", "vol0aaa"), ("nvme2n1", "vol0bbb"))
    ]
    assert disks.prepare(context).count("made ext4 on") == 2
    before = [device.read_bytes() for device in devices]
    assert disks.prepare(context).count("ext4 was on") == 2
    assert [device.read_bytes() for device in devices] == before
    subprocess.run(["mkswap", str(devices[0])], check=True, capture_output=True)
    with pytest.raises(RuntimeError, match="holds swap and no file system of ours"):
        disks.prepare(context)


def test_one_disk_of_a_nodes_own_is_taken_as_it_is(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=SCRATCH)
    nvme(tmp_path, "nvme0n1", aws.EBS, "vol0root")
    device = nvme(tmp_path, "nvme1n1", aws.INSTANCE_STORE)
    assert disks.prepare(context) == f"/local_scratch: made ext4 on {device}"
    assert not run.having("mdadm")


def test_several_become_one_array(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=SCRATCH)
    own = [str(nvme(tmp_path, f"nvme{number}n1", aws.INSTANCE_STORE)) for number in (10, 2)]
    array = tmp_path / "root" / disks.ARRAY

    def create(*_argv: str) -> str:
        array.parent.mkdir(parents=True)
        array.write_bytes(bytes(8192))
        return ""

    run.answer("mdadm --create", create)
    for _ in range(2):
        assert disks.prepare(context) == f"/local_scratch: made ext4 on {array}"
    (made,) = run.having("--create")
    assert made.endswith(f"--raid-devices=2 --run --homehost=any {own[1]} {own[0]}")


def test_a_machine_without_disks_of_its_own_is_told(tmp_path: Path) -> None:
    context, _ = machine(tmp_path, mounts=SCRATCH)
    with pytest.raises(FileNotFoundError, match="no disks of its own"):
        disks.prepare(context)
    assert disks.prepare(machine(tmp_path, mounts=NFS)[0]) == "no disks but the root disk"


def test_the_login_users_home_comes_along_and_what_is_there_stays(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    target, disk = tmp_path / "root" / "home", tmp_path / "root" / "run" / "slurm-stacks-seed"
    image = target / "ubuntu" / ".ssh"
    image.mkdir(parents=True)
    (image / "authorized_keys").write_text("ssh-ed25519 NEW\n")
    run.answer("cp", really)
    disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert (disk / "ubuntu/.ssh/authorized_keys").read_text() == "ssh-ed25519 NEW\n"
    mounts = [call for call in run.calls if "mount" in call.split()[0]]
    assert mounts == [
        f"mount /dev/nvme1n1 {disk}",
        f"umount {disk}",
        f"mount -o defaults /dev/nvme1n1 {target}",
    ]
    # A replaced controller finds its disk again, and may have a different key pair.
    (disk / "ubuntu/.ssh/authorized_keys").write_text("ssh-ed25519 OLD\n")
    (disk / "ubuntu" / "work").write_text("kept")
    for _ in range(2):
        disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert (disk / "ubuntu/.ssh/authorized_keys").read_text() == "ssh-ed25519 OLD\nssh-ed25519 NEW\n"
    assert (disk / "ubuntu" / "work").read_text() == "kept"


def test_a_mounted_disk_stays_and_a_grown_one_is_used_whole(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    run.answer("blkid", "TYPE=ext4\n")
    disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert run.calls[-1] == "resize2fs /dev/nvme1n1"
    run.calls.clear()
    target = tmp_path / "root" / "home"
    (tmp_path / "mountinfo").write_text(f"36 35 98:0 / {target} rw - ext4 /dev/nvme1n1 rw\n")
    disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert run.calls == []


def test_a_disk_that_cannot_be_grown_is_used_as_it_is(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    run.answer("blkid", "TYPE=ext4\n")
    run.fail("resize2fs", 1, "Permission denied to resize filesystem")
    disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert "Permission denied" in context.report.content["facts"]["disk /home"]


def test_what_is_mounted_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    text = (
        "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "90 22 0:45 / /my\\040home rw shared:2 - nfs4 10.0.0.5:/home rw,vers=4.2\n"
    )
    (tmp_path / "mountinfo").write_text(text)
    assert disks.mounted("/my home") == ("nfs4", "10.0.0.5:/home")
    assert disks.mounted("/home") is None


LIFE = """
import json, sys
sys.path.insert(0, {project!r})
from pathlib import Path
from node.bootstrap import machine_steps
from node.bootstrap.command import run
from node.bootstrap.vm import disks, mounts
from tests.support.checkout import ROOT
from tests.support.private_mounts import PrivateMounts
from tests.support.recorded import NFS, machine
folder = Path({folder!r})
context, _ = machine(folder, "controller", "controller", mounts=NFS[:1], driver={driver!r})
# A container may not grow a mounted file system.
context.run = lambda *argv, **options: "" if argv[0] == "resize2fs" else run(*argv, **options)
print(disks.prepare(context))
mounts.nfs(context, NFS[0])
print(disks.mounted(str(folder / "root/home")))
print(run("df", "--block-size=1M", "--output=size", str(folder / "root/home")).split()[-1])
print((folder / "root/home/ubuntu/.ssh/authorized_keys").read_text().split())
(folder / "root/home/ubuntu/work").touch()
"""


def test_the_life_of_a_real_disk(tmp_path: Path) -> None:
    """A new disk, a repeated boot, and a grown disk of a replaced controller, with real commands on a loop
    device."""
    disk = nvme(tmp_path, "nvme1n1", aws.EBS, "vol0aaa", bytes(8 << 20))
    image = tmp_path / "root" / "home" / "ubuntu" / ".ssh" / "authorized_keys"
    image.parent.mkdir(parents=True)
    image.write_text("FIRST\n")
    script = LIFE.format(project=str(ROOT), folder=str(tmp_path), driver=SOURCES)

    def boot(*machines: PrivateMounts) -> list[list[str]]:
        return [m.run(sys.executable, "-c", script).splitlines() for m in machines]

    head = PrivateMounts()
    try:
        first, again = boot(head, head)
    finally:
        head.close()
    assert first[0] == f"/home: made ext4 on {disk}"
    assert first[1].startswith("('ext4', '/dev/loop")
    assert first[3] == "['FIRST']"
    assert again == [f"/home: ext4 was on {disk}", *first[1:]]

    image.write_text("SECOND\n")
    assert not (tmp_path / "root/home/ubuntu/work").exists(), "that is on the disk"
    with disk.open("ab") as grown:
        grown.truncate(24 << 20)
    new = PrivateMounts()
    try:
        (later,) = boot(new)
        there = new.run("sh", "-c", f"mount {disk} {tmp_path}/root/apps && ls {tmp_path}/root/apps/ubuntu")
    finally:
        new.close()
    assert later[0] == f"/home: ext4 was on {disk}"
    assert later[3] == "['FIRST', 'SECOND']"
    assert "work" in there.split()


@pytest.mark.parametrize("kind", ["home", "folder", "file", "pipe"])
def test_keys_are_added_to_no_file_that_a_users_link_leads_to(tmp_path: Path, kind: str) -> None:
    context, run = head(tmp_path)
    target, disk = tmp_path / "root" / "home", tmp_path / "root" / "run" / "slurm-stacks-seed"
    for folder in (target / "ubuntu" / ".ssh", tmp_path / "victim" / ".ssh"):
        folder.mkdir(parents=True)
    (target / "ubuntu" / ".ssh" / "authorized_keys").write_text("ssh-ed25519 NEW\n")
    victim = tmp_path / "victim" / ".ssh" / "authorized_keys"
    victim.write_text("mine")
    (disk / "ubuntu").parent.mkdir(parents=True)
    if kind == "home":
        (disk / "ubuntu").symlink_to(tmp_path / "victim")
    else:
        (disk / "ubuntu").mkdir()
        if kind == "folder":
            (disk / "ubuntu" / ".ssh").symlink_to(victim.parent)
        else:
            (disk / "ubuntu" / ".ssh").mkdir()
            theirs = disk / "ubuntu" / ".ssh" / "authorized_keys"
            theirs.symlink_to(victim) if kind == "file" else os.mkfifo(theirs)
    run.answer("cp", really)
    disks.mount_volume(context, NFS[0], "/dev/nvme1n1")
    assert victim.read_text() == "mine"
