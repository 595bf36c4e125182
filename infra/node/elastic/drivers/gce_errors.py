"""Every error of Compute Engine and of its client, classified once.

An error comes in the HTTP answer (`reason`, camel case) or, later, in an operation (`code`, capitals): one
table has both. Known by the error's own words and its class's name, so that this module needs no client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.node import rpc
from infra.node.elastic.errors import ErrorClass, Failure

WORDS = 400
"""Characters of the cloud's words that a reason carries."""
EXISTS = ("RESOURCE_ALREADY_EXISTS", "alreadyExists")
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
        CONCURRENT_OPERATIONS_QUOTA_EXCEEDED concurrentOperationsQuotaExceeded backendError internalError
        INTERNAL_ERROR SERVICE_UNAVAILABLE serviceUnavailable TIMEOUT RESOURCE_NOT_READY resourceNotReady
        RESOURCE_IN_USE_BY_ANOTHER_RESOURCE resourceInUseByAnotherResource operationInProgress""",
    ErrorClass.PERMISSION: """
        forbidden insufficientPermissions accessNotConfigured authError accountDisabled billingNotEnabled
        PERMISSIONS_ERROR PERMISSION_DENIED IAM_PERMISSION_DENIED SERVICE_ACCOUNT_ACCESS_DENIED
        PROJECT_CONSTRAINT_VIOLATED conditionNotMet CONDITION_NOT_MET""",
    ErrorClass.CONFIG: """
        badRequest invalid invalidParameter parseError notFound RESOURCE_NOT_FOUND alreadyExists
        RESOURCE_ALREADY_EXISTS INVALID_ARGUMENT INVALID_USAGE INVALID_FIELD_VALUE CPU_PLATFORM_MISMATCH""",
}
# The client's own: no answer came, or the call never left.
_CLIENT = {
    ErrorClass.PERMISSION: "DefaultCredentialsError RefreshError",
    ErrorClass.THROTTLED: "RequestException TransportError RetryError ParseError",
}
_KIND = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_CLIENT_KIND = {name: kind for kind, names in _CLIENT.items() for name in names.split()}
_STOCKOUT = "does not have enough resources available"
_PLACEMENT = ("placement polic", "resource polic", "collocat", "placement group")


class GceError(rpc.RpcError):
    """Compute Engine does not answer, or refuses: what a listing and a termination raise."""


def classify(code: str, status: int | None, message: str = "") -> ErrorClass:
    """The class of an error of Compute Engine's.

    Args:
        code: an answer's `reason`, or an operation's error code.
        status: the HTTP status; None: unknown.
        message: the cloud's words: a full zone and machines that cannot lie together may have one code.
    """
    said = message.lower()
    kind = _KIND.get(code)
    if kind is None and _STOCKOUT in said:
        kind = ErrorClass.CAPACITY
    if kind is None and code.lower().replace("_", "").endswith(("quotaexceeded", "limitexceeded")):
        kind = ErrorClass.QUOTA
    if kind is None and (status is None or status == 429 or status >= 500):
        kind = ErrorClass.THROTTLED
    if kind is None:
        kind = ErrorClass.PERMISSION if status in (401, 403) else ErrorClass.CONFIG
    if kind in (ErrorClass.CAPACITY, ErrorClass.CONFIG) and any(word in said for word in _PLACEMENT):
        return ErrorClass.PLACEMENT
    return kind


def failure_of(error: Exception, nodes: Sequence[str] = ()) -> Failure:
    """An exception of the client as a failure, with Compute Engine's own words on one line."""
    said = _said(error)
    message = str(said.get("message") or error)
    status = _status(error)
    if said or status is not None:
        kind = classify(code_of(error), status, message)
    else:
        names = (base.__name__ for base in type(error).__mro__)
        kind = next((_CLIENT_KIND[name] for name in names if name in _CLIENT_KIND), ErrorClass.CONFIG)
    return Failure(tuple(nodes), kind, code_of(error), words(message))


def code_of(error: Exception) -> str:
    """Compute Engine's reason, or the client's class where it has said none."""
    return str(_said(error).get("reason") or type(error).__name__)


def operation_failure(operation: Any, nodes: Sequence[str] = ()) -> Failure | None:
    """Why an operation failed; None: it has not. Of several errors the first that says something."""
    errors = list(operation.error.errors)
    if not errors:
        if not operation.http_error_status_code:
            return None
        code, message = operation.http_error_message or "error", operation.http_error_message
    else:
        # An error about the whole call says less than the one that it comes from.
        first = next((one for one in errors if one.code != "VM_MIN_COUNT_NOT_REACHED"), errors[0])
        code, message = first.code, first.message or first.code
    kind = classify(code, operation.http_error_status_code or None, message)
    return Failure(tuple(nodes), kind, code, words(message))


def error_of(error: Exception) -> GceError:
    """The same for calls that have no result to carry a failure in."""
    failure = failure_of(error)
    return GceError(failure.code, failure.sentence())


def words(message: str) -> str:
    """On one line, and not endless."""
    return " ".join(message.split())[:WORDS]


def _said(error: Exception) -> Mapping[str, Any]:
    errors = getattr(error, "errors", None)
    found = errors[0] if isinstance(errors, (list, tuple)) and errors else None
    return found if isinstance(found, Mapping) else {}


def _status(error: Exception) -> int | None:
    code = getattr(error, "code", None)
    return int(code) if isinstance(code, int) else None
