"""Credentials of Google Cloud as Pulumi's provider takes them.

The provider reads more than Application Default Credentials: its own settings, and variables of its own. Its
order is a token, a key, Application Default Credentials. An account is impersonated with any of these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.errors import EXIT_REFUSED, UserError

TOKEN = "GOOGLE_OAUTH_ACCESS_TOKEN"
KEYS = ("GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON", "GCLOUD_KEYFILE_JSON")
"""The variables that hold a key or its file, in the provider's order."""
DEFAULT = "GOOGLE_APPLICATION_CREDENTIALS"
IMPERSONATED = "GOOGLE_IMPERSONATE_SERVICE_ACCOUNT"
BILLED = "GOOGLE_BILLING_PROJECT"
OVERRIDE = "USER_PROJECT_OVERRIDE"
UNIVERSE = "GOOGLE_UNIVERSE_DOMAIN"
GOOGLES = "googleapis.com"


def credentials(settings: Mapping[str, Any], scopes: Sequence[str]) -> Any:
    """Return the credentials that the engine's provider takes.

    Args:
        settings: The provider's settings (`infra.config.provider_settings`).

    Raises:
        GoogleAuthError: There are none, or they cannot be used.
    """
    source = _source(scopes)
    target = _impersonated(settings)
    if target is None:
        return source
    from google.auth import impersonated_credentials

    return impersonated_credentials.Credentials(  # type: ignore[no-untyped-call]
        source_credentials=source,
        target_principal=target,
        target_scopes=list(scopes),
        delegates=settings.get("impersonateServiceAccountDelegates"),
    )


def is_named(settings: Mapping[str, Any]) -> bool:
    """Whether a setting or a variable names credentials that only Pulumi's provider and this program read."""
    return _impersonated(settings) is not None or _variable(TOKEN, *KEYS) is not None


def variable() -> str | None:
    """Return the variable that names the credentials; `None` if none does."""
    return _variable(TOKEN, *KEYS, DEFAULT)


def described(settings: Mapping[str, Any]) -> str | None:
    """Return whose credentials are taken, as far as a setting or a variable says so."""
    name = variable()
    source = os.environ[DEFAULT] if name == DEFAULT else name
    target = _impersonated(settings)
    return " and ".join(filter(None, (source, target))) or None


def billed(settings: Mapping[str, Any]) -> str | None:
    """Return the project that calls are charged to, if that is another than the cluster's."""
    override = settings.get("userProjectOverride", os.environ.get(OVERRIDE, "").lower() in ("1", "true"))
    project = settings.get("billingProject") or os.environ.get(BILLED)
    return str(project) if override and project else None


def refuse_addresses() -> None:
    """Refuse variables that send the engine's provider to other addresses than Google's.

    Raises:
        UserError: Exit 3; the message names them.
    """
    variables = [
        name for name in os.environ if name.startswith("GOOGLE_") and name.endswith("_CUSTOM_ENDPOINT")
    ]
    if os.environ.get(UNIVERSE, GOOGLES) not in ("", GOOGLES):
        variables.append(UNIVERSE)
    if variables := sorted(name for name in variables if os.environ[name]):
        raise UserError(
            f"{', '.join(variables)} in the environment sends Pulumi's provider to another address, which "
            "machines and ./cluster do not ask: unset it",
            EXIT_REFUSED,
            code="gcp.other-address",
        )


def _source(scopes: Sequence[str]) -> Any:
    """Return the credentials without impersonation."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError
    from google.oauth2.credentials import Credentials

    if _variable(TOKEN) is not None:
        return Credentials(_content(os.environ[TOKEN]))  # type: ignore[no-untyped-call]
    if (name := _variable(*KEYS)) is not None:
        try:
            info = json.loads(_content(os.environ[name]))
        except ValueError:
            raise DefaultCredentialsError("it is neither JSON nor a file with it") from None  # type: ignore[no-untyped-call]
        loaded, _ = google.auth.load_credentials_from_dict(info, scopes=scopes)  # type: ignore[no-untyped-call]
        return loaded
    return google.auth.default(scopes=scopes)[0]


def _impersonated(settings: Mapping[str, Any]) -> str | None:
    return settings.get("impersonateServiceAccount") or os.environ.get(IMPERSONATED) or None


def _variable(*names: str) -> str | None:
    return next((name for name in names if os.environ.get(name)), None)


def _content(text: str) -> str:
    """Return a text, or the content of the file that it names."""
    try:
        file = Path(text).expanduser()
        return file.read_text(encoding="utf-8").strip() if file.is_file() else text
    except (OSError, ValueError):  # too long for a path
        return text
