"""Classifies every error of Compute Engine and of its client.

An error comes in the HTTP answer (`reason`, camel case) or later in an operation (`code`, capitals); one
table has both.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.elastic.drivers.failures import ErrorTable, one_line
from node.elastic.drivers.gce.client import CallError, Resource, TokenError
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
_TABLE = ErrorTable(_CODES, {})
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
    """Return an error of a call as a failure, with Compute Engine's own message on one line."""
    return Failure(tuple(nodes), _kind(error), code_of(error), one_line(str(error)))


def code_of(error: Exception) -> str:
    """Return Compute Engine's reason, or what it is that came in place of one."""
    return error.code if isinstance(error, CallError) else type(error).__name__


def _kind(error: Exception) -> ErrorClass:
    if isinstance(error, TokenError):
        # A metadata server that only is slow is no missing right.
        refused = error.status is not None and error.status // 100 == 4 and error.status != 429
        return ErrorClass.PERMISSION if refused else ErrorClass.UNAVAILABLE
    if isinstance(error, CallError):
        return classify(error.code, error.status, str(error))
    return _TABLE.of_client(error)


def operation_failure(operation: Resource, nodes: Sequence[str] = ()) -> Failure | None:
    """Return why an operation failed; `None` if it has not failed.

    Of several errors it returns the first one with a specific cause.
    """
    errors = operation.get("error", {}).get("errors", ())
    status = operation.get("httpErrorStatusCode") or None
    if not errors:
        if status is None:
            return None
        message = operation.get("httpErrorMessage", "")
        code = message or "error"
    else:
        # The error of the whole call is less specific than its cause.
        specific = (error for error in errors if error.get("code") != "VM_MIN_COUNT_NOT_REACHED")
        first = next(specific, errors[0])
        code = first.get("code", "")
        message = first.get("message") or code
    return Failure(tuple(nodes), classify(code, status, message), code, one_line(message))


def error_of(error: Exception) -> GceError:
    """Return an error of a call as a `GceError`, for calls whose result cannot carry a failure."""
    failure = failure_of(error)
    return GceError(failure.code, failure.sentence())
