"""Classifies every error of Compute Engine and of its client.

An error comes in the HTTP answer (`reason`, camel case) or later in an operation (`code`, capitals); one
table has both. Errors are recognised by these codes and by names of the client's classes, so this module
does not import the client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from node.elastic.drivers.failures import ErrorTable, one_line
from node.elastic.failures import ErrorClass, Failure
from node.system import rpc

EXISTS = ("RESOURCE_ALREADY_EXISTS", "alreadyExists")
"""Codes of an instance whose name is in use."""
NOT_FOUND = ("RESOURCE_NOT_FOUND", "notFound")
NOT_READY = ("RESOURCE_NOT_READY", "resourceNotReady")

_CODES = {
    ErrorClass.CAPACITY: """
        ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS
        REGION_RESOURCE_POOL_EXHAUSTED REGION_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS
        VM_MIN_COUNT_NOT_REACHED UNSUPPORTED_OPERATION IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS
        RESERVATION_CAPACITY_EXCEEDED""",
    ErrorClass.QUOTA: "QUOTA_EXCEEDED quotaExceeded LIMIT_EXCEEDED limitExceeded dailyLimitExceeded",
    ErrorClass.THROTTLED: """
        RESOURCE_OPERATION_RATE_EXCEEDED RATE_LIMIT_EXCEEDED rateLimitExceeded userRateLimitExceeded
        CONCURRENT_OPERATIONS_QUOTA_EXCEEDED concurrentOperationsQuotaExceeded""",
    ErrorClass.UNAVAILABLE: """
        backendError internalError INTERNAL_ERROR SERVICE_UNAVAILABLE serviceUnavailable TIMEOUT
        RESOURCE_NOT_READY resourceNotReady RESOURCE_IN_USE_BY_ANOTHER_RESOURCE
        resourceInUseByAnotherResource operationInProgress""",
    ErrorClass.PERMISSION: """
        forbidden insufficientPermissions accessNotConfigured authError accountDisabled billingNotEnabled
        PERMISSIONS_ERROR PERMISSION_DENIED IAM_PERMISSION_DENIED SERVICE_ACCOUNT_ACCESS_DENIED
        PROJECT_CONSTRAINT_VIOLATED conditionNotMet CONDITION_NOT_MET""",
    ErrorClass.CONFIG: """
        badRequest invalid invalidParameter parseError notFound RESOURCE_NOT_FOUND alreadyExists
        RESOURCE_ALREADY_EXISTS INVALID_ARGUMENT INVALID_USAGE INVALID_FIELD_VALUE CPU_PLATFORM_MISMATCH""",
}
# Errors of the client itself: no answer came, or the request was never sent. A controller's credentials come
# from its metadata server, so having none means that it did not answer in time.
_CLIENT = {
    ErrorClass.PERMISSION: "RefreshError",
    ErrorClass.UNAVAILABLE: "RequestException TransportError RetryError ParseError DefaultCredentialsError",
}
_REFUSED = re.compile(r"(?:Status|Response status): 4\d\d")
"""How google-auth quotes a metadata server that answers and has no token for the machine's account."""
_TABLE = ErrorTable(_CODES, _CLIENT)
_STOCKOUT = "does not have enough resources available"
_PLACEMENT = ("placement polic", "resource polic", "collocat", "placement group")


class GceError(rpc.RpcError):
    """Compute Engine refuses a listing or a termination, or does not answer it."""


def classify(code: str, status: int | None, message: str = "") -> ErrorClass:
    """Return the class of an error of Compute Engine.

    Args:
        code: An answer's `reason`, or an operation's error code.
        status: The HTTP status; `None` means unknown.
        message: The cloud's message: a full zone and machines that cannot be placed together may have one
            code.
    """
    text = message.lower()
    full = _STOCKOUT in text and not _TABLE.has(code)
    kind = ErrorClass.CAPACITY if full else _TABLE.of_answer(code, status)
    if kind in (ErrorClass.CAPACITY, ErrorClass.CONFIG) and any(word in text for word in _PLACEMENT):
        return ErrorClass.PLACEMENT
    return kind


def failure_of(error: Exception, nodes: Sequence[str] = ()) -> Failure:
    """Return an exception of the client as a failure, with Compute Engine's own message on one line."""
    answer = _error_of_answer(error)
    message = str(answer.get("message") or error)
    status = _status(error)
    kind = classify(code_of(error), status, message) if answer or status is not None else _of_client(error)
    return Failure(tuple(nodes), kind, code_of(error), one_line(message))


def code_of(error: Exception) -> str:
    """Return Compute Engine's reason, or the name of the client's class if it gave none."""
    return str(_error_of_answer(error).get("reason") or type(error).__name__)


def operation_failure(operation: Any, nodes: Sequence[str] = ()) -> Failure | None:
    """Return why an operation failed; `None` if it has not failed.

    Of several errors it returns the first one with a specific cause.
    """
    errors = list(operation.error.errors)
    if not errors:
        if not operation.http_error_status_code:
            return None
        code, message = operation.http_error_message or "error", operation.http_error_message
    else:
        # The error of the whole call is less specific than its cause.
        first = next((error for error in errors if error.code != "VM_MIN_COUNT_NOT_REACHED"), errors[0])
        code, message = first.code, first.message or first.code
    kind = classify(code, operation.http_error_status_code or None, message)
    return Failure(tuple(nodes), kind, code, one_line(message))


def error_of(error: Exception) -> GceError:
    """Return an exception of the client as a `GceError`, for calls whose result cannot carry a failure."""
    failure = failure_of(error)
    return GceError(failure.code, failure.sentence())


def _of_client(error: Exception) -> ErrorClass:
    """Return the class of an exception that carries no answer of Compute Engine.

    google-auth raises its RefreshError also from a metadata server that is only slow, which its cause tells.
    """
    cause = error.__cause__
    unanswered = type(cause).__name__ == "TransportError" and not _REFUSED.search(str(cause))
    return ErrorClass.UNAVAILABLE if unanswered else _TABLE.of_client(error)


def _error_of_answer(error: Exception) -> Mapping[str, Any]:
    errors = getattr(error, "errors", None)
    first = errors[0] if isinstance(errors, (list, tuple)) and errors else None
    return first if isinstance(first, Mapping) else {}


def _status(error: Exception) -> int | None:
    code = getattr(error, "code", None)
    return int(code) if isinstance(code, int) else None
