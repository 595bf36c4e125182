"""How the local cloud refuses a call."""

from __future__ import annotations


class CloudError(Exception):
    """A refused call. `code` is one of those that infra.node.elastic.drivers.local classifies."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
