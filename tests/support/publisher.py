"""Publishers who sign files: keys of gpg's, made for a test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from node.bootstrap.vm import openpgp


@contextlib.contextmanager
def made(*names: str) -> Iterator[list[Publisher]]:
    """Yield publishers, whose keys are in a folder with a short name: gpg's agent has a socket there."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="gpg-") as folder:
        try:
            yield [Publisher(Path(folder), name) for name in names]
        finally:
            subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, "GNUPGHOME": folder}, check=True)


class Publisher:
    """A key of gpg's."""

    def __init__(self, home: Path, name: str) -> None:
        self._home, self._name = home, name
        self.gpg(
            "--passphrase", "", "--quick-gen-key", f"{name} <{name}@example.com>", "ed25519", "sign", "never"
        )
        self.armored, self.binary = self.gpg("--armor", "--export", name), self.gpg("--export", name)
        (self.fingerprint,) = openpgp.fingerprints(self.armored)

    def gpg(self, *arguments: str, given: bytes = b"") -> bytes:
        line = ["gpg", "--homedir", str(self._home), "--batch", "--quiet", *arguments]
        return subprocess.run(line, input=given, check=True, capture_output=True).stdout

    def signature(self, content: bytes) -> bytes:
        return self.gpg("--local-user", self._name, "--detach-sign", given=content)
