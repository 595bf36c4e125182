"""The error with which the local cloud refuses a call."""

from __future__ import annotations


class CloudError(Exception):
    """The cloud refused a call. `code` is one of those that `node.elastic.drivers.local` classifies."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
