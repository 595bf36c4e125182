"""Every error of EC2 and of its client has a class and keeps the cloud's message."""

from __future__ import annotations

import pytest
from botocore import exceptions, parsers

from node.elastic.drivers import failures
from node.elastic.drivers.ec2 import client as ec2_client
from node.elastic.drivers.ec2 import errors as ec2_errors
from node.elastic.drivers.ec2.client import CallError, RefusedError
from node.elastic.failures import ErrorClass as Kind


def refused(code: str, message: str = "the cloud's own words", status: int = 400) -> RefusedError:
    return RefusedError(code, message, status)


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


CLIENT: dict[Kind, list[type[CallError]]] = {
    Kind.UNAVAILABLE: [
        ec2_client.EndpointConnectionError,
        ec2_client.ConnectTimeoutError,
        ec2_client.ProxyConnectionError,
        ec2_client.SSLError,
        ec2_client.ReadTimeoutError,
        ec2_client.ConnectionClosedError,
        ec2_client.ResponseParserError,
        # The metadata server was slow.
        ec2_client.NoCredentialsError,
    ],
    Kind.PERMISSION: [ec2_client.PartialCredentialsError],
}


@pytest.mark.parametrize(
    ("kind", "error"), [(kind, error) for kind, found in CLIENT.items() for error in found]
)
def test_the_clients_own_errors(kind: Kind, error: type[CallError]) -> None:
    failure = ec2_errors.failure_of(error("no\nanswer"))
    assert (failure.kind, failure.code, failure.message) == (kind, error.__name__, "no answer")


def test_each_of_the_clients_errors_is_classed_and_has_a_name_of_botocores() -> None:
    def kinds(error: type[Exception]) -> set[type[Exception]]:
        below = set(error.__subclasses__())
        return below.union(*map(kinds, below)) if below else {error}

    all_of_them = kinds(ec2_client.CallError) - {ec2_client.NoAnswerError, RefusedError}
    assert all_of_them == {error for found in CLIENT.values() for error in found}
    known = {*dir(exceptions), parsers.ResponseParserError.__name__}
    assert {error.__name__ for error in all_of_them} - known == set()


def test_errors_of_botocore_are_read_alike() -> None:
    """The operators' commands have them."""
    message = "The instance IDs 'i-0a1, i-0b2' do not exist"
    for code in ("InvalidInstanceID.NotFound", "OperationNotPermitted"):
        ours = refused(code, message)
        theirs = exceptions.ClientError(ours.response, "TerminateInstances")
        for read in (ec2_errors.code_of, ec2_errors.not_found, ec2_errors.protected, ec2_errors.failure_of):
            assert read(theirs) == read(ours)


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
