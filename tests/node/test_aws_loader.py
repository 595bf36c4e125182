"""Tests of the loader on AWS: one file, which fetches the code from S3 with the machine's role."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra import bundle
from tests.support.checkout import ROOT
from tests.support.doubles import design, settings
from tests.support.fake_imds import fake_imds
from tests.support.moto_server import moto_server

SAY = """
def bootstrap(*arguments, power_off):
    print('booted', *arguments)
    import node
    print(node.__file__)
"""


class Cloud:
    """A bucket `t-bucket` in moto, and an instance with only the loader."""

    def __init__(self, s3: Any, folder: Path, environment: dict[str, str]) -> None:
        self.s3, self.folder, self.environment = s3, folder, environment
        self.loader = folder / "machine" / "loader.py"
        self.loader.parent.mkdir()
        self.loader.write_bytes(bundle.loader_archive("aws"))
        self.code = folder / "opt"

    def publish(self, bootstrap: str = SAY) -> dict[str, Any]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in ("node", "node/bootstrap"):
                archive.writestr(f"{name}/__init__.py", "")
            archive.writestr("node/bootstrap/main.py", bootstrap)
        code, text = buffer.getvalue(), bundle.settings_object(settings(self.folder, design()))
        pointer = bundle.current(code, text)
        for entry, blob in ((pointer["code"], code), (pointer["settings"], text)):
            self.s3.put_object(Bucket="t-bucket", Key=entry["key"], Body=blob)
        self.s3.put_object(Bucket="t-bucket", Key="current.json", Body=json.dumps(pointer).encode())
        return pointer

    def boot(self, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-I", "-S", str(self.loader), "--bucket", "s3://t-bucket"]
        line += ["--code", str(self.code), "--role", "compute", *more]
        return subprocess.run(
            line, env={**self.environment, **environment}, capture_output=True, text=True, timeout=60,
            cwd="/", check=False,
        )  # fmt: skip


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with moto_server() as url, fake_imds() as imds:
        s3 = boto3.client(
            "s3", "eu-west-1", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b"
        )
        s3.create_bucket(Bucket="t-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        environment = {"AWS_ENDPOINT_URL_S3": url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}
        yield Cloud(s3, tmp_path, {"PATH": os.environ["PATH"], **environment})


def test_the_archive_is_the_same_everywhere_and_holds_no_second_client() -> None:
    first = bundle.loader_archive("aws")
    assert first == bundle.loader_archive("aws", ROOT)
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        names = archive.namelist()
        assert archive.read("__main__.py") == (ROOT / "node/loader.py").read_bytes()
        sources = {n for n in names if n.count("/") == 2 and not n.startswith("node/system/")}
        assert sources == {f"node/aws/{path.name}" for path in (ROOT / "node" / "aws").glob("*.py")}
        for name in sources:
            assert archive.read(name) == (ROOT / name).read_bytes()


def test_a_machine_fetches_checks_and_hands_over(cloud: Cloud) -> None:
    pointer = cloud.publish()
    done = cloud.boot("--host", "compute-3")
    assert done.stderr == ""
    booted, where = done.stdout.splitlines()
    assert booted == f"booted {cloud.code}/settings.json compute compute-3 s3://t-bucket"
    # The modules come from the fetched code, not from the loader.
    assert where == f"{cloud.code}/{pointer['code']['sha256'][:16]}/node/__init__.py"
    assert cloud.boot().stdout.startswith(f"booted {cloud.code}/settings.json compute None ")


def test_another_content_than_the_pointers_is_refused(cloud: Cloud) -> None:
    pointer = cloud.publish()
    cloud.s3.put_object(Bucket="t-bucket", Key=pointer["code"]["key"], Body=b"tampered")
    done = cloud.boot("--host", "compute-3")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{pointer['code']['key']}: digest " in done.stderr
    assert "but current.json names" in done.stderr
    assert not (cloud.code / "current").exists()


def test_without_the_bucket_the_last_boots_code_goes_on(cloud: Cloud) -> None:
    cloud.s3.delete_object(Bucket="t-bucket", Key="current.json")
    first = cloud.boot("--host", "controller")
    assert (first.returncode, first.stderr) == (
        1,
        "s3://t-bucket/current.json: there is no such object\n",
    )
    cloud.publish()
    assert cloud.boot("--host", "controller").returncode == 0
    cloud.s3.delete_object(Bucket="t-bucket", Key="current.json")
    later = cloud.boot("--host", "controller")
    assert later.stdout.startswith("booted ")
    assert "going on with the code of the last boot: s3://t-bucket/current.json" in later.stderr


def test_the_real_code_starts_from_the_real_archive(cloud: Cloud, tmp_path: Path) -> None:
    """The boot runs up to its first step, which refuses because a process machine belongs to its owner."""
    code, text = (
        bundle.node_archive(design()),
        bundle.settings_object(settings(tmp_path / "r", user="nobody-x")),
    )
    pointer = bundle.current(code, text)
    for entry, blob in ((pointer["code"], code), (pointer["settings"], text)):
        cloud.s3.put_object(Bucket="t-bucket", Key=entry["key"], Body=blob)
    cloud.s3.put_object(Bucket="t-bucket", Key="current.json", Body=json.dumps(pointer).encode())
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(cloud.loader), "--bucket", "s3://t-bucket", "--code",
         str(cloud.code), "--role", "compute", "--host", "debug-0"],
        env=cloud.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    try:
        assert child.stderr is not None
        said = ""
        while "PermissionError:" not in said:
            line = child.stderr.readline()
            assert line, said
            said += line
        assert "this cluster belongs to nobody-x" in said
    finally:
        child.kill()
        child.communicate()


def test_from_the_user_datas_first_code_to_the_boot(cloud: Cloud, tmp_path: Path) -> None:
    """The user data fetches the loader, and the loader fetches the code, both with the machine's role."""
    pointer = cloud.publish()
    cloud.s3.put_object(Bucket="t-bucket", Key="loader.py", Body=bundle.loader_archive("aws"))
    cloud.code.mkdir()
    (cloud.code / "run_loader.py").write_bytes((ROOT / "node" / "aws" / "run_loader.py").read_bytes())
    line = [
        sys.executable,
        str(cloud.code / "run_loader.py"),
        "--bucket",
        "t-bucket",
        "--region",
        "eu-west-1",
    ]
    done = subprocess.run(
        [*line, "--cluster", "t", "--role", "login", "--host", "login-0"],
        env=cloud.environment, capture_output=True, text=True, timeout=60, cwd="/", check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    booted, where = done.stdout.splitlines()
    assert booted == f"booted {cloud.code}/settings.json login login-0 s3://t-bucket"
    assert where.startswith(f"{cloud.code}/{pointer['code']['sha256'][:16]}/")
