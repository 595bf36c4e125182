"""Tests of mounted buckets: which client is installed, how it is started, and what a failure says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from node.bootstrap.command import CommandError
from node.bootstrap.vm import buckets, disks, mounts
from node.design.storage import Mount
from node.system import http_client
from node.system.cloud_api import ServiceError
from tests.support.recorded import machine

S3 = Mount("/data", "s3", existing="s3://lab-data/train", options="ro")
OPEN = Mount("/out", "s3", existing="s3://lab-out", options="rw")
GCS = Mount("/data", "gcs", existing="gs://lab-data/train", options="ro")
OPEN_GCS = Mount("/out", "gcs", existing="gs://lab-out", options="rw")
ARCHIVE = b"an archive"


@pytest.fixture(autouse=True)
def nothing_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr(disks, "MOUNTINFO", tmp_path / "mountinfo")
    return tmp_path / "mountinfo"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every address answers with the same archive, which has the pinned hash."""
    asked: list[str] = []

    def answer(_verb: str, url: str, *_arguments: object, **_options: object) -> http_client.Answer:
        asked.append(url)
        return http_client.Answer(200, ARCHIVE, {})

    monkeypatch.setattr(http_client, "call", answer)
    pinned = hashlib.sha256(ARCHIVE).hexdigest()
    monkeypatch.setattr(buckets, "SHA256", dict.fromkeys(buckets.SHA256, pinned))
    return asked


def test_a_bucket_of_s3_is_mounted_by_a_service_of_its_own(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(S3, OPEN))
    root = tmp_path / "root"
    mounts.KINDS["s3"](context, S3)
    mounts.KINDS["s3"](context, OPEN)
    service = "systemd-run --quiet --collect --service-type=forking"
    client = f"{root}/opt/aws/mountpoint-s3/bin/mount-s3 --allow-other"
    assert run.calls == [
        f"{service} --unit=slurm-stacks-bucket-data -- {client} --read-only --prefix train/ "
        f"lab-data {root}/data",
        f"{service} --unit=slurm-stacks-bucket-out -- {client} --allow-delete --allow-overwrite "
        f"--dir-mode 0777 --file-mode 0666 lab-out {root}/out",
    ]


def test_a_bucket_of_cloud_storage_is_mounted_by_a_service_of_its_own(tmp_path: Path) -> None:
    context, run = machine(tmp_path, mounts=(GCS, OPEN_GCS), provider="gcp")
    root = tmp_path / "root"
    mounts.KINDS["gcs"](context, GCS)
    mounts.KINDS["gcs"](context, OPEN_GCS)
    client = "-- /usr/bin/gcsfuse -o allow_other --implicit-dirs"
    assert [call.partition("bucket-")[2] for call in run.calls] == [
        f"data {client} -o ro --only-dir train lab-data {root}/data",
        f"out {client} --dir-mode 0777 --file-mode 0666 lab-out {root}/out",
    ]


def test_a_bucket_that_is_mounted_stays_and_nothing_else_is_taken_for_it(
    tmp_path: Path, nothing_mounted: Path
) -> None:
    context, run = machine(tmp_path, mounts=(S3,))
    line = "36 35 0:50 / {root}/data rw - {kind} {source} rw\n"
    nothing_mounted.write_text(line.format(root=tmp_path / "root", kind="fuse", source="mountpoint-s3"))
    buckets.s3(context, S3)
    assert run.calls == []
    nothing_mounted.write_text(line.format(root=tmp_path / "root", kind="ext4", source="/dev/sdb"))
    with pytest.raises(RuntimeError, match=r"/dev/sdb is mounted there, and should be s3://lab-data/train"):
        buckets.s3(context, S3)


def test_mountpoint_is_installed_once_by_its_hash(tmp_path: Path, served: list[str]) -> None:
    context, run = machine(tmp_path, mounts=(S3,))
    assert buckets.install(context)[-1] == f"mount-s3 {buckets.VERSION}"
    assert len(served) == 1
    assert served[0].endswith(f"mount-s3-{buckets.VERSION}-{buckets.ARCHITECTURES['x86_64']}.tar.gz") or (
        served[0].endswith("arm64.tar.gz")
    )
    (unpack,) = (call for call in run.calls if call.startswith("tar "))
    assert unpack.endswith(f"--directory={tmp_path}/root/opt/aws/mountpoint-s3")
    client = tmp_path / "root" / buckets.FOLDER / "bin" / "mount-s3"
    client.parent.mkdir()
    client.touch()
    buckets.install(context)
    assert len(served) == 1


def test_another_archive_is_not_installed(
    tmp_path: Path, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "SHA256", dict.fromkeys(buckets.SHA256, "0" * 64))
    context, run = machine(tmp_path, mounts=(S3,))
    with pytest.raises(ServiceError, match="it is not installed"):
        buckets.install(context)
    assert not any(call.startswith("tar ") for call in run.calls)


def test_a_failure_says_what_the_client_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, _ = machine(tmp_path, mounts=(S3,))

    def run(*command: str, **_options: object) -> str:
        if command[0] == "journalctl":
            return "Error: Access Denied\n"
        raise CommandError("systemd-run: exit status 1", 1)

    monkeypatch.setattr(context, "run", run)
    with pytest.raises(RuntimeError, match=r"could not be mounted.*\nError: Access Denied"):
        buckets.s3(context, S3)
