"""The example hook docker.sh takes NVIDIA's packages only by the known key: the real script and gpg.

What it would change on this machine are stand-ins; the keys are made here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from node.bootstrap.vm import pyxis
from tests.support.checkout import ROOT

HOOK = ROOT / "examples" / "hooks" / "docker.sh"
STAND_INS = ("dockerd", "nvidia-smi", "apt-get", "apt-mark", "nvidia-ctk", "systemctl", "usermod", "docker")
CURL = """#!/bin/sh
while [ "$1" != --output ]; do shift; done
cp {served} "$2"
"""
pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("gpg", "gpg-agent", "bash")), reason="needs bash and gpg"
)


def key(folder: Path, *names: str) -> tuple[bytes, list[str]]:
    """An armored file with a key, and a subkey of it, for each name; and the keys' fingerprints."""
    (home := folder / "gnupg").mkdir(mode=0o700)
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    found = []
    try:
        for name in names:
            subprocess.run([*command, "--quick-generate-key", name, "ed25519", "sign", "never"], check=True)
            output = subprocess.run(
                [*command, "--list-keys", "--with-colons", name], check=True, capture_output=True, text=True
            ).stdout
            found += re.findall(r"^fpr:+([0-9A-F]{40}):", output, re.MULTILINE)
            subprocess.run([*command, "--quick-add-key", found[-1], "cv25519", "encr", "never"], check=True)
        armored = subprocess.run([*command, "--armor", "--export", *names], check=True, capture_output=True)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=True)
    return armored.stdout, found


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short enough for gpg-agent's socket."""
    return tmp_path_factory.mktemp("k")


def run(folder: Path, served: bytes, fingerprint: str) -> subprocess.CompletedProcess[str]:
    """Run the hook on a machine below `folder`, with a key that counts as NVIDIA's."""
    (bin_ := folder / "bin").mkdir()
    for name in STAND_INS:
        (bin_ / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/calls\n')
    (folder / "served").write_bytes(served)
    (bin_ / "curl").write_text(CURL.format(served=folder / "served"))
    for file in bin_.iterdir():
        file.chmod(0o755)
    (folder / "etc/apt/sources.list.d").mkdir(parents=True)
    text = HOOK.read_text().replace("/etc/apt", f"{folder}/etc/apt")
    text, replaced = re.subn(
        rf"^FINGERPRINT={pyxis.TOOLKIT_FINGERPRINT}$", f"FINGERPRINT={fingerprint}", text, flags=re.M
    )
    assert replaced == 1, "the hook and the boot know the same key"
    script = folder / "docker.sh"
    script.write_text(text)
    environment = {
        "PATH": f"{bin_}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    return subprocess.run(
        ["bash", script, "ada"], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_known_key_is_trusted_and_the_packages_come(short: Path, tmp_path: Path) -> None:
    served, (fingerprint,) = key(short, "known")
    done = run(tmp_path, served, fingerprint)
    assert done.returncode == 0, done.stderr
    keyring = tmp_path / "etc/apt/keyrings/nvidia-container-toolkit.asc"
    assert keyring.read_bytes() == served
    source = (tmp_path / "etc/apt/sources.list.d/nvidia-container-toolkit.list").read_text()
    assert source.startswith(f"deb [signed-by={keyring}] {pyxis.TOOLKIT_REPOSITORY}/stable/deb/")
    assert f"libnvidia-container1={pyxis.TOOLKIT_VERSION}" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("kind", ["another", "one more", "no key"])
def test_any_other_file_is_refused_before_apt_sees_it(short: Path, tmp_path: Path, kind: str) -> None:
    served, fingerprints = key(short, *(["known", "other"] if kind == "one more" else ["other"]))
    if kind == "no key":
        served = b"<html>moved</html>"
    known = "0" * 40 if kind == "another" else fingerprints[0]
    done = run(tmp_path, served, known)
    assert done.returncode == 1
    told = "unreadable" if kind == "no key" else fingerprints[0]
    assert f"/gpgkey: the key is {told}" in done.stderr
    assert f"should be {known}" in done.stderr
    assert list((tmp_path / "etc/apt").rglob("*.*")) == [tmp_path / "etc/apt/sources.list.d"]
    assert "libnvidia" not in (tmp_path / "calls").read_text()
