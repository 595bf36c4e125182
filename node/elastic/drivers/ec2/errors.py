"""Classifies every error of EC2 and of its client.

Errors are recognised by EC2's codes and by names of the client's classes, so this module does not import the
client. It reads botocore's errors as well, which operators' commands have. The codes are from "Error codes
for the Amazon EC2 API", and from what ParallelCluster handles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from node.elastic.drivers.failures import ErrorTable, one_line
from node.elastic.failures import ErrorClass, Failure
from node.system import rpc

_CODES = {
    ErrorClass.CAPACITY: """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientReservedInstanceCapacity
        InsufficientCapacity InsufficientCapacityOnHost UnfulfillableCapacity SpotMaxPriceTooLow Unsupported
        InsufficientFreeAddressesInSubnet ReservationCapacityExceeded""",
    ErrorClass.QUOTA: """
        VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded VolumeLimitExceeded
        MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded ResourceLimitExceeded PendingVerification""",
    # The placement group is in use in another zone, where its present nodes are.
    ErrorClass.PLACEMENT: "InvalidPlacementGroup.InUse",
    ErrorClass.THROTTLED: """
        RequestLimitExceeded Throttling ThrottlingException RequestThrottled RequestThrottledException
        EC2ThrottledException TooManyRequestsException BandwidthLimitExceeded SlowDown""",
    ErrorClass.UNAVAILABLE: """
        Unavailable ServiceUnavailable InternalError InternalFailure RequestTimeout
        RequestTimeoutException""",
    ErrorClass.PERMISSION: """
        UnauthorizedOperation AuthFailure AccessDenied AccessDeniedException Blocked OptInRequired
        InvalidClientTokenId UnrecognizedClientException MissingAuthenticationToken SignatureDoesNotMatch
        IncompleteSignature ExpiredToken ExpiredTokenException RequestExpired""",
    ErrorClass.CONFIG: """
        InvalidParameterValue InvalidParameterCombination MissingParameter IdempotentParameterMismatch
        UnsupportedOperation ValidationError""",
}
# Errors of the client itself: no answer came, or the request was never sent. A controller's credentials come
# from its metadata server, so having none means that it did not answer in time. PERMISSION would stop all
# launches for minutes.
_CLIENT = {
    ErrorClass.UNAVAILABLE: "NoAnswerError",
    ErrorClass.PERMISSION: "PartialCredentialsError",
}
_TABLE = ErrorTable(_CODES, _CLIENT)
_ID = re.compile(r"\bi-[0-9a-zA-Z]+\b")
_ENCODED = re.compile(r"\.?\s*Encoded authorization failure message:.*", re.DOTALL)


class Ec2Error(rpc.RpcError):
    """EC2 refuses a listing or a termination, or does not answer it."""


def code_of(error: Exception) -> str:
    """Return EC2's code, or the name of the client's class if EC2 gave none."""
    return _error_of_answer(error).get("Code") or type(error).__name__


def classify(code: str, status: int | None, message: str = "") -> ErrorClass:
    """Return the class of an error of EC2.

    Args:
        code: EC2's error code.
        status: The answer's HTTP status; `None` means that the code was part of a successful answer.
        message: EC2's message: a full pool and a full placement group have the same code.
    """
    code = code.rpartition(".")[2] if code.startswith(("Server.", "Client.")) else code
    kind = _TABLE.of_answer(code, status)
    if kind is ErrorClass.CAPACITY and "placement group" in message.lower():
        return ErrorClass.PLACEMENT
    return kind


def failure_of(error: Exception, nodes: Sequence[str] = ()) -> Failure:
    """Return an exception of the client as a failure, with EC2's own message on one line."""
    answer = _error_of_answer(error)
    message = str(answer.get("Message") or error)
    kind = classify(code_of(error), _status(error), message) if answer else _TABLE.of_client(error)
    return Failure(tuple(nodes), kind, code_of(error), words(message))


def error_of(error: Exception) -> Ec2Error:
    """Return an exception of the client as an `Ec2Error`, for calls whose result cannot carry a failure."""
    failure = failure_of(error)
    return Ec2Error(failure.code, failure.sentence())


def not_found(error: Exception) -> set[str]:
    """Return the instances that a call named and that EC2 does not know; empty for any other error."""
    if code_of(error) not in ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
        return set()
    return set(_ID.findall(str(_error_of_answer(error).get("Message"))))


def protected(error: Exception) -> set[str]:
    """Return the instances that a call named and that are protected from termination.

    The answer is empty for any other error.
    """
    if code_of(error) != "OperationNotPermitted":
        return set()
    return set(_ID.findall(str(_error_of_answer(error).get("Message"))))


def words(message: str) -> str:
    """Put a message on one line, without the text that only `sts decode-authorization-message` can read."""
    return one_line(_ENCODED.sub("", message))


def _error_of_answer(error: Exception) -> dict[str, str]:
    response = getattr(error, "response", None)
    return response.get("Error", {}) if isinstance(response, dict) else {}


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    answer = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = answer.get("HTTPStatusCode")
    return status if isinstance(status, int) else None
