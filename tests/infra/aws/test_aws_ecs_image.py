"""ecs_image.sh takes NVIDIA's packages and the ECS agent by known keys only: the real script, gpg and gpgv.

What it would change on this machine are stand-ins; the keys are made here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.aws.batch import bake
from node.bootstrap.vm import pyxis
from tests.support.publisher import Publisher, made

STAND_INS = ("apt-get", "apt-mark", "nvidia-ctk", "systemctl", "docker")
CURL = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
cp "{folder}/served/$(basename "$3")" "$2"
"""
ECS = "amazon-ecs-init-latest.amd64.deb"
pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("gpg", "gpgv", "bash")), reason="needs bash, gpg and gpgv"
)


@pytest.fixture(scope="module")
def publishers() -> Iterator[list[Publisher]]:
    with made("nvidia", "amazon", "mallory") as found:
        yield found


def run(folder: Path, publishers: list[Publisher], **served: bytes) -> subprocess.CompletedProcess[str]:
    """Run the script on a machine below `folder`, with the first two keys as NVIDIA's and Amazon's."""
    nvidia, amazon, _ = publishers
    (bin_ := folder / "bin").mkdir()
    for name in STAND_INS:
        (bin_ / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/calls\n')
    (bin_ / "curl").write_text(CURL.format(folder=folder))
    for file in bin_.iterdir():
        file.chmod(0o755)
    files = {
        "gpgkey": nvidia.armored,
        "amazon-ecs-agent.gpg": amazon.armored,
        ECS: b"agent",
        f"{ECS}.asc": amazon.signature(b"agent"),
    }
    (folder / "served").mkdir()
    for name, content in {**files, **served}.items():
        (folder / "served" / name).write_bytes(content)
    for place in ("etc/apt/sources.list.d", "var/lib/apt/lists"):
        (folder / place).mkdir(parents=True)
    text = re.sub(r"(?<![\w.])/(etc|var)/", rf"{folder}/\1/", bake.SCRIPT.read_text())
    for known, key in ((pyxis.TOOLKIT_FINGERPRINT, nvidia), (AGENT, amazon)):
        text, replaced = re.subn(rf"_key={known}$", f"_key={key.fingerprint}", text, flags=re.M)
        assert replaced == 1, known
    (script := folder / "ecs_image.sh").write_text(text)
    environment = {"PATH": f"{bin_}:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(folder)}
    return subprocess.run(
        ["bash", str(script), "gpu", "eu-west-1"],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


AGENT = "F34C 3DDA E729 26B0 79BE AEC6 BCE9 D9A4 2D51 784F".replace(" ", "")
"""The key's fingerprint in the ECS developer guide."""


def test_what_is_signed_is_installed(tmp_path: Path, publishers: list[Publisher]) -> None:
    done = run(tmp_path, publishers)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text()
    assert f"libnvidia-container1={pyxis.TOOLKIT_VERSION}" in calls
    assert re.search(r"^apt-get .*install \S+/amazon-ecs-init.deb$", calls, re.M)
    assert (tmp_path / "etc/apt/keyrings/nvidia-container-toolkit.asc").read_bytes() == publishers[0].armored
    assert (tmp_path / "etc/ecs/ecs.config").exists()
    assert list(tmp_path.glob("tmp.*")) == [], "nothing is left in the image"


@pytest.mark.parametrize(
    ("changed", "words", "installed"),
    [
        ({"gpgkey": "mallory"}, "gpgkey: the key is ", ""),
        ({"gpgkey": "both"}, "gpgkey: the key is ", ""),
        ({"amazon-ecs-agent.gpg": "mallory"}, "amazon-ecs-agent.gpg: the key is ", "nvidia"),
        ({f"{ECS}.asc": "mallory"}, "is not signed by", "nvidia"),
        ({ECS: "mallory"}, "is not signed by", "nvidia"),
    ],
)
def test_what_is_not_ends_the_build(
    tmp_path: Path, publishers: list[Publisher], changed: dict[str, str], words: str, installed: str
) -> None:
    nvidia, _, mallory = publishers
    contents = {
        f"{ECS}.asc": mallory.signature(b"agent"),
        ECS: b"changed",
        "gpgkey": nvidia.armored + mallory.armored if "both" in changed.values() else mallory.armored,
        "amazon-ecs-agent.gpg": mallory.armored,
    }
    done = run(tmp_path, publishers, **{name: contents[name] for name in changed})
    assert done.returncode == 1
    assert words in done.stderr
    calls = (tmp_path / "calls").read_text()
    assert "amazon-ecs-init.deb" not in calls
    assert ("libnvidia" in calls) == bool(installed)
