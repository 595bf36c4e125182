"""boto3 as Pulumi's AWS provider is configured: the profile, the roles that are assumed, and AWS's addresses.

The provider's chain is that of aws-sdk-go-base: the profile's or the environment's credentials, or those of
a web identity, and then each of `assumeRoles` with the credentials of the one before it. botocore has all of
its parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infra.config import provider_settings
from infra.config.provider_settings import ENDPOINTS
from infra.errors import EXIT_REFUSED, UserError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
ROLE_PROVIDER = "assume-role"
SESSION_NAME = "slurm-stacks"
ADDRESSES = tuple(
    f"{prefix}AWS_{service}_ENDPOINT"
    for service in ("DYNAMODB", "IAM", "S3", "STS")
    for prefix in ("TF_", "")
)
"""The variables of addresses that the engine's provider reads and botocore does not."""


def refuse_addresses() -> None:
    """Refuse variables that send the engine's provider, and not our own calls, to other addresses.

    Raises:
        UserError: Exit 3; the message names them.
    """
    if given := [name for name in ADDRESSES if os.environ.get(name)]:
        raise UserError(
            f"{', '.join(given)} in the environment sends Pulumi's provider to another address, which "
            "./cluster does not ask: unset it, and write the address into aws:endpoints of the stack file or "
            "into AWS_ENDPOINT_URL_… (such as AWS_ENDPOINT_URL_S3), which both read",
            EXIT_REFUSED,
            code="aws.other-address",
        )


def session(settings: Mapping[str, Any], region: str | None = None) -> Any:
    """Return a session of botocore that has the credentials of the engine's provider.

    Args:
        settings: The provider's settings (`infra.config.provider_settings`).
        region: The stack's, in which roles are assumed, as by the engine; `None` means the environment's.

    Raises:
        BotoCoreError: There is no such profile.
    """
    import botocore.session
    from botocore.credentials import CredentialResolver

    made = botocore.session.Session(profile=settings.get("profile"))
    for key, variable in (
        ("sharedConfigFiles", "config_file"),
        ("sharedCredentialsFiles", "credentials_file"),
    ):
        if settings.get(key):
            made.set_config_variable(variable, str(Path(settings[key][0]).expanduser()))
    if region is not None:
        made.set_config_variable("region", region)
    if "profile" in settings:
        made.get_scoped_config()  # raises if there is no such profile
    resolver = made.get_component("credential_provider")
    if settings.get("skipMetadataApiCheck"):
        resolver.remove("iam-role")
    source: Callable[[], Any] = resolver.load_credentials
    if "assumeRoleWithWebIdentity" in settings:
        source = _constant(_of_web_identity(made, settings))
    for role in settings.get("assumeRoles", []):
        source = _constant(_of_role(made, settings, role, source))
    if settings.keys() & {"assumeRoles", "assumeRoleWithWebIdentity"}:
        made.register_component("credential_provider", CredentialResolver([_Provider(source)]))
    return made


def client(
    boto_session: Any, settings: Mapping[str, Any], region: str, limits: Mapping[str, Any], service: str
) -> Any:
    """Return a client that asks at the addresses of the engine's provider."""
    return boto_session.client(
        service, region_name=_region(settings, region, service), **_options(settings, service, limits)
    )


def variables(boto_session: Any, text: str) -> dict[str, str]:
    """Return the environment variables that make other programs of AWS act as the session does."""
    settings = provider_settings.settings(text)
    keys = boto_session.get_credentials().get_frozen_credentials()
    environment = {
        "AWS_ACCESS_KEY_ID": keys.access_key,
        "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        "AWS_SESSION_TOKEN": keys.token or "",
        # With a profile the AWS CLI would not look at the keys.
        "AWS_PROFILE": "",
        "AWS_DEFAULT_PROFILE": "",
    }
    if "customCaBundle" in settings:
        environment["AWS_CA_BUNDLE"] = str(Path(settings["customCaBundle"]).expanduser())
    for key, variable in (
        ("useFipsEndpoint", "AWS_USE_FIPS_ENDPOINT"),
        ("useDualstackEndpoint", "AWS_USE_DUALSTACK_ENDPOINT"),
    ):
        if key in settings:
            environment[variable] = str(settings[key]).lower()
    if (address := _endpoint(settings, "ssm")) is not None:
        environment["AWS_ENDPOINT_URL_SSM"] = address
    return environment


def _options(settings: Mapping[str, Any], service: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client, without its region."""
    from botocore.config import Config

    more: dict[str, Any] = {}
    if "useFipsEndpoint" in settings:
        more["use_fips_endpoint"] = settings["useFipsEndpoint"]
    if "useDualstackEndpoint" in settings:
        more["use_dualstack_endpoint"] = settings["useDualstackEndpoint"]
    if settings.get("s3UsePathStyle"):
        more["s3"] = {"addressing_style": "path"}
    options: dict[str, Any] = {"config": Config(**limits, **more)}
    if (address := _endpoint(settings, service)) is not None:
        options["endpoint_url"] = address
    if "customCaBundle" in settings:
        options["verify"] = str(Path(settings["customCaBundle"]).expanduser())
    return options


def _endpoint(settings: Mapping[str, Any], service: str) -> str | None:
    named = settings.get("endpoints", {})
    return next((address for key, address in named.items() if ENDPOINTS.get(key) == service), None)


def _region(settings: Mapping[str, Any], region: str | None, service: str) -> str | None:
    return settings.get("stsRegion", region) if service == "sts" else region


def _sts_clients(made: Any, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what botocore's fetchers of credentials make their client of STS with."""

    def create(service: str, **arguments: Any) -> Any:
        options = _options(settings, service, {})
        if (config := arguments.pop("config", None)) is not None:
            options["config"] = config.merge(options["config"])
        region = arguments.pop("region_name", None) or made.get_config_variable("region") or "us-east-1"
        return made.create_client(
            service, region_name=_region(settings, region, service), **options, **arguments
        )

    return create


def _of_role(
    made: Any, settings: Mapping[str, Any], role: Mapping[str, Any], source: Callable[[], Any]
) -> Any:
    """Return the credentials of a role, which are fetched, and fetched again, when they are needed."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    base = source()
    if base is None:
        return None
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=_sts_clients(made, settings),
        source_credentials=base,
        role_arn=role["roleArn"],
        extra_args=_arguments(role),
    )
    return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=ROLE_PROVIDER)


def _of_web_identity(made: Any, settings: Mapping[str, Any]) -> Any:
    from botocore.credentials import (
        AssumeRoleWithWebIdentityCredentialFetcher,
        DeferredRefreshableCredentials,
    )

    role = settings["assumeRoleWithWebIdentity"]
    file = Path(role["webIdentityTokenFile"]).expanduser()
    fetcher = AssumeRoleWithWebIdentityCredentialFetcher(
        client_creator=_sts_clients(made, settings),
        web_identity_token_loader=lambda: file.read_text(encoding="utf-8").strip(),
        role_arn=role["roleArn"],
        extra_args=_arguments(role),
    )
    return DeferredRefreshableCredentials(refresh_using=fetcher.fetch_credentials, method=ROLE_PROVIDER)


def _arguments(role: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of STS's call, but for the role's ARN."""
    names = {
        "externalId": "ExternalId",
        "policy": "Policy",
        "sourceIdentity": "SourceIdentity",
        "transitiveTagKeys": "TransitiveTagKeys",
    }
    arguments: dict[str, Any] = {names[key]: value for key, value in role.items() if key in names}
    arguments["RoleSessionName"] = role.get("sessionName", SESSION_NAME)
    if "duration" in role:
        arguments["DurationSeconds"] = seconds(role["duration"])
    if "policyArns" in role:
        arguments["PolicyArns"] = [{"arn": arn} for arn in role["policyArns"]]
    if "tags" in role:
        arguments["Tags"] = [{"Key": key, "Value": value} for key, value in role["tags"].items()]
    return arguments


def seconds(duration: str) -> int:
    """Return the seconds of a duration as Go writes it, such as 1h30m."""
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)", duration)
    return round(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


class _Provider:
    """What botocore asks for credentials."""

    METHOD = ROLE_PROVIDER
    CANONICAL_NAME = None

    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load
