"""Every error of EC2 and of its client has a class and keeps the cloud's message."""

from __future__ import annotations

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from node.elastic.drivers import failures
from node.elastic.drivers.ec2 import errors as ec2_errors
from node.elastic.failures import ErrorClass as Kind


def refused(code: str, message: str = "the cloud's own words", status: int = 400) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "RunInstances")


CODES = {
    Kind.CAPACITY: [
        "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "Unsupported",
        "InsufficientFreeAddressesInSubnet",
    ],
    Kind.QUOTA: [
        "VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded",
        "SomeNewLimitExceeded",
    ],
    Kind.THROTTLED: [
        "RequestLimitExceeded", "ThrottlingException", "EC2ThrottledException", "SlowDown",
    ],
    Kind.UNAVAILABLE: ["Unavailable", "ServiceUnavailable", "InternalError", "RequestTimeout"],
    Kind.PERMISSION: [
        "UnauthorizedOperation", "AuthFailure", "ExpiredToken", "RequestExpired", "InvalidClientTokenId",
        "AccessDenied",
    ],
    Kind.CONFIG: [
        "InvalidParameterValue", "InvalidAMIID.NotFound", "InvalidLaunchTemplateId.NotFound",
        "IdempotentParameterMismatch", "InvalidSubnetID.NotFound", "UnsupportedOperation",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "code"), [(kind, code) for kind, codes in CODES.items() for code in codes])
@pytest.mark.parametrize("prefix", ["", "Server.", "Client."])
def test_codes(kind: Kind, code: str, prefix: str) -> None:
    failure = ec2_errors.failure_of(refused(prefix + code), ("a", "b"))
    assert (failure.nodes, failure.kind, failure.code) == (("a", "b"), kind, prefix + code)
    assert failure.message == "the cloud's own words"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Kind.CONFIG), (403, Kind.PERMISSION), (401, Kind.PERMISSION), (429, Kind.THROTTLED),
     (500, Kind.UNAVAILABLE), (503, Kind.UNAVAILABLE)],
)  # fmt: skip
def test_a_new_code_is_classed_by_its_status(status: int, kind: Kind) -> None:
    failure = ec2_errors.failure_of(refused("Novel", status=status))
    assert (failure.kind, failure.code) == (kind, "Novel")
    assert "(Novel)" in failure.sentence()


def test_a_full_placement_group_is_told_from_a_full_zone() -> None:
    words = "We currently do not have sufficient capacity to launch them into Placement Group 'g'"
    assert ec2_errors.failure_of(refused("InsufficientInstanceCapacity", words)).kind is Kind.PLACEMENT
    assert ec2_errors.failure_of(refused("VcpuLimitExceeded", words)).kind is Kind.QUOTA
    words = "The placement group 'g' is in use in another availability zone: eu-west-1b"
    assert ec2_errors.failure_of(refused("InvalidPlacementGroup.InUse", words)).kind is Kind.PLACEMENT
    assert ec2_errors.failure_of(refused("InvalidPlacementGroup.Unknown", words)).kind is Kind.CONFIG


CLIENT = {
    Kind.UNAVAILABLE: [
        exceptions.EndpointConnectionError(endpoint_url="http://x"),
        exceptions.ReadTimeoutError(endpoint_url="http://x"),
        exceptions.ConnectTimeoutError(endpoint_url="http://x"),
        exceptions.ConnectionClosedError(endpoint_url="http://x"),
        exceptions.SSLError(endpoint_url="http://x", error="e"),
        exceptions.ProxyConnectionError(proxy_url="http://x"),
        ResponseParserError("a page of a load balancer's"),
        # The metadata server was slow.
        exceptions.NoCredentialsError(),
        exceptions.CredentialRetrievalError(provider="p", error_msg="e"),
    ],
    Kind.PERMISSION: [exceptions.PartialCredentialsError(provider="p", cred_var="v")],
    Kind.CONFIG: [exceptions.ParamValidationError(report="r"), exceptions.NoRegionError()],
}


@pytest.mark.parametrize(
    ("kind", "error"), [(kind, error) for kind, found in CLIENT.items() for error in found]
)
def test_the_clients_own_errors(kind: Kind, error: Exception) -> None:
    failure = ec2_errors.failure_of(error)
    assert (failure.kind, failure.code) == (kind, type(error).__name__)
    assert failure.message == " ".join(str(error).split())


def test_the_names_of_the_clients_errors_are_the_clients() -> None:
    known = {*dir(exceptions), ResponseParserError.__name__}
    assert set(ec2_errors._TABLE._client) - known == set()


def test_words_fit_a_reason() -> None:
    blob = "You are not authorized.\n User: x. Encoded authorization failure message: " + "Ab9_" * 200
    assert ec2_errors.failure_of(refused("UnauthorizedOperation", blob)).message == (
        "You are not authorized. User: x"
    )
    assert len(ec2_errors.failure_of(refused("Novel", "word " * 500)).message) <= failures.MESSAGE_LENGTH


def test_unknown_instances_are_named() -> None:
    words = "The instance IDs 'i-0a1, i-0b2' do not exist"
    assert ec2_errors.not_found(refused("InvalidInstanceID.NotFound", words)) == {"i-0a1", "i-0b2"}
    assert ec2_errors.not_found(refused("UnauthorizedOperation", words)) == set()


def test_an_error_that_ends_a_call_says_what_to_do() -> None:
    error = ec2_errors.error_of(refused("UnauthorizedOperation", "You are not authorized"))
    assert str(error) == (
        "permission: You are not authorized (UnauthorizedOperation); see the controller's role"
    )
    assert error.code == "UnauthorizedOperation"
