"""Tests of the first code on a machine, which fetches the loader with the role's credentials and runs it."""

from __future__ import annotations

import datetime
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from infra import bundle
from node.aws import run_loader
from node.aws.api import domain
from node.aws.signatures import Credentials, signed
from tests.support.fake_imds import fake_imds
from tests.support.moto_server import moto_server

ROLE = {"AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG", "Token": "to/ken=="}
LOADER = "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['AWS_REGION']]))\n"
NOW = datetime.datetime(2026, 11, 21, 12, 30, tzinfo=datetime.UTC)


class Cloud:
    """A metadata service that requires tokens, and a bucket that requires signatures."""

    def __init__(self) -> None:
        self.failures = 0
        """How many more requests the bucket refuses."""
        self.loader: str | None = LOADER
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
                self.reply(200, "a-token")

            def do_GET(self) -> None:
                if self.path.startswith("/latest/"):
                    self.reply(*cloud.metadata(self.path, self.headers["X-aws-ec2-metadata-token"]))
                else:
                    self.reply(*cloud.object(self.path, dict(self.headers)))

            def reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def metadata(self, path: str, token: str | None) -> tuple[int, str]:
        if token != "a-token":
            return 401, ""
        folder = "/latest/meta-data/iam/security-credentials/"
        return {folder: (200, "the-role"), f"{folder}the-role": (200, json.dumps(ROLE))}.get(path, (404, ""))

    def object(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        headers = {key.lower(): value for key, value in headers.items()}
        now = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        credentials = Credentials(ROLE["AccessKeyId"], ROLE["SecretAccessKey"], ROLE["Token"])
        wanted = signed(
            "GET", f"{self.url}{path}", {}, b"", credentials, region="eu-west-1", service="s3", now=now
        )
        if _signature(headers["authorization"]) != _signature(
            {key.lower(): value for key, value in wanted.items()}["authorization"]
        ):
            return 403, "<Code>SignatureDoesNotMatch</Code>"
        if self.failures:
            self.failures -= 1
            return 403, "<Code>AccessDenied</Code>"
        return (404, "") if self.loader is None or path != "/bucket-1/loader.py" else (200, self.loader)


def _signature(authorization: str) -> str:
    return authorization.rpartition("Signature=")[2]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.server.shutdown()
    made.server.server_close()


def machine(cloud: Cloud, folder: Path, *more: str, tries: int = 30) -> subprocess.CompletedProcess[str]:
    """Starts the code as the systemd unit does, with short pauses."""
    source = Path(run_loader.__file__).read_text()
    quick = source.replace("PAUSE = 10.0", "PAUSE = 0.05").replace("TRIES = 30", f"TRIES = {tries}")
    assert quick.count("0.05") == 1
    (folder / "run_loader.py").write_text(quick)
    line = [sys.executable, str(folder / "run_loader.py"), "--bucket", "bucket-1", "--region", "eu-west-1"]
    environment = {
        **os.environ,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.url,
        "AWS_ENDPOINT_URL_S3": cloud.url,
    }
    return subprocess.run(
        [*line, "--cluster", "c", *more],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_becomes_the_loader(cloud: Cloud, tmp_path: Path) -> None:
    done = machine(cloud, tmp_path, "--role", "controller", "--host", "controller")
    assert done.returncode == 0, done.stderr
    arguments, region = json.loads(done.stdout)
    assert region == "eu-west-1"
    assert arguments == [
        *("--bucket", "s3://bucket-1", "--code", str(tmp_path)),
        *("--role", "controller", "--host", "controller"),
    ]


def test_a_node_does_not_know_its_name_yet(cloud: Cloud, tmp_path: Path) -> None:
    done = machine(cloud, tmp_path, "--role", "compute")
    assert "--host" not in json.loads(done.stdout)[0]


def test_a_role_that_is_not_known_yet_is_waited_for(cloud: Cloud, tmp_path: Path) -> None:
    cloud.failures = 3
    done = machine(cloud, tmp_path, "--role", "compute")
    assert done.returncode == 0
    assert done.stderr.count("cannot be fetched") == 3


def test_a_loader_that_never_comes_is_a_failure_that_the_unit_sees(cloud: Cloud, tmp_path: Path) -> None:
    cloud.loader = None
    done = machine(cloud, tmp_path, "--role", "compute", tries=3)
    assert done.returncode != 0
    assert done.stderr.count("loader.py cannot be fetched: <HTTPError 404") == 3


def test_after_a_reboot_the_loader_of_the_last_boot_will_do(cloud: Cloud, tmp_path: Path) -> None:
    cloud.loader = None
    (tmp_path / "loader.py").write_text("print('as before')")
    done = machine(cloud, tmp_path, "--role", "compute")
    assert (done.returncode, done.stdout) == (0, "as before\n")


def test_a_new_loader_replaces_that_of_the_last_boot(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text("print('as before')")
    assert "bucket-1" in machine(cloud, tmp_path, "--role", "compute").stdout


def test_its_signature_is_the_node_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first code has its own signer. Both signers must agree, also for AWS's own address."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    made = run_loader.signed("bucket-1", "eu-west-1", "loader.py", ROLE, NOW)
    assert made.full_url == "https://bucket-1.s3.eu-west-1.amazonaws.com/loader.py"
    credentials = Credentials(ROLE["AccessKeyId"], ROLE["SecretAccessKey"], ROLE["Token"])
    wanted = signed("GET", made.full_url, {}, b"", credentials, region="eu-west-1", service="s3", now=NOW)
    by_name = {key.lower(): value for key, value in wanted.items()}
    assert _signature(made.headers["Authorization"]) == _signature(by_name["authorization"])


def test_it_finds_the_bucket_in_regions_of_another_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    for region in ("cn-north-1", "us-gov-west-1"):
        made = run_loader.signed("bucket-1", region, "loader.py", ROLE, NOW)
        assert made.full_url == f"https://bucket-1.s3.{region}.{domain(region)}/loader.py"


def test_the_first_code_and_the_loader_of_the_bucket_become_the_bootstrap(tmp_path: Path) -> None:
    """Both run for real with an S3 and a metadata service. Only the bootstrap is a fake."""
    boot = "def bootstrap(*arguments, power_off):\n    print('booted', *arguments)\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for folder in ("node", "node/bootstrap"):
            archive.writestr(f"{folder}/__init__.py", "")
        archive.writestr("node/bootstrap/main.py", boot)
    code, settings = buffer.getvalue(), b"{}"
    pointer = bundle.current(code, settings)
    objects = {
        "loader.py": bundle.loader_archive("aws"),
        "current.json": json.dumps(pointer).encode(),
        pointer["code"]["key"]: code,
        pointer["settings"]["key"]: settings,
    }
    with moto_server() as url, fake_imds() as imds:
        s3 = boto3.client(
            "s3", "eu-west-1", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b"
        )
        s3.create_bucket(Bucket="bucket-1", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        for key, content in objects.items():
            s3.put_object(Bucket="bucket-1", Key=key, Body=content)
        program = shutil.copy(run_loader.__file__, tmp_path / "run_loader.py")
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, "--bucket", "bucket-1", "--cluster", "c",
             "--region", "eu-west-1", "--role", "controller", "--host", "controller"],
            env={"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url, "AWS_ENDPOINT_URL_S3": url},
            cwd="/", capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"booted {tmp_path}/settings.json controller controller s3://bucket-1\n"
