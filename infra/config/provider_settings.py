"""The settings of the clouds' Pulumi providers: as whom, and where, a cloud is asked.

The engine's providers are not the only ones that ask a cloud for a stack: `./cluster` does, and the commands
of its resources do, which end nodes and look for leftovers. They must ask the same account. So each key of a
provider's configuration is one of three: followed by our own calls as well (`FOLLOWED`), of no concern to
them (`HARMLESS`), or refused by name with what to write instead (`REFUSED`).

What is followed goes to our calls as one text, which is JSON (`read`). It is an argument of commands of
resources, and so in Pulumi's state: it holds names, paths and addresses, and never a secret.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.config import stack_file
from infra.config.mistakes import ConfigError, Mistake, near, path_of, shown

ENVIRONMENT = "environment"
"""The key of a text's Pulumi ESC environments, which only the engine can read."""
ENVIRONMENT_VARIABLE = "SLURM_STACKS_ENVIRONMENT"
"""The variable that names the ESC environments whose variables this process has, joined by commas."""
DURATION = r"([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+"
"""A duration as Go writes it: 1h30m."""
ENDPOINTS = {
    "batch": "batch",
    "cloudwatchlog": "logs",
    "cloudwatchlogs": "logs",
    "dynamodb": "dynamodb",
    "ec2": "ec2",
    "ecr": "ecr",
    "efs": "efs",
    "fsx": "fsx",
    "iam": "iam",
    "imagebuilder": "imagebuilder",
    "logs": "logs",
    "s3": "s3",
    "s3api": "s3",
    "secretsmanager": "secretsmanager",
    "servicequotas": "service-quotas",
    "sfn": "stepfunctions",
    "ssm": "ssm",
    "stepfunctions": "stepfunctions",
    "sts": "sts",
}
"""Key of `aws:endpoints` -> the service of boto3, for the services that our own calls use."""

Form = Callable[[Any], Any]
"""Returns a value in its plain form. Raises `ValueError` with what is allowed."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _path(value: Any) -> str:
    # Our calls and the engine's provider run in other folders, and a file there may be somebody else's.
    if not _text(value).startswith(("/", "~/")):
        raise ValueError("an absolute path, or one that begins with ~/")
    return str(value)


def _flag(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(
        isinstance(item, str | int) and not isinstance(item, bool) for item in value
    ):
        raise ValueError("a list of texts")
    return [str(item) for item in value]


def _one_path(value: Any) -> list[str]:
    paths = _texts(value)
    if len(paths) > 1:
        raise ValueError("a list of one path: boto3, which asks AWS here, reads one such file")
    return [_path(path) for path in paths]


def _duration(value: Any) -> str:
    if not re.fullmatch(DURATION, _text(value)):
        raise ValueError("a duration, such as 1h or 30m")
    return str(value)


def _tags(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a section of texts")
    return {str(key): text for key, text in value.items()}


_ROLE: dict[str, Form] = {
    "duration": _duration,
    "externalId": _text,
    "policy": _text,
    "policyArns": _texts,
    "roleArn": _text,
    "sessionName": _text,
    "sourceIdentity": _text,
    "tags": _tags,
    "transitiveTagKeys": _texts,
}
_WEB_IDENTITY: dict[str, Form] = {
    "duration": _duration,
    "policy": _text,
    "policyArns": _texts,
    "roleArn": _text,
    "sessionName": _text,
    "webIdentityTokenFile": _path,
}


def _section(value: Any, forms: Mapping[str, Form], needed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"a section with {', '.join(forms)}")
    section = {}
    for key, item in value.items():
        if key not in forms:
            raise ValueError(f"the keys {', '.join(forms)}, and not {key}")
        if item is not None:
            try:
                section[key] = forms[key](item)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    for key in needed:
        if not section.get(key):
            raise ValueError(f"a section with {key} in it")
    return section


def _roles(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ValueError("a list of roles, which are assumed one after the other: [{roleArn: …}]")
    return [_section(role, _ROLE, ["roleArn"]) for role in value]


def _web_identity(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping) and "webIdentityToken" in value:
        raise ValueError("webIdentityTokenFile, and not webIdentityToken, which is a secret")
    return _section(value, _WEB_IDENTITY, ["roleArn", "webIdentityTokenFile"])


def _endpoints(value: Any) -> dict[str, str]:
    sections = value if isinstance(value, list) else [value]
    if not all(isinstance(section, Mapping) for section in sections):
        raise ValueError("a list of sections: [{s3: https://…}]")
    endpoints = {}
    for section in sections:
        for key, address in section.items():
            if not isinstance(address, str) or not re.fullmatch(r"https?://[^/@\s]+(/[^@\s]*)?", address):
                raise ValueError(f"{key}: an address that begins with https:// and has no password in it")
            endpoints[str(key)] = address
    return endpoints


_REWRITE = "write it so, in clear (no `secure:`), or leave it out"
_HIDDEN = {"assumeRoleWithWebIdentity", "endpoints"}
"""Keys whose wrong values may have a token or a password in them, which no message shows."""
FOLLOWED: dict[str, dict[str, Form]] = {
    "aws": {
        "allowedAccountIds": _texts,
        "assumeRoleWithWebIdentity": _web_identity,
        "assumeRoles": _roles,
        "customCaBundle": _path,
        "endpoints": _endpoints,
        "forbiddenAccountIds": _texts,
        "profile": _text,
        "s3UsePathStyle": _flag,
        "sharedConfigFiles": _one_path,
        "sharedCredentialsFiles": _one_path,
        "skipMetadataApiCheck": _flag,
        "stsRegion": _text,
        "useDualstackEndpoint": _flag,
        "useFipsEndpoint": _flag,
    },
    "gcp": {
        "billingProject": _text,
        "impersonateServiceAccount": _text,
        "impersonateServiceAccountDelegates": _texts,
        "userProjectOverride": _flag,
    },
}
"""Provider -> key of its configuration that our own calls follow -> the form of its value."""

_OF_PLUGIN = frozenset({"version", "pluginDownloadURL"})
HARMLESS: dict[str, frozenset[str]] = {
    "aws": _OF_PLUGIN
    | {
        "defaultTags",  # of the engine's resources; nodes have the stack file's `tags`
        "ignoreTags",
        "maxRetries",
        "region",
        "retryMode",
        "s3UsEast1RegionalEndpoint",  # another address of the same service and account
        "skipCredentialsValidation",
        "skipRegionValidation",
        "skipRequestingAccountId",
        "tagPolicyCompliance",
        "tokenBucketRateLimiterCapacity",
        "userAgents",
    },
    "gcp": _OF_PLUGIN
    | {
        "addPulumiAttributionLabel",
        "batching",
        "defaultLabels",
        "deletionPolicy",
        "disableGlobalProjectWarning",
        "disableGooglePartnerName",
        "googlePartnerName",
        "pollInterval",
        "preferGlobalEndpoints",  # another address of the same service and project
        "preferRegionalEndpoints",
        "project",
        "pulumiAttributionLabelAdditionStrategy",
        "region",
        "requestReason",
        "requestTimeout",
        "scopes",  # the same account, with fewer rights
        "skipRegionValidation",
        "zone",
    },
}
"""Provider -> the keys of its configuration that say neither who asks nor where, or that the design has."""

_AWS_SECRET = (
    "leave it out, and name a profile (aws:profile) that has it, or put it into the environment "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN): the engine reads both as well"
)
_AWS_PROXY = (
    "leave it out, and set HTTPS_PROXY and NO_PROXY in the environment: the engine reads them as well"
)
_AWS_METADATA = (
    "leave it out, and set {variable} in the environment: the engine reads it as well"
)  # fmt: skip
_GCP_SECRET = (
    "leave it out, and name the file in GOOGLE_APPLICATION_CREDENTIALS, or set GOOGLE_CREDENTIALS or "
    "GOOGLE_OAUTH_ACCESS_TOKEN in the environment: the engine reads them as well"
)
_ENDPOINT = "leave it out: machines and ./cluster ask Google Cloud at its own addresses"
REFUSED: dict[str, dict[str, str]] = {
    "aws": {
        "accessKey": _AWS_SECRET,
        "ec2MetadataServiceEndpoint": _AWS_METADATA.format(variable="AWS_EC2_METADATA_SERVICE_ENDPOINT"),
        "ec2MetadataServiceEndpointMode": _AWS_METADATA.format(
            variable="AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"
        ),
        "httpProxy": _AWS_PROXY,
        "httpsProxy": _AWS_PROXY,
        "insecure": "leave it out, and name the authority's certificate in aws:customCaBundle",
        "noProxy": _AWS_PROXY,
        "secretKey": _AWS_SECRET,
        "token": _AWS_SECRET,
    },
    "gcp": {
        "accessToken": _GCP_SECRET,
        "credentials": _GCP_SECRET,
        "externalCredentials": _GCP_SECRET,
        "universeDomain": "leave it out: only googleapis.com is asked",
    },
}
"""Provider -> key of its configuration that our own calls cannot follow -> what to do instead."""

_CUSTOM = "CustomEndpoint"
ENDPOINTS_OF_GOOGLE = frozenset(
    {
        "cloudResourceManager", "compute", "filestore", "iam", "iamBeta", "iamCredentials", "osLogin",
        "resourceManager", "resourceManager3", "resourceManagerV3", "secretManager", "secretManagerRegional",
        "serviceUsage", "serviceUsageV2", "storage", "storageControl",
    }
)  # fmt: skip
"""The services of Google Cloud that resources and our own calls use, as in `computeCustomEndpoint`."""


def read(
    provider: str, values: Mapping[str, Any], secret: frozenset[str], environment: Sequence[str] = ()
) -> tuple[str | None, list[Mistake]]:
    """Return the settings that our own calls follow, as text, and the mistakes in all of the provider's.

    Args:
        provider: aws | gcp | local
        values: Key with namespace -> value, which may be JSON text.
        secret: The keys whose values are secret.
        environment: The ESC environments that may give the engine more settings, and credentials.

    Returns:
        The text; `None` if nothing is set, and the provider is asked as its own programs ask it.
    """
    followed = FOLLOWED.get(provider)
    if followed is None:
        return None, []
    ours: dict[str, Any] = {}
    mistakes = []
    for full, value in values.items():
        namespace, _, key = full.partition(":")
        if namespace != provider or value is None or value == "":
            continue
        if (cure := _cure(provider, key)) is not None:
            allowed = "what ./cluster and the commands of resources can follow"
            mistakes.append(Mistake("provider.refused", full, "(not shown)", allowed, cure))
        elif key in followed:
            try:
                plain = followed[key](_plain(value, full in secret))
            except ValueError as error:
                given = "(not shown)" if full in secret or key in _HIDDEN else shown(value)
                mistakes.append(Mistake("provider.form", full, given, str(error), _REWRITE))
            else:
                ours |= {key: plain} if plain not in ("", [], {}) else {}
        elif not _is_harmless(provider, key):
            mistakes.append(_unknown(provider, full, key))
    if environment:
        ours[ENVIRONMENT] = list(environment)
    return (json.dumps(ours, sort_keys=True, separators=(",", ":")) if ours else None), mistakes


def of_file(path: Path, folder: Path | None = None) -> str | None:
    """Return the settings of a stack file, as text. Other mistakes in the file do not matter here.

    Args:
        folder: The project's folder; `None` if only the file is known.

    Raises:
        ConfigError: The file cannot be read, or a setting of the provider is refused.
    """
    shared, own, environment = stack_file.sources(path, folder)
    provider = stack_file.provider(path, folder) or ""
    values, secret = stack_file.merged(shared, own), stack_file.secrets(shared, own)
    text, mistakes = read(provider, values, secret, environment)
    if mistakes:
        raise ConfigError(path.name, mistakes)
    return text


def settings(text: str | None) -> dict[str, Any]:
    """Return the settings of a text."""
    return dict(json.loads(text)) if text else {}


def same_account(one: str | None, other: str | None) -> bool:
    """Whether two texts differ at most in the ESC environments, which are no setting."""
    without = [{**settings(text), ENVIRONMENT: None} for text in (one, other)]
    return without[0] == without[1]


def shell_options(text: str | None) -> str:
    """Return the options of `aws` or `gcloud` for a command line that people paste, after a space each.

    The AWS CLI has none for roles: a profile can name one.
    """
    given = settings(text)
    options = {"--profile": "profile", "--impersonate-service-account": "impersonateServiceAccount"}
    return "".join(f" {option} {shlex.quote(given[key])}" for option, key in options.items() if key in given)


def plain_endpoints(text: str | None) -> list[str]:
    """Return the endpoints of a text that are asked without encryption, as `s3: http://…`."""
    endpoints = settings(text).get("endpoints", {})
    return [f"{key}: {address}" for key, address in endpoints.items() if address.startswith("http://")]


def _cure(provider: str, key: str) -> str | None:
    """Return what to do instead of a key that is refused; `None` for any other key."""
    if provider == "gcp" and key.endswith(_CUSTOM) and key.removesuffix(_CUSTOM) in ENDPOINTS_OF_GOOGLE:
        return _ENDPOINT
    return REFUSED[provider].get(key)


def _is_harmless(provider: str, key: str) -> bool:
    return key in HARMLESS[provider] or (provider == "gcp" and key.endswith(_CUSTOM))


def _plain(value: Any, secret: bool) -> Any:
    """Return a value without the forms in which Pulumi writes it.

    Raises:
        ValueError: It is a secret.
    """
    if secret or '"secure"' in json.dumps(value, default=str):
        raise ValueError(
            "a value that is no secret: commands of resources have it among their arguments, which Pulumi's "
            "state and previews show"
        )
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _unknown(provider: str, full: str, key: str) -> Mistake:
    known = [*FOLLOWED[provider], *HARMLESS[provider], *REFUSED[provider]]
    meant = near(key, known)
    return Mistake(
        "provider.unknown",
        path_of((full,)),
        "a key that is not known",
        f"keys of Pulumi's provider {provider}, such as {', '.join(sorted(FOLLOWED[provider])[:4])}",
        f"did you mean {provider}:{meant}?" if meant else "remove it",
    )
