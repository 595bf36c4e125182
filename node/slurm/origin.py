"""The data of the stack file on where machines get Slurm from, if not from their distribution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repository:
    """An apt repository with packages of Slurm.

    Attributes:
        url: the address in a `deb` line.
        suite: the suite in a `deb` line.
        components: the components in a `deb` line.
        key: the address of the key that signs the repository.
        fingerprint: the key's fingerprint.
    """

    url: str
    suite: str
    components: tuple[str, ...]
    key: str
    fingerprint: str
