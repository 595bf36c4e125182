"""The example hook gdrcopy.sh installs packages of the given hashes only, and makes the device of its module.

The real script runs with stand-ins for what it would change on this machine.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.checkout import ROOT

HOOK = ROOT / "examples" / "hooks" / "gdrcopy.sh"
KERNEL, OTHER = "6.17.0-1022-gcp", "6.14.0-1018-gcp"
STAND_INS = {
    "nvidia-smi": "",
    "systemctl": "",
    "apt-get": f'case "$*" in *.deb) touch {{root}}/{"built"};; esac',
    "dpkg": "",
    "dpkg-query": "printf 2.6-1",
    "dkms": "echo gdrdrv/2.6: added",
    "modinfo": "[ -e {root}/built ]",
    "modprobe": "echo '234 gdrdrv' >>{root}/devices",
    "mknod": "",
    "uname": f"echo {KERNEL}",
}
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@dataclass
class Node:
    """A machine below a folder, with stand-ins that note how they are called."""

    root: Path

    def program(self, name: str, text: str) -> None:
        file = self.root / "bin" / name
        noted = f'#!/bin/sh\necho "{name} $*" >>{self.root}/calls\n{text.replace("{root}", str(self.root))}\n'
        file.write_text(noted)
        file.chmod(0o755)

    def package(self, name: str, content: bytes = b"package") -> str:
        (self.root / name).write_bytes(content)
        return f"{self.root / name}#sha256={hashlib.sha256(content).hexdigest()}"

    def hook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self.root / "calls").write_text("")
        environment = {"PATH": f"{self.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        command = ["bash", str(self.root / "gdrcopy.sh"), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    def calls(self, program: str) -> list[str]:
        lines = (self.root / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        made.program(name, text)
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n")
    for kernel in (KERNEL, OTHER):
        (tmp_path / "lib/modules" / kernel / "build").mkdir(parents=True)
    text = HOOK.read_text()
    moved = {
        "=/var/cache/": f"={tmp_path}/",
        " /lib/modules/*": f" {tmp_path}/lib/modules/*",
        "' /proc/devices": f"' {tmp_path}/devices",
        "/dev/$MODULE": f"{tmp_path}/$MODULE",
    }
    for path, here in moved.items():
        assert path in text
        text = text.replace(path, here)
    (tmp_path / "gdrcopy.sh").write_text(text)
    return made


def test_the_module_is_built_once_and_loaded_at_each_boot(node: Node) -> None:
    packages = [node.package("gdrdrv-dkms.deb", b"driver"), node.package("libgdrapi.deb", b"library")]
    done = node.hook(*packages)
    assert (done.returncode, done.stdout, done.stderr) == (0, "GDRCopy 2.6-1\n", "")
    digests = [package.rpartition("=")[2] for package in packages]
    *_, install = node.calls("apt-get")
    assert [Path(word).stem for word in install.split()[-2:]] == digests
    removed = [call for call in node.calls("apt-get") if " purge " in call]
    assert [call.split()[-1] for call in removed] == [f"linux-headers-{OTHER}"], (
        "it would be built for it, too"
    )
    assert node.calls("mknod") == [f"mknod --mode=666 {node.root}/gdrdrv c 234 0"]
    (node.root / "devices").write_text("")
    assert node.hook(*packages).returncode == 0
    assert (node.calls("apt-get"), len(node.calls("mknod"))) == ([], 1)


def test_a_machine_without_nvidias_driver_has_nothing_to_do(node: Node) -> None:
    (node.root / "bin/nvidia-smi").unlink()
    done = node.hook()
    assert (done.returncode, done.stderr) == (0, "")
    assert not node.calls("modprobe")


@pytest.mark.parametrize(
    "argument", ["", "x.deb", "x.deb#sha256=12", f"x.deb#sha256={'0' * 64}", f"#sha256={'g' * 64}"]
)
def test_an_argument_that_names_no_pinned_package_ends_the_hook(node: Node, argument: str) -> None:
    done = node.hook(*([argument] if argument else []))
    assert done.returncode == 1
    assert done.stderr.startswith("GDRCopy: ")
    assert not node.calls("apt-get")


def test_a_package_of_another_hash_is_not_installed(node: Node) -> None:
    package = node.package("gdrdrv-dkms.deb")
    (node.root / "gdrdrv-dkms.deb").write_bytes(b"another")
    done = node.hook(package)
    assert done.returncode == 1
    assert "it is not installed" in done.stderr
    assert not node.calls("apt-get")


@pytest.mark.parametrize(
    ("program", "text", "message"),
    [
        ("modinfo", "exit 1", f"was not built for Linux {KERNEL} (gdrdrv/2.6: added)"),
        ("modprobe", "exit 1", "does not load gdrdrv"),
        ("modprobe", "echo '234 gdrdrv-other' >>{root}/devices", "has no device"),
    ],
)
def test_a_module_that_does_not_work_ends_the_hook(node: Node, program: str, text: str, message: str) -> None:
    node.program(program, text)
    done = node.hook(node.package("gdrdrv-dkms.deb"))
    assert done.returncode == 1
    assert message in done.stderr
    assert not node.calls("mknod")
