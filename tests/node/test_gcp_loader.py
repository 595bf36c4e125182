"""Tests from the first code on a machine of Google Cloud to the boot, with the machine's account only."""

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

import pytest

from infra import bundle
from node.gcp import run_loader
from tests.support.checkout import ROOT
from tests.support.doubles import design, settings
from tests.support.fake_metadata import FakeMetadata, environment, fake_metadata

SAY = """
def bootstrap(*arguments, power_off):
    print('booted', *arguments)
    import node
    print(node.__file__)
"""


class Machine:
    """A machine that has only the first code."""

    def __init__(self, cloud: FakeMetadata, folder: Path) -> None:
        self.cloud, self.code = cloud, folder / "opt"
        self.code.mkdir()
        self.settings = bundle.settings_object(settings(folder, design()))
        self.loader = folder / "loader.zip"
        self.loader.write_bytes(bundle.loader_archive("gcp"))

    def publish(self, bootstrap: str = SAY) -> dict[str, Any]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in ("node", "node/bootstrap"):
                archive.writestr(f"{name}/__init__.py", "")
            archive.writestr("node/bootstrap/main.py", bootstrap)
        code = buffer.getvalue()
        pointer = bundle.current(code, self.settings)
        self.cloud.objects |= {
            "loader.py": bundle.loader_archive("gcp"),
            "current.json": json.dumps(pointer).encode(),
            pointer["code"]["key"]: code,
            pointer["settings"]["key"]: self.settings,
        }
        return pointer

    def boot(self, *more: str, tries: int = 30) -> subprocess.CompletedProcess[str]:
        source = Path(run_loader.__file__).read_text()
        quick = source.replace("PAUSE = 10.0", "PAUSE = 0.05").replace("TRIES = 30", f"TRIES = {tries}")
        assert quick.count("0.05") == 1
        (self.code / "run_loader.py").write_text(quick)
        return self._run(
            str(self.code / "run_loader.py"),
            "--bucket",
            "t-bucket",
            "--region",
            "europe-west4",
            "--cluster",
            "t",
            *more,
        )

    def load(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.loader), "--bucket", "gs://t-bucket", "--code", str(self.code), *more)

    def _run(self, *line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", "-S", *line],
            env={"PATH": os.environ["PATH"], **environment(self.cloud)},
            capture_output=True, text=True, timeout=60, cwd="/", check=False,
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with fake_metadata() as cloud:
        yield Machine(cloud, tmp_path)


def test_the_loader_has_its_own_clouds_client_and_no_other() -> None:
    content = bundle.loader_archive("gcp")
    assert content == bundle.loader_archive("gcp", ROOT)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        assert archive.read("__main__.py") == (ROOT / "node/loader.py").read_bytes()
    client = {f"node/gcp/{path.name}" for path in (ROOT / "node" / "gcp").glob("*.py")}
    assert {n for n in names if n.count("/") == 2 and not n.startswith("node/system/")} == client


def test_from_the_first_code_to_the_boot(machine: Machine) -> None:
    pointer = machine.publish()
    done = machine.boot("--role", "login", "--host", "login-0")
    assert (done.returncode, done.stderr) == (0, "")
    booted, where = done.stdout.splitlines()
    assert booted == f"booted {machine.code}/settings.json login login-0 gs://t-bucket"
    assert where == f"{machine.code}/{pointer['code']['sha256'][:16]}/node/__init__.py"
    # A node finds its own name.
    assert machine.boot("--role", "compute").stdout.startswith(
        f"booted {machine.code}/settings.json compute None "
    )


def test_a_permission_that_is_not_known_yet_is_waited_for(machine: Machine) -> None:
    machine.publish()
    machine.cloud.refuse = [(403, "forbidden")] * 3
    done = machine.boot("--role", "compute")
    assert done.returncode == 0
    assert done.stderr.count("loader.py cannot be fetched: <HTTPError 403") == 3


def test_a_loader_that_never_comes_is_a_failure_that_the_unit_sees(machine: Machine) -> None:
    done = machine.boot("--role", "compute", tries=2)
    assert done.returncode != 0
    assert done.stderr.count("loader.py cannot be fetched: <HTTPError 404") == 2


def test_without_the_bucket_the_last_boots_code_goes_on(machine: Machine) -> None:
    first = machine.load("--role", "controller", "--host", "controller")
    assert first.returncode == 1
    assert first.stderr.startswith("gs://t-bucket/current.json: it does not exist (notFound: No such obj")
    machine.publish()
    assert machine.boot("--role", "controller", "--host", "controller").returncode == 0
    machine.cloud.objects.clear()
    later = machine.boot("--role", "controller", "--host", "controller")
    assert later.stdout.startswith("booted ")
    assert "loader.py cannot be fetched" in later.stderr
    assert "going on with the code of the last boot: gs://t-bucket/current.json" in later.stderr


def test_another_content_than_the_pointers_is_refused(machine: Machine) -> None:
    pointer = machine.publish()
    machine.cloud.objects[pointer["code"]["key"]] = b"tampered"
    done = machine.load("--role", "compute", "--host", "compute-3")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{pointer['code']['key']}: digest " in done.stderr
    assert not (machine.code / "current").exists()


def test_a_machine_that_becomes_an_image_stops_when_it_is_one(machine: Machine) -> None:
    machine.publish("def bootstrap(*arguments, power_off=False):\n    print(*arguments[1:], power_off)\n")
    machine.cloud.objects["image.json"] = machine.cloud.objects.pop("current.json")
    done = machine.boot("--role", "image", "--host", "image-compute")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "image image-compute gs://t-bucket True\n"


def test_the_first_code_is_small() -> None:
    """The code is in the metadata of every machine, and the script around it needs some kilobytes more."""
    assert len(Path(run_loader.__file__).read_bytes()) < 4096
