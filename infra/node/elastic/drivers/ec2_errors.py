"""Every error of EC2 and of its client, classified once.

Known by the error's own words and its class's name, so that this module needs no client.
Codes: "Error codes for the Amazon EC2 API", and what ParallelCluster meets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from infra.node import rpc
from infra.node.elastic.errors import ErrorClass, Failure

WORDS = 400
"""Characters of the cloud's words that a reason carries."""

_CODES = {
    ErrorClass.CAPACITY: """
        InsufficientInstanceCapacity InsufficientHostCapacity InsufficientReservedInstanceCapacity
        InsufficientCapacity InsufficientCapacityOnHost UnfulfillableCapacity SpotMaxPriceTooLow Unsupported
        InsufficientFreeAddressesInSubnet ReservationCapacityExceeded""",
    ErrorClass.QUOTA: """
        VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded VolumeLimitExceeded
        MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded ResourceLimitExceeded PendingVerification""",
    # The group is in use in another zone, where its nodes of now are.
    ErrorClass.PLACEMENT: "InvalidPlacementGroup.InUse",
    ErrorClass.THROTTLED: """
        RequestLimitExceeded Unavailable ServiceUnavailable InternalError InternalFailure Throttling
        ThrottlingException RequestThrottled RequestThrottledException EC2ThrottledException
        TooManyRequestsException BandwidthLimitExceeded SlowDown RequestTimeout RequestTimeoutException""",
    ErrorClass.PERMISSION: """
        UnauthorizedOperation AuthFailure AccessDenied AccessDeniedException Blocked OptInRequired
        InvalidClientTokenId UnrecognizedClientException MissingAuthenticationToken SignatureDoesNotMatch
        IncompleteSignature ExpiredToken ExpiredTokenException RequestExpired""",
    ErrorClass.CONFIG: """
        InvalidParameterValue InvalidParameterCombination MissingParameter IdempotentParameterMismatch
        UnsupportedOperation ValidationError""",
}
# The client's own: no answer came, or the call never left.
_CLIENT = {
    ErrorClass.THROTTLED: """
        HTTPClientError ConnectionError EndpointConnectionError ReadTimeoutError ConnectTimeoutError
        ConnectionClosedError ResponseStreamingError ResponseParserError IncompleteReadError""",
    ErrorClass.PERMISSION: """
        NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError
        NoAuthTokenError UnauthorizedSSOTokenError MetadataRetrievalError""",
}
_KIND = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
_CLIENT_KIND = {name: kind for kind, names in _CLIENT.items() for name in names.split()}
_ID = re.compile(r"\bi-[0-9a-zA-Z]+\b")
_ENCODED = re.compile(r"\.?\s*Encoded authorization failure message:.*", re.DOTALL)


class Ec2Error(rpc.RpcError):
    """EC2 does not answer, or refuses: what a listing and a termination raise."""


def code_of(error: Exception) -> str:
    """EC2's code, or the client's class where EC2 has said nothing."""
    return _said(error).get("Code") or type(error).__name__


def classify(code: str, status: int | None, message: str = "") -> ErrorClass:
    """The class of an answer of EC2's.

    Args:
        status: the answer's HTTP status; None: the code came without one (inside of a success).
        message: EC2's words: a full pool and a full placement group have the same code.
    """
    code = code.rpartition(".")[2] if code.startswith(("Server.", "Client.")) else code
    kind = _KIND.get(code)
    if kind is None and code.endswith(("LimitExceeded", "QuotaExceeded", "CountExceeded")):
        kind = ErrorClass.QUOTA
    if kind is None and (status is None or status == 429 or status >= 500):
        kind = ErrorClass.THROTTLED
    if kind is None:
        kind = ErrorClass.PERMISSION if status in (401, 403) else ErrorClass.CONFIG
    if kind is ErrorClass.CAPACITY and "placement group" in message.lower():
        return ErrorClass.PLACEMENT
    return kind


def failure_of(error: Exception, nodes: Sequence[str] = ()) -> Failure:
    """An exception of the client as a failure, with EC2's own words on one line."""
    said = _said(error)
    message = str(said.get("Message") or error)
    if said:
        kind = classify(code_of(error), _status(error), message)
    else:
        names = (base.__name__ for base in type(error).__mro__)
        kind = next((_CLIENT_KIND[name] for name in names if name in _CLIENT_KIND), ErrorClass.CONFIG)
    return Failure(tuple(nodes), kind, code_of(error), words(message))


def error_of(error: Exception) -> Ec2Error:
    """The same for calls that have no result to carry a failure in."""
    failure = failure_of(error)
    return Ec2Error(failure.code, failure.sentence())


def not_found(error: Exception) -> set[str]:
    """The instances that a call named and that EC2 does not know (any more); empty for any other error."""
    if code_of(error) not in ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
        return set()
    return set(_ID.findall(str(_said(error).get("Message"))))


def protected(error: Exception) -> set[str]:
    """The instances that a call named and that are protected from being ended; empty for any other error."""
    if code_of(error) != "OperationNotPermitted":
        return set()
    return set(_ID.findall(str(_said(error).get("Message"))))


def words(message: str) -> str:
    """On one line, and without the blob that only `sts decode-authorization-message` can read."""
    return " ".join(_ENCODED.sub("", message).split())[:WORDS]


def _said(error: Exception) -> dict[str, str]:
    response = getattr(error, "response", None)
    return response.get("Error", {}) if isinstance(response, dict) else {}


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    return found if isinstance(found, int) else None
