"""The engineer's own access to AWS: clients with credentials, and AWS's errors in one sentence.

Only code that acts on a real account uses this module; plans and tests of components never do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from operations import packages
from operations.aws import identity
from operations.clouds import environment

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
INVALID = {"AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch"}
DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}
GET_SOME = (
    "Log in (`aws sso login`, or `aws configure` with an access key), or set AWS_PROFILE to a profile that "
    "has them, and run the command again. `./cluster plan` needs none."
)


def require(provider_settings: str | None = None) -> None:
    """Check that there are a client library and credentials, without asking AWS whether it accepts them.

    Args:
        provider_settings: As in `ClusterRef`.

    Raises:
        UserError: Exit 3; the message says what is missing and how to get it.
    """
    session(provider_settings)


def session(provider_settings: str | None = None, region: str | None = None) -> Any:
    """Return a boto3 session that has credentials.

    Args:
        provider_settings: As in `ClusterRef`.
        region: The cluster's, in which roles are assumed.

    Raises:
        UserError: Exit 3; there is no boto3, or there are no credentials, or the engine may have others.
    """
    settings = environment.known(provider_settings)
    identity.refuse_addresses()
    packages.provide("aws")
    try:
        import boto3
        import botocore.exceptions
    except ModuleNotFoundError:
        raise UserError(
            f"boto3, the client library of AWS, is not in the Python environment {sys.prefix}. Add it "
            "there (pyproject.toml has it in the group aws), then run the command again",
            EXIT_REFUSED,
            code="aws.no-client",
        ) from None
    try:
        boto_session = boto3.Session(botocore_session=identity.session(settings, region))
        credentials = boto_session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        why = f"the credentials for AWS cannot be used: {error}. {GET_SOME}"
        raise UserError(why, EXIT_REFUSED, code="aws.credentials-unusable") from error
    if credentials is None:
        raise UserError(
            f"there are no credentials for AWS here. {GET_SOME}", EXIT_REFUSED, code="aws.no-credentials"
        )
    return boto_session


def client(place: ClusterRef, service: str) -> Any:
    """Return a boto3 client of one service, in the region and the account of a cluster.

    Raises:
        UserError: As for `clients`.
    """
    (service_client,) = clients(place, service)
    return service_client


def clients(place: ClusterRef, *services: str, patient: bool = True) -> list[Any]:
    """Several boto3 clients of one session, which shares what each of them loads.

    They are cached, because making them takes half a second and a wait asks for them every second.

    Args:
        place: The cluster, whose region and provider settings say what is asked, and as whom.
        patient: Whether to wait for an AWS that is slow or busy; the doctor does not.

    Raises:
        UserError: As for `session`; or the account is not one that the settings allow.
    """
    variables = frozenset(os.environ.items())
    return list(_clients(place.region, place.provider_settings, services, variables, patient))


def export(place: ClusterRef) -> None:
    """Give programs that this process becomes, such as the AWS CLI, the credentials of a cluster's account.

    Raises:
        UserError: As for `session`.
    """
    if place.provider_settings is None:
        return
    with explained():
        boto_session = session(place.provider_settings, place.region)
        os.environ.update(identity.variables(boto_session, place.provider_settings))


@functools.lru_cache(maxsize=8)
def _clients(
    region: str,
    provider_settings: str | None,
    services: Sequence[str],
    _environment: frozenset[tuple[str, str]],
    patient: bool,
) -> tuple[Any, ...]:
    """Return the cached clients.

    Args:
        _environment: The environment variables. boto3 takes the credentials and AWS's addresses from them, so
            a changed environment needs new clients.
    """
    settings = environment.known(provider_settings)
    boto_session = session(provider_settings, region)
    limits = {
        "connect_timeout": CONNECT_SECONDS if patient else 4.0,
        "read_timeout": READ_SECONDS if patient else 8.0,
        "retries": {"mode": "standard", "max_attempts": 8 if patient else 2},
    }
    made = functools.partial(identity.client, boto_session, settings, region, limits)
    if settings.keys() & {"allowedAccountIds", "forbiddenAccountIds"}:
        with explained():
            _check_account(made("sts").get_caller_identity()["Account"], settings)
    return tuple(made(service) for service in services)


def _check_account(number: str, settings: Mapping[str, Any]) -> None:
    """Refuse an account that the stack file does not allow, as the engine's provider does.

    Raises:
        UserError: Exit 3; the message names both.
    """
    allowed, forbidden = settings.get("allowedAccountIds"), settings.get("forbiddenAccountIds", [])
    if (allowed is None or number in allowed) and number not in forbidden:
        return
    key = "forbiddenAccountIds" if number in forbidden else "allowedAccountIds"
    raise UserError(
        f"these credentials are of account {number}, and aws:{key} in the stack file is "
        f"{', '.join(settings[key])}: take credentials of the account that is meant",
        EXIT_REFUSED,
        code="aws.other-account",
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn AWS's errors in the body into one message.

    Raises:
        UserError: Exit 3 if the credentials are the cause.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        message = f"{code}: {error.response.get('Error', {}).get('Message', '')}".strip()
        if code in EXPIRED:
            raise UserError(
                f"the credentials for AWS have expired. {GET_SOME}",
                EXIT_REFUSED,
                code="aws.credentials-expired",
            ) from error
        if code in INVALID:
            why = f"AWS does not accept these credentials ({message}). {GET_SOME}"
            raise UserError(why, EXIT_REFUSED, code="aws.credentials-refused") from error
        if code in DENIED:
            raise UserError(
                f"your user or role on AWS may not call {error.operation_name} ({message}): have it allowed, "
                "and run the command again",
                EXIT_REFUSED,
                code="aws.not-allowed",
            ) from error
        raise UserError(f"AWS refused {error.operation_name}: {message}", code="aws.refused") from error
    except BotoCoreError as error:
        raise UserError(f"AWS does not answer: {error}", code="aws.no-answer") from error
