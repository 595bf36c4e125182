"""Adds third-party package repositories to apt's sources. Each has its own signing key."""

from __future__ import annotations

from node.bootstrap.context import Context
from node.system import files
from node.system.cloud_api import ServiceError


def add_repository(
    context: Context,
    name: str,
    key_url: str,
    source: str,
    *,
    attempts: int | None = None,
    fingerprint: str | None = None,
) -> None:
    """Add a repository.

    Args:
        name: The name of its files, `etc/apt/keyrings/<name>.asc` and `etc/apt/sources.list.d/<name>.list`.
        key_url: The URL of the key that signs the repository.
        source: The URL, the suite and the components, as in a `deb` line.
        attempts: The number of attempts to fetch the key. `None` means the default of all calls.
        fingerprint: The fingerprint of the only key that the file may have. `None` means that any is taken,
            for publishers who announce none (FSx) or change keys without notice (Google): SECURITY.md
            names these repositories, and a test holds them to the list.

    Raises:
        ServiceError: The key cannot be fetched, or is another one.
    """
    # Imported late to save time: each boot imports this module, but few machines need other repositories.
    from node.system import http_client

    answer = http_client.call("GET", key_url, dict, attempts=attempts or http_client.ATTEMPTS, timeout=30.0)
    if answer.status != 200 or b"BEGIN PGP PUBLIC KEY BLOCK" not in answer.body:
        raise ServiceError(f"{key_url}: no key (HTTP status {answer.status})", status=answer.status)
    if fingerprint is not None and (actual := _fingerprints(answer.body)) != [fingerprint]:
        raise ServiceError(
            f"{key_url}: the key is {' and '.join(actual) or 'unreadable'}, and should be {fingerprint}: "
            "nothing is installed from there",
            status=answer.status,
        )
    keyring = context.at(f"etc/apt/keyrings/{name}.asc")
    sources_list = context.at(f"etc/apt/sources.list.d/{name}.list")
    for path in (keyring, sources_list):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write(keyring, answer.body)
    files.write(sources_list, f"deb [signed-by=/etc/apt/keyrings/{name}.asc] {source}\n".encode())


def _fingerprints(key: bytes) -> list[str]:
    from node.bootstrap.vm import openpgp

    try:
        return openpgp.fingerprints(key)
    except ValueError:
        return []
