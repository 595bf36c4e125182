"""The cluster's secret store, as its controller sees it: the munge key outlives the head that made it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from infra.node.bootstrap import files
from infra.node.model import Settings

if TYPE_CHECKING:
    from infra.node.bootstrap.vm.cloud import Secret


class Store(Protocol):
    """Secrets by name, whole or not at all."""

    def get(self, name: str) -> bytes | None: ...

    def put(self, name: str, content: bytes) -> None: ...


class FolderStore:
    """A folder that only the machines' root can enter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def get(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, content: bytes) -> None:
        files.folder(self._folder, 0o700)
        files.place(self._folder / name, content, 0o600)


class SecretStore:
    """The one secret that the cluster has at its cloud, whatever name is asked for."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    def __str__(self) -> str:
        return f"the secret {self._secret.name}"

    def get(self, _name: str) -> bytes | None:
        return self._secret.get()

    def put(self, _name: str, content: bytes) -> None:
        self._secret.put(content)


def of(settings: Settings) -> Store:
    """The store of this cluster's site.

    Raises:
        ValueError: the settings name none.
    """
    if secret := settings.site.driver.get("secret"):
        # Here and not above: the local stack asks no cloud.
        from infra.node.bootstrap.vm import clouds

        return SecretStore(clouds.of(settings).secret(secret))
    folder = settings.site.driver.get("secrets")
    if not folder:
        raise ValueError(
            "the settings name no secret store (site.driver.secrets): publish them again with `up`"
        )
    return FolderStore(Path(folder))
