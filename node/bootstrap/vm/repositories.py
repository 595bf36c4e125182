"""Adds third-party package repositories to apt's sources. Each has its own signing key."""

from __future__ import annotations

from node.bootstrap import files
from node.bootstrap.context import Context
from node.cloud.errors import ServiceError


def add(
    context: Context,
    name: str,
    key_url: str,
    source: str,
    *,
    attempts: int | None = None,
    fingerprint: str | None = None,
) -> None:
    """Adds a repository.

    Args:
        name: the name of its files, `etc/apt/keyrings/<name>.asc` and `etc/apt/sources.list.d/<name>.list`.
        key_url: the URL of the key that signs the repository.
        source: the URL, the suite and the components, as in a `deb` line.
        attempts: the number of attempts to fetch the key. `None` means the default of all calls.
        fingerprint: the fingerprint of the only key that the file may have. `None` means that any is taken,
            for publishers who announce none (FSx) or change keys without notice (Google).

    Raises:
        ServiceError: The key cannot be fetched, or is another one.
    """
    # Imported late to save time: each boot imports this module, but few machines need other repositories.
    from node.cloud import call

    answer = call.call("GET", key_url, dict, attempts=attempts or call.ATTEMPTS, timeout=30.0)
    if answer.status != 200 or b"BEGIN PGP PUBLIC KEY BLOCK" not in answer.body:
        raise ServiceError(f"{key_url}: no key (HTTP status {answer.status})", status=answer.status)
    if fingerprint is not None and (found := _fingerprints(answer.body)) != [fingerprint]:
        raise ServiceError(
            f"{key_url}: the key is {' and '.join(found) or 'unreadable'}, and should be {fingerprint}: "
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
