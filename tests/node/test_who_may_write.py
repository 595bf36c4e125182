"""Which file systems users may write to, over all stack files and providers: scratch, and nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from node.bootstrap import machine_steps
from node.bootstrap.vm import disks, host_keys, kept_state, mounts
from node.design.storage import Mount
from node.system import accounts
from tests.support import shipped
from tests.support.recorded import machine
from tests.support.stack_values import STACKS, filled_in, values

PUBLIC, CLOSED = 0o1777, 0o755
MODES = {
    "home": CLOSED,  # each user has a folder there
    "apps": CLOSED,  # what the cluster's administrators install
    "scratch": PUBLIC,
    "local_scratch": PUBLIC,
    "state": CLOSED,  # Slurm's own: who fills it stops the queue
    "buckets": CLOSED,  # the options of the mount say who may write
    "": CLOSED,  # folders of the host in containers: /home and /apps
}
"""Key below `storage` in the stack file -> the mode of the mounted folder, which is root's."""
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("aws", {"storage.scratch": {"kind": "nfs", "size_gib": 10}, "controller.state": "kept"}),
    ("aws", {"storage.buckets": [{"bucket": "s3://lab-data", "path": "/data"}], "login.count": 1}),
    ("gcp", {"storage.scratch": {"kind": "filestore", "size_gib": 1024}, "controller.state": "kept"}),
    ("gcp", {"storage.buckets": [{"bucket": "gs://lab-data", "path": "/data", "read_only": True}]}),
    ("local", {"local.isolation": "container", "controller.state": "kept"}),
    ("local", {"local.isolation": "container"}),
]
FILES = sorted([*shipped.files(), *STACKS.glob("Pulumi.*.yaml")])


def storages() -> dict[str, tuple[str, tuple[Mount, ...]]]:
    """Return the provider and the mounts of each kind of stack, by name."""
    given = {str(changes): values(name, changes) for name, changes in FURTHER}
    given |= {str(file): yaml.safe_load(filled_in(file.read_text()))["config"] for file in FILES}
    found = {name: design(parse(config, "test"), catalog()) for name, config in given.items()}
    return {name: (its.provider, its.mounts) for name, its in found.items()}


def test_users_write_to_scratch_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", tmp_path / "mountinfo")
    monkeypatch.setattr(disks, "volume", lambda _context, mount: f"/dev{mount.path}")
    monkeypatch.setattr(disks, "scratch", lambda _context: "/dev/nvme1n1")
    monkeypatch.setattr(host_keys, "SSHD", Path("/bin/true"))

    def there(context: Any, mount: Mount) -> None:
        """Stands for a mount of a kind that needs a server: its root folder is new."""
        (context.at(mount.path.lstrip("/"))).mkdir(parents=True, exist_ok=True)

    stands_in = {kind: there for kind in mounts.KINDS if kind not in ("nvme", "nfs")}
    monkeypatch.setattr(mounts, "KINDS", {**mounts.KINDS, **stands_in})
    monkeypatch.setattr(mounts, "_mount", lambda context, mount, *_: there(context, mount))
    monkeypatch.setattr(mounts, "kinds", lambda _context: mounts.KINDS)
    seen = set()
    for number, (name, (provider, its)) in enumerate(storages().items()):
        for role in ("controller", "compute"):
            host = "controller" if role == "controller" else "compute-0"
            folder = tmp_path / f"{number}-{role}"
            cloud = "gcp" if provider == "gcp" else "aws"
            context, _ = machine(folder, role, host, mounts=its, driver=DRIVERS[cloud], provider=cloud)
            if not any(mount.path == "/home" for mount in context.mounts()):
                continue  # AWS Batch, and machines that are processes
            machine_steps.mounts(context)
            for mount in context.mounts():
                key = mount.name.partition("[")[0]
                if role == "compute" and key == "scratch":
                    continue  # the controller opens it for all machines
                status = context.at(mount.path.lstrip("/")).stat()
                assert (key, stat.S_IMODE(status.st_mode)) == (key, MODES[key]), f"{name}: {mount.path}"
                assert status.st_uid == os.geteuid()
                seen.add(key)
    assert seen == MODES.keys()


DRIVERS: dict[str, dict[str, Any]] = {
    "aws": {},
    "gcp": {"cluster": "t", "bucket": "t-bucket", "secret": "s", "region": "europe-west4"},
}
STATE = Mount("/state", "disk", ("controller",), "controller", "defaults", 20, name="state")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_disk_that_was_open_is_closed_and_what_users_left_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases before had opened the disk with Slurm's state as if it were scratch."""
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", tmp_path / "mountinfo")
    context, _ = machine(tmp_path, "controller", "controller", mounts=(STATE,))
    monkeypatch.setattr(accounts, "ids", lambda _user: (64030, 64030))
    disk = context.at("state")
    disk.mkdir(mode=0o777)
    disk.chmod(0o1777)
    outside = tmp_path / "outside"
    outside.write_text("not on the disk")
    for name, owner in (
        ("slurmctld", 64030),
        ("elastic", 64030),
        ("ssh", 0),
        ("mysql", 1001),
        ("of-alice", 1001),
    ):
        (disk / name).mkdir(mode=0o755)
        os.chown(disk / name, owner, owner)
    (disk / "of-alice" / "big").write_bytes(b"x" * 1000)
    os.chown(disk / "of-alice" / "big", 1001, 1001)
    for name in ("huge", ".mysql.new"):
        (disk / name).write_bytes(b"x" * 1000)
        os.chown(disk / name, 1002, 1002)
    (disk / "link").symlink_to(outside)
    os.chown(disk / "link", 1002, 1002, follow_symlinks=False)
    before = outside.stat()
    for _ in range(2):
        kept_state._close(context, STATE)
        found = {
            path.name: (path.lstat().st_uid, stat.S_IMODE(path.lstat().st_mode)) for path in disk.iterdir()
        }
        link = found.pop("link")
        assert link[0] == 0
        assert found == {
            "slurmctld": (64030, 0o755),
            "elastic": (64030, 0o755),
            "ssh": (0, 0o755),
            "mysql.of-1001": (0, 0o700),
            "of-alice": (0, 0o700),
            "huge": (0, 0o600),
            ".mysql.new.of-1002": (0, 0o600),
        }, "what stands in the place of a daemon's folder is no database"
        assert (disk.stat().st_uid, stat.S_IMODE(disk.stat().st_mode)) == (0, 0o755)
    assert (disk / "of-alice" / "big").read_bytes() == b"x" * 1000
    assert (outside.stat().st_uid, outside.stat().st_mode) == (before.st_uid, before.st_mode)
    assert "5 files and folders of users" in context.report.content["facts"]["files in /state"]
