"""Files whose publisher signs them, with real keys of gpg and the gpgv that apt has on every machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from node.bootstrap import command
from node.bootstrap.command import CommandError
from node.bootstrap.vm import efa, openpgp, signed_files
from node.bootstrap.vm.clouds import cloudwatch
from node.bootstrap.vm.signed_files import Signer
from node.system import http_client
from node.system.cloud_api import ServiceError
from node.system.http_client import Answer
from tests.support.publisher import Publisher, made
from tests.support.recorded import machine

pytestmark = pytest.mark.skipif(
    shutil.which("gpg") is None or shutil.which("gpgv") is None, reason="needs gpg and gpgv"
)
URL, KEY = "https://publisher/agent.deb", "https://publisher/key"
CONTENT = b"a package"


@dataclass(frozen=True)
class Web:
    """What the publisher's server gives out."""

    key: bytes
    content: bytes
    signature: bytes

    def get(self, _method: str, url: str, *_rest: object, **_options: object) -> Answer:
        return Answer(200, {KEY: self.key, URL: self.content, f"{URL}.sig": self.signature}[url])


@pytest.fixture(scope="module")
def publishers() -> Iterator[tuple[Publisher, Publisher]]:
    with made("amazon", "mallory") as (good, bad):
        yield good, bad


def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, web: Web, fingerprint: str) -> Path:
    context, _ = machine(folder)
    context.run = command.run
    monkeypatch.setattr(http_client, "call", web.get)
    place = folder / "drafts"
    place.mkdir(mode=0o700)
    target = place / "agent.deb"
    try:
        signed_files.fetch_signed(context, URL, f"{URL}.sig", Signer(KEY, fingerprint), target, attempts=1)
    finally:
        assert {path.name for path in place.iterdir()} <= {"agent.deb"}, "nothing else is left"
    return target


def test_what_the_known_key_has_signed_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publishers: tuple[Publisher, Publisher]
) -> None:
    good, _ = publishers
    web = Web(good.armored, CONTENT, good.signature(CONTENT))
    for number, one in enumerate((web, replace(web, key=good.binary))):
        folder = tmp_path / str(number)
        assert fetched(folder, monkeypatch, one, good.fingerprint).read_bytes() == CONTENT


def test_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publishers: tuple[Publisher, Publisher]
) -> None:
    good, bad = publishers
    web = Web(good.armored, CONTENT, good.signature(CONTENT))
    # A key's subkeys are its own only by its signature: this one has been appended by somebody else.
    public = next(body for tag, body in openpgp._packets(bad.binary) if tag == openpgp.PUBLIC_KEY)
    subkey = bytes([0x80 | 14 << 2, len(public)]) + public
    cases: dict[str, tuple[Web, type[Exception], str]] = {
        "changed": (replace(web, content=CONTENT + b"!"), CommandError, "is not signed by"),
        "unsigned": (replace(web, signature=b""), CommandError, "is not signed by"),
        "signed by another": (
            replace(web, signature=bad.signature(CONTENT)),
            CommandError,
            "is not signed by",
        ),
        "another key": (
            Web(bad.armored, CONTENT, bad.signature(CONTENT)),
            ServiceError,
            f"the key is {bad.fingerprint}, and should be {good.fingerprint}",
        ),
        "both keys": (
            Web(good.armored + bad.armored, CONTENT, bad.signature(CONTENT)),
            ServiceError,
            "and should be",
        ),
        "no key": (replace(web, key=b"<html>"), ServiceError, "the key is unreadable"),
        "another's subkey": (
            Web(good.binary + subkey, CONTENT, bad.signature(CONTENT)),
            CommandError,
            "is not signed by",
        ),
    }
    for name, (case, kind, words) in cases.items():
        with pytest.raises(kind, match=words) as error:
            fetched(tmp_path / name, monkeypatch, case, good.fingerprint)
        assert "not installed" in str(error.value), name
        assert not (tmp_path / name / "drafts" / "agent.deb").exists(), name


def test_a_machine_without_gpgv_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publishers: tuple[Publisher, Publisher]
) -> None:
    good, _ = publishers
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="gpgv"):
        fetched(tmp_path / "x", monkeypatch, Web(good.armored, CONTENT, b""), good.fingerprint)


def test_amazons_keys_are_those_of_its_guides() -> None:
    """CloudWatch user guide, "Verifying the signature of the CloudWatch agent package"; EC2 user guide, "Get
    started with EFA and MPI for ML workloads"."""
    assert cloudwatch.SIGNER.fingerprint == "9376 16F3 450B 7D80 6CBD 9725 D581 6730 3B78 9C72".replace(
        " ", ""
    )
    assert efa.EFA_SIGNER.fingerprint == "4E90 91BC BB97 A96B 26B1 5E59 A054 80B1 DD2D 3CCC".replace(" ", "")
