"""The user data is small and constant, has no secret, and is shell and Python code that runs."""

from __future__ import annotations

import ast
import hashlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.aws.launch_templates import BOOT_SCRIPT
from infra.clouds.userdata import UNIT
from infra.gcp import instance_templates
from node.aws import run_loader
from node.design.model import ClusterDesign
from tests.support.aws_mocks import aws_design
from tests.support.gcp_mocks import gcp_design

BUCKET = "c-bucket-1a2b3c4"
WHO = [("controller", "controller"), ("login", "login-0"), ("compute", None)]


def text(role: str = "compute", host: str | None = None, design: ClusterDesign | None = None) -> str:
    return BOOT_SCRIPT.render(design or aws_design(), BUCKET, role, host)


@pytest.mark.parametrize(("role", "host"), WHO)
def test_user_data_is_well_under_ec2s_limit(role: str, host: str | None) -> None:
    assert BOOT_SCRIPT.limit == 16384
    assert len(text(role, host).encode()) < BOOT_SCRIPT.limit / 2


def test_what_would_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 16384"):
        BOOT_SCRIPT.render(aws_design(), "b" * BOOT_SCRIPT.limit, "compute")


@pytest.mark.parametrize(("role", "host"), WHO)
def test_it_says_nothing_that_changes(role: str, host: str | None) -> None:
    """It names bucket, region, cluster, role and host, and no partitions, disks, versions or digests."""
    first = text(role, host)
    other = aws_design(partitions=(), mounts=(), stack="another")
    assert text(role, host, other) == first
    (line,) = re.findall(r"^ExecStart=(.*)$", first, re.MULTILINE)
    words = shlex.split(line)
    assert words[:2] == ["/usr/bin/python3", "/opt/slurm-stacks/run_loader.py"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    wanted = {"--bucket": BUCKET, "--region": "eu-west-1", "--cluster": "c", "--role": role}
    assert options == wanted | ({"--host": host} if host else {})


def test_the_text_that_running_clusters_have_is_kept() -> None:
    """Any change, even of a comment in `run_loader.py`, replaces the templates of every running cluster.

    Whoever changes the text on purpose puts the new digest here, and a line into the CHANGELOG.
    """
    aws = BOOT_SCRIPT.render(aws_design(), BUCKET, "compute")
    google = instance_templates.BOOT_SCRIPT.render(gcp_design(), BUCKET, "compute")
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (aws, google)] == [
        "3984525ccffcd58e",
        "c3ed265c83968291",
    ]


def test_user_data_has_no_secret() -> None:
    assert not re.search(r"AKIA|munge|password|BEGIN .*KEY", text("controller", "controller"))


@pytest.mark.parametrize(("role", "host"), WHO)
def test_user_data_is_a_valid_shell_script(role: str, host: str | None) -> None:
    written = text(role, host)
    assert written.startswith("#!/bin/sh\n"), "cloud-init runs it only so"
    subprocess.run(["sh", "-n"], input=written, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-"], input=written, text=True, check=True)


def test_running_it_writes_both_files_and_starts_the_unit_without_waiting(tmp_path: Path) -> None:
    """The script runs with another root folder in the place of /."""
    tools, root = tmp_path / "bin", tmp_path / "root"
    tools.mkdir()
    (root / "etc/systemd/system").mkdir(parents=True)
    called = tmp_path / "called"
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    (tools / "systemctl").chmod(0o755)
    written = text("login", "login-0")
    moved = written.replace("/opt/", f"{root}/opt/").replace("/etc/", f"{root}/etc/")
    subprocess.run(["sh"], input=moved, text=True, check=True, env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert (root / "opt/slurm-stacks/run_loader.py").read_text() == Path(run_loader.__file__).read_text()
    unit = (root / f"etc/systemd/system/{UNIT}").read_text()
    assert "WantedBy=multi-user.target" in unit, "it comes again after a reboot"
    assert "Restart=on-failure" in unit
    assert "TimeoutStartSec=infinity" in unit, "drivers take their time"
    begun = [f"enable --quiet --no-reload {UNIT}", f"start --no-block {UNIT}"]
    assert called.read_text().splitlines() == begun

    # cloud-init may run it again at each boot. By then systemd has read the unit.
    called.unlink()
    subprocess.run(["sh"], input=moved, text=True, check=True, env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert called.read_text().splitlines() == ["daemon-reload", *begun]


def test_the_first_code_needs_what_ubuntus_images_have() -> None:
    names = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(Path(run_loader.__file__).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert names <= sys.stdlib_module_names
