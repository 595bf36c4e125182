"""What the drivers share about errors: the classes of a cloud's codes, and failures of several zones."""

from __future__ import annotations

from collections.abc import Mapping

from node.elastic.driver import LaunchGroup, LaunchResult
from node.elastic.failures import ErrorClass, Failure
from node.elastic.pools import combined

MESSAGE_LENGTH = 400
"""The largest length of the cloud's message in a reason."""
NEXT_ZONE_HELPS = (ErrorClass.CAPACITY, ErrorClass.PLACEMENT)
"""Classes of failures against which another zone or subnet may help."""
_LEAST_SPECIFIC = (ErrorClass.CONFIG, ErrorClass.PLACEMENT)
"""Classes that say less about a partition than any other zone's failure, the least specific first."""
_QUOTA_SUFFIXES = ("limitexceeded", "quotaexceeded", "countexceeded")


class ErrorTable:
    """The error codes of a cloud, and the exceptions of its client, by class.

    Args:
        codes: Class -> the cloud's codes, separated by blanks.
        client: Class -> names of the client's exceptions, for which the cloud gave no answer.
    """

    def __init__(self, codes: Mapping[ErrorClass, str], client: Mapping[ErrorClass, str]) -> None:
        self._codes = {code: kind for kind, names in codes.items() for code in names.split()}
        self._client = {name: kind for kind, names in client.items() for name in names.split()}

    def has(self, code: str) -> bool:
        """Return whether the table has a code."""
        return code in self._codes

    def of_answer(self, code: str, status: int | None) -> ErrorClass:
        """Return the class of a cloud's error. An unknown code is classified by its ending and the status.

        Args:
            code: The cloud's code.
            status: The HTTP status; `None` means unknown.
        """
        if code in self._codes:
            return self._codes[code]
        if code.lower().replace("_", "").endswith(_QUOTA_SUFFIXES):
            return ErrorClass.QUOTA
        if status == 429:
            return ErrorClass.THROTTLED
        if status is None or status >= 500:
            return ErrorClass.UNAVAILABLE
        return ErrorClass.PERMISSION if status in (401, 403) else ErrorClass.CONFIG

    def of_client(self, error: Exception) -> ErrorClass:
        """Return the class of an exception that carries no answer of the cloud."""
        names = (base.__name__ for base in type(error).__mro__)
        return next((self._client[name] for name in names if name in self._client), ErrorClass.CONFIG)


def one_line(message: str) -> str:
    """Put a message on one line and limit its length."""
    return " ".join(message.split())[:MESSAGE_LENGTH]


def of_zones(zone_failures: list[tuple[str | None, Failure]], nodes: tuple[str, ...]) -> Failure:
    """Return one failure for all zones that a launch tried.

    Args:
        zone_failures: The zones and their failures, in the order of the tries.
        nodes: The nodes that no zone gave.
    """
    # The last one gives the class: a zone that cannot be used must not hide that others are full.
    ordered = sorted(
        zone_failures,
        key=lambda failure: (
            _LEAST_SPECIFIC.index(failure[1].kind)
            if failure[1].kind in _LEAST_SPECIFIC
            else len(_LEAST_SPECIFIC)
        ),
    )
    return combined(ordered, nodes)


def config_failure(group: LaunchGroup, code: str, message: str) -> LaunchResult:
    """Return the result of a launch that the cluster's settings do not allow."""
    return LaunchResult({}, (Failure(group.nodes, ErrorClass.CONFIG, code, message),))
