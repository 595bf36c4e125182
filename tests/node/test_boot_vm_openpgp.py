"""The fingerprints of keys are those that gpg prints for the distribution's own key files."""

from __future__ import annotations

import base64
import itertools
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from node.bootstrap.vm import apt_repositories, neuron, openpgp
from node.system import http_client
from node.system.cloud_api import ServiceError
from node.system.http_client import Answer
from tests.support.recorded import machine

FOLDERS = ("/usr/share/keyrings", "/etc/apt/trusted.gpg.d")
FILES = sorted(
    path for folder in FOLDERS for path in Path(folder).glob("*") if path.suffix in (".gpg", ".asc")
)


def armored(path: Path) -> bytes:
    content = path.read_bytes()
    if content.startswith(b"-----BEGIN"):
        return content
    text = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 64))
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}\n-----END PGP PUBLIC KEY BLOCK-----\n".encode()


@pytest.mark.skipif(
    shutil.which("gpg") is None or not FILES, reason="needs gpg, and key files of the distribution's"
)
@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_the_fingerprints_are_those_that_gpg_tells(path: Path, tmp_path: Path) -> None:
    command = ["gpg", "--homedir", str(tmp_path), "--batch", "--show-keys", "--with-colons", str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    kinds = [line.split(":") for line in result if line.startswith(("pub:", "sub:", "fpr:"))]
    wanted = [fpr[9] for line, fpr in itertools.pairwise(kinds) if line[0] == "pub"]
    assert wanted
    assert openpgp.fingerprints(armored(path)) == wanted


# A key packet of version 4 with the old and the new form of headers, and data that is not a key.
BODY = bytes([4, 0, 0, 0, 0, 22]) + b"x" * 40
OLD, NEW = bytes([0x98, len(BODY)]) + BODY, bytes([0xC6, len(BODY)]) + BODY


def block(content: bytes) -> bytes:
    return b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nVersion: 1\n\n%s\n=abcd\n-----END" % base64.b64encode(
        content
    )


def test_both_forms_of_packets_are_one_key() -> None:
    (old,), (new,) = openpgp.fingerprints(block(OLD)), openpgp.fingerprints(block(NEW))
    assert old == new
    assert len(openpgp.fingerprints(block(OLD) + b"\n" + block(NEW))) == 2


@pytest.mark.parametrize("content", [b"", OLD[:-1], b"\x00" + OLD, bytes([0x98, 2, 3, 0]), bytes([0xC6])])
def test_a_damaged_file_has_no_keys(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"key"):
        openpgp.fingerprints(block(content))


@pytest.mark.parametrize("answer", [block(OLD), b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"])
def test_another_key_than_neurons_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    context, run = machine(tmp_path)
    monkeypatch.setattr(http_client, "call", lambda *_a, **_k: Answer(200, answer))
    with pytest.raises(ServiceError, match=rf"should be {neuron.NEURON_FINGERPRINT}: nothing is installed"):
        neuron.install_neuron(context)
    assert not context.at("etc/apt/sources.list.d/aws-neuron.list").exists()
    assert run.calls == []
    monkeypatch.setattr(openpgp, "fingerprints", lambda _key: [neuron.NEURON_FINGERPRINT])
    where = f"{neuron.NEURON_REPOSITORY} noble main"
    apt_repositories.add_repository(
        context, "aws-neuron", neuron.NEURON_KEY_URL, where, fingerprint=neuron.NEURON_FINGERPRINT
    )
    assert context.at("etc/apt/keyrings/aws-neuron.asc").read_bytes() == answer
