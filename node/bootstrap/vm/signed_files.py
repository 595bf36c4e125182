"""Fetches files whose publisher signs them: they are kept only if a known key has signed them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node.bootstrap.command import CommandError
from node.bootstrap.context import Context
from node.bootstrap.vm.openpgp import binary, fingerprints
from node.system import files, http_client
from node.system.cloud_api import ServiceError


@dataclass(frozen=True, slots=True)
class Signer:
    """A publisher.

    Attributes:
        key_url: The URL of its key.
        fingerprint: The fingerprint of the only key that the file there may have.
    """

    key_url: str
    fingerprint: str


def fetch_key(signer: Signer, *, attempts: int) -> bytes:
    """Fetch a publisher's key.

    Raises:
        ServiceError: The key cannot be fetched, or is another one.
    """
    key = _get(signer.key_url, attempts)
    try:
        actual = fingerprints(key)
    except ValueError:
        actual = []
    if actual != [signer.fingerprint]:
        raise ServiceError(
            f"{signer.key_url}: the key is {' and '.join(actual) or 'unreadable'}, and should be "
            f"{signer.fingerprint}: what it signs is not installed"
        )
    return key


def fetch_signed(
    context: Context, url: str, signature_url: str, signer: Signer, target: Path, *, attempts: int
) -> None:
    """Fetch a file and its signature.

    Args:
        target: The file to write, in a folder that only root may change. It is there only with a good
            signature.

    Raises:
        ServiceError: One of the files cannot be fetched, or the key is another one.
        CommandError: The file is not signed by that key, or there is no gpgv.
    """
    key = fetch_key(signer, attempts=attempts)
    signature, keyring = (target.with_name(f".{target.name}.{part}") for part in ("sig", "gpg"))
    try:
        content = _get(url, attempts)
        signature.write_bytes(_get(signature_url, attempts))
        keyring.write_bytes(binary(key))
        # apt needs gpgv on every machine. It takes no key but those of the keyring, and binary keyrings only.
        check = ("gpgv", "--homedir", str(target.parent), "--keyring", str(keyring))
        try:
            with files.replacing(target) as draft:
                draft.write(content)
                draft.flush()
                context.run(*check, str(signature), str(draft.name), timeout=60.0)
        except CommandError as error:
            raise CommandError(
                f"{url} is not signed by {signer.fingerprint}, and is not installed: {error}", error.status
            ) from error
    finally:
        for path in (signature, keyring):
            path.unlink(missing_ok=True)


def _get(url: str, attempts: int) -> bytes:
    answer = http_client.call("GET", url, dict, attempts=attempts, timeout=60.0)
    if answer.status != 200:
        raise ServiceError(f"{url}: HTTP status {answer.status}", status=answer.status)
    return answer.body
