"""Package repositories of others among apt's sources, each with the key that signs it and no other."""

from __future__ import annotations

from infra.node.bootstrap import files
from infra.node.bootstrap.context import Context
from infra.node.cloud.errors import ServiceError


def add(context: Context, name: str, key_url: str, places: str, *, attempts: int | None = None) -> None:
    """Have a repository, whose packages the key of this address signs.

    Args:
        name: of the files: `etc/apt/keyrings/<name>.asc`, `etc/apt/sources.list.d/<name>.list`.
        places: address, suite and components, as in a `deb` line.
        attempts: to read the key; None: as many as for any call.

    Raises:
        ServiceError: nobody has the key for us.
    """
    # Here and not above: each boot imports this module, and few machines have other repositories.
    from infra.node.cloud import call

    answer = call.call("GET", key_url, dict, attempts=attempts or call.ATTEMPTS, timeout=30.0)
    if answer.status != 200 or b"BEGIN PGP PUBLIC KEY BLOCK" not in answer.body:
        raise ServiceError(f"{key_url}: no key (HTTP status {answer.status})", status=answer.status)
    keyring = context.at(f"etc/apt/keyrings/{name}.asc")
    source = context.at(f"etc/apt/sources.list.d/{name}.list")
    for path in (keyring, source):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.place(keyring, answer.body)
    files.place(source, f"deb [signed-by=/etc/apt/keyrings/{name}.asc] {places}\n".encode())
