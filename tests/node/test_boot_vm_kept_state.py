"""The disk that outlives its controller: what is on it, what a new controller takes, who may have it."""

from __future__ import annotations

import os
import pwd
import re
import time
from functools import partial
from pathlib import Path

import pytest

from node.bootstrap import clock, daemons, machine_steps
from node.bootstrap.context import Context
from node.bootstrap.services import Service
from node.bootstrap.systemd_services import unit_text
from node.bootstrap.vm import disks, host_keys, kept_state, mariadb, mounts, state_guard
from node.design.folders import Folders
from node.design.model import Settings, SlurmSettings
from node.design.storage import Mount
from node.elastic import programs
from node.system import subprocesses
from tests.support.recorded import Recorder, machine

OPTIONS = "noatime,errors=remount-ro"
STATE = Mount("/state", "disk", ("controller",), "controller", OPTIONS, 20, name="state")
SOURCES = {"mounts": {"/state": {"disk": "vol-0aaa", "device": "/dev/sdh"}}}
FEATURES = "Filesystem volume name: <none>\nFilesystem features:      has_journal ext_attr {}extent 64bit\n"


@pytest.fixture(autouse=True)
def mountinfo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", file)
    return file


def head(tmp_path: Path, *, accounting: bool = True, features: str = "") -> tuple[Context, Recorder]:
    """Return a controller whose disk is attached, and has a file system with these features besides."""
    slurm = SlurmSettings(accounting=accounting)
    context, run = machine(tmp_path, "controller", "controller", mounts=(STATE,), driver=SOURCES, slurm=slurm)
    (tmp_path / "root" / "dev" / "xvdh").write_bytes(bytes(8192))
    run.answer("dumpe2fs", FEATURES.format(features))
    run.answer("cp --archive", copy)
    run.answer("mkfs.ext4", "")
    run.answer("id --user mysql", str(os.geteuid()))
    return context, run


def copy(*argv: str) -> str:
    source, target = Path(argv[-2]), Path(argv[-1])
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return ""


def of_root(context: Context, run: Recorder) -> list[str]:
    """Return the calls, with the root's path left out."""
    return [call.replace(str(context.folders.root), "") for call in run.calls]


def keys(context: Context, what: str) -> None:
    folder = context.at("etc/ssh")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ssh_host_ed25519_key").write_text(f"{what} private\n")
    (folder / "ssh_host_ed25519_key.pub").write_text(f"ssh-ed25519 {what}\n")


def test_a_new_disk_begins_with_the_files_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "SSHD", Path("/bin/true"))
    context, run = head(tmp_path)
    keys(context, "first")
    for place, name in (("var/spool/slurmctld", "job_state"), ("var/lib/mysql", "ibdata1")):
        context.at(place).mkdir(parents=True)
        (context.at(place) / name).write_text(f"{name} of before")
    said = kept_state.prepare(context, STATE)
    assert said == f"made ext4 on {tmp_path}/root/dev/xvdh (new: slurmctld, elastic, mysql)"
    disk = context.at("state")
    assert (disk / "slurmctld" / "job_state").read_text() == "job_state of before"
    assert (disk / "mysql" / "ibdata1").read_text() == "ibdata1 of before"
    assert (disk / "ssh" / "ssh_host_ed25519_key").read_text() == "first private\n"
    calls = [re.sub(r"^cp .*", "cp", call) for call in of_root(context, run)]
    assert [
        call for call in calls if call.startswith(("tune2fs", "block", "mount", "mkfs", "systemctl"))
    ] == [
        "systemctl stop mariadb",
        "mkfs.ext4 -q -E lazy_itable_init=1,nodiscard /dev/xvdh",
        "tune2fs -O mmp -E mmp_update_interval=1 /dev/xvdh",
        "blockdev --flushbufs /dev/xvdh",
        f"mount -o {OPTIONS} /dev/xvdh /state",
        "mount --bind /state/slurmctld /var/spool/slurmctld",
        "mount --bind /state/elastic /var/lib/slurm-stacks/elastic",
        "mount --bind /state/mysql /var/lib/mysql",
    ]
    assert context.report.content["host_keys"] == ["ssh-ed25519 first"]
    # A power cut must not leave these names with empty files.
    synced = [call.rpartition("/")[2] for call in calls if call.startswith("sync --file-system ")]
    assert synced == [".slurmctld.new", ".elastic.new", ".mysql.new", ".ssh.new"]


def test_another_controller_finds_everything_and_takes_the_host_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_keys, "SSHD", Path("/bin/true"))
    context, run = head(tmp_path, features="mmp ")
    run.answer("blkid", "TYPE=ext4\n")
    keys(context, "another machine's")
    (context.at("etc/ssh") / "ssh_host_rsa_key").write_text("another machine's")
    disk = context.at("state")
    for name in ("slurmctld", "elastic", "mysql", "ssh"):
        (disk / name).mkdir(parents=True)
    (disk / "ssh" / "ssh_host_ed25519_key").write_text("first private\n")
    (disk / "ssh" / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 first\n")
    assert kept_state.prepare(context, STATE) == f"ext4 was on {tmp_path}/root/dev/xvdh"
    assert not run.having("tune2fs")
    assert not run.having("cp")
    own = context.at("etc/ssh")
    assert {file.name: file.stat().st_mode & 0o777 for file in own.iterdir()} == {
        "ssh_host_ed25519_key": 0o600,
        "ssh_host_ed25519_key.pub": 0o644,
    }, "keys that users do not know are gone"
    assert (own / "ssh_host_ed25519_key").read_text() == "first private\n"
    assert context.report.content["host_keys"] == ["ssh-ed25519 first"]
    assert context.report.content["was_ready"] is True, "the cluster is up"
    assert run.having("systemctl", "try-reload-or-restart", "ssh.service")


def test_a_boot_of_a_machine_that_has_it_changes_nothing(tmp_path: Path, mountinfo: Path) -> None:
    context, run = head(tmp_path, features="mmp ")
    places = ("state", "var/spool/slurmctld", "var/lib/slurm-stacks/elastic", "var/lib/mysql")
    mountinfo.write_text(
        "".join(f"1 1 7:0 / {context.at(place)} rw - ext4 /dev/xvdh rw\n" for place in places)
    )
    (context.at("state") / "ssh").mkdir(parents=True)
    assert kept_state.prepare(context, STATE) == f"has {tmp_path}/root/dev/xvdh"
    assert not [call for call in run.calls if call.startswith(("mount", "cp", "tune2fs", "systemctl stop"))]
    mounts.disk(context, STATE)
    mountinfo.write_text("")
    with pytest.raises(FileNotFoundError, match="/state: the disk with Slurm's state is not mounted there"):
        mounts.disk(context, STATE)


def test_without_accounting_there_is_no_database_on_it(tmp_path: Path) -> None:
    context, run = head(tmp_path, accounting=False)
    kept_state.prepare(context, STATE)
    assert not [call for call in run.calls if "mysql" in call or "mariadb" in call]


def test_a_disk_that_cannot_show_who_has_it_is_not_used(tmp_path: Path) -> None:
    context, run = head(tmp_path)
    run.answer("blkid", "TYPE=xfs\n")
    run.answer("dumpe2fs", "dumpe2fs: Bad magic number in super-block\n")
    with pytest.raises(RuntimeError, match=r"xvdh has no ext4, which shows whether another machine has it"):
        kept_state.prepare(context, STATE)
    assert not run.having("mount")


def test_a_disk_that_another_machine_has_stops_the_boot(tmp_path: Path) -> None:
    context, run = head(tmp_path, features="mmp ")
    run.answer("blkid", "TYPE=ext4\n")
    run.fail(f"mount -o {OPTIONS}", 32, "already mounted or mount point busy.")
    with pytest.raises(RuntimeError, match="another machine may have it, which must end first") as refused:
        kept_state.prepare(context, STATE)
    assert "already mounted" in str(refused.value)
    assert not (context.at("state") / "slurmctld").exists(), "nothing is written below the mount point"


def test_nothing_of_slurm_starts_on_a_machine_that_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = head(tmp_path)
    monkeypatch.setattr(kept_state, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(clock, "check", lambda _: None)
    monkeypatch.setattr(daemons, "munged", lambda *_: None)
    monkeypatch.setattr(pwd, "getpwnam", lambda n: pwd.getpwuid(os.geteuid()))
    with pytest.raises(RuntimeError, match="does not hold the disk with Slurm's state, so nothing starts"):
        machine_steps.ready(context)


def test_each_daemon_that_writes_to_it_asks_before_each_start(tmp_path: Path) -> None:
    context, _ = head(tmp_path)
    program = f"{context.folders.code}/bin/{state_guard.PROGRAM}"
    elastic = programs.daemon_service(context.settings, context.settings_file, "slurm")
    assert elastic.condition == programs.holds_state(context.settings) == program
    text = unit_text(elastic)
    assert text.index(f'ExecCondition="{program}"\n') < text.index("ExecStart=")
    assert "Condition" not in unit_text(Service("slurmd", ("/bin/true",), Path("/x")))
    plain = machine(tmp_path / "plain", "controller", "controller")[0]
    assert programs.holds_state(plain.settings) is None


def test_the_program_that_they_ask_runs_without_an_environment(tmp_path: Path) -> None:
    context, _ = head(tmp_path)
    settings: Settings = context.settings
    code = context.path(context.folders.code)
    (code / "node").symlink_to(Path(programs.__file__).parents[2] / "node")
    for folder in (context.folders.run, context.folders.elastic):
        context.path(folder).mkdir(parents=True)
    programs.write(settings, context.settings_file)
    program = str(programs.holds_state(settings))
    status = state_guard.status_file(Folders(settings).run)
    assert subprocesses.run([program], {}, 60).status == 1
    now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    state_guard.Guard(lambda: None, list, lambda _: None, status, now).look(60)
    assert subprocesses.run([program], {}, 60).status == 0


def test_the_databases_files_are_its_users_also_where_another_image_numbered_users_otherwise(
    tmp_path: Path,
) -> None:
    context, run = head(tmp_path)
    context.at("var/lib/mysql").mkdir(parents=True)
    mariadb.start(context, "SELECT 1;")
    assert not run.having("chown")
    run.answer("id --user mysql", "4242")
    mariadb.start(context, "SELECT 1;")
    assert run.having("chown", "--recursive", "mysql:mysql", str(context.at("var/lib/mysql")))
