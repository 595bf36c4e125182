"""The engineer's own access to Google Cloud: a session with credentials, and errors in one sentence.

Only code that acts on a real project uses this module; plans and tests of components never do. All calls are
REST with JSON: the import of google-cloud-compute takes five seconds, for which every command and every SSH
connection through Identity-Aware Proxy would wait.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_FAILED, EXIT_REFUSED, UserError
from operations import packages
from operations.clouds import environment
from operations.gcp import identity

SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")
SERVICES = {
    "compute": "https://compute.googleapis.com/compute/v1",
    "storage": "https://storage.googleapis.com/storage/v1",
    "oslogin": "https://oslogin.googleapis.com/v1",
    "secretmanager": "https://secretmanager.googleapis.com/v1",
    "file": "https://file.googleapis.com/v1",
    "oauth2": "https://oauth2.googleapis.com",
}
"""The base URL of each service."""
TIMEOUT = (10.0, 60.0)
"""Seconds for the connection, and for each part of an answer."""
TOKEN_VARIABLE = "CLOUDSDK_AUTH_ACCESS_TOKEN"
"""The variable from which gcloud takes a token instead of its own account's."""
PASSING = {429, 500, 502, 503, 504}
RATE = {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"}
TRIES = 6
PRODUCT = Path("/sys/class/dmi/id/product_name")
DISABLED = {"SERVICE_DISABLED", "accessNotConfigured"}
GET_SOME = (
    "Log in with `gcloud auth login --update-adc`, or set GOOGLE_APPLICATION_CREDENTIALS to a service "
    "account's key file, and run the command again. `./cluster plan` needs none."
)


class GoogleError(UserError):
    """Google Cloud refused a call.

    Attributes:
        status: The HTTP status.
        reason: Google's own word, such as `SERVICE_DISABLED` or `notFound`; empty if it gave none.
    """

    def __init__(
        self, message: str, status: int, reason: str, exit_code: int = EXIT_FAILED, *, code: str
    ) -> None:
        super().__init__(message, exit_code, code=code)
        self.status = status
        self.reason = reason


def require(provider_settings: str | None = None) -> None:
    """Check that there are a client library and credentials, without asking Google whether it accepts them.

    Args:
        provider_settings: As in `ClusterRef`.

    Raises:
        UserError: Exit 3; the message says what is missing and how to get it.
    """
    _credentials(None, environment.known(provider_settings))


def of(place: ClusterRef) -> Account:
    """Return the account of a cluster's project, with the credentials that the engine's provider takes.

    Raises:
        UserError: Exit 3; there is no library, there are no credentials, or the engine may have others.
    """
    settings, project = environment.known(place.provider_settings), str(place.project)
    named = identity.is_named(settings)
    return Account(project, _credentials(project, settings), named=named)


@dataclass(slots=True)
class Account:
    """Access to one project.

    Attributes:
        project: The project that has the cluster.
        credentials: Credentials from google.auth.
        services: The base URL of each service.
        named: Whether a setting or a variable names the credentials that `gcloud` does not read.
        region: The cluster's region, the only one in which a zone that does not answer is an error; `None`
            makes it an error everywhere.
    """

    project: str
    credentials: Any
    services: Mapping[str, str] = field(default_factory=lambda: SERVICES)
    region: str | None = None
    named: bool = False
    sleep: Callable[[float], None] = time.sleep
    _threads: threading.local = field(default_factory=threading.local)

    def call(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        **query: str,
    ) -> dict[str, Any]:
        """Make one call, and repeat it after temporary errors.

        Args:
            path: The path below the service's base URL; `{project}` in it stands for the project.

        Raises:
            GoogleError: Google refuses; the message is one sentence.
            UserError: Google does not answer, or the credentials are no longer valid.
        """
        response = self._send(method, service, path, body, query)
        if not response.content:
            return {}
        try:
            content = response.json()
        except ValueError as error:
            raise UserError(
                f"{service} of Google Cloud answered with something that is not JSON: {error}",
                code="gcp.not-json",
            ) from error
        return dict(content)

    def pages(self, service: str, path: str, key: str, **query: str) -> Iterator[dict[str, Any]]:
        """Every item of a list, page by page; for an aggregated list the items of every zone and region.

        Args:
            key: The key of the answer that has the items.

        Raises:
            UserError: As for `call`.
        """
        token = ""
        if "/aggregated/" in path:
            # Without this, one unreachable zone anywhere in the world fails the list.
            query["returnPartialSuccess"] = "true"
        while True:
            more = {"pageToken": token} if token else {}
            answer = self.call("GET", service, path, None, **query, **more)
            items = answer.get(key, [])
            if isinstance(items, Mapping):
                yield from _scopes(items, answer.get("unreachables", []), self.region)
            else:
                yield from items
            token = answer.get("nextPageToken", "")
            if not token:
                return

    def object(self, bucket: str, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            UserError: As for `call`; a GoogleError with status 404 if there is no such object.
        """
        content: bytes = self._send(
            "GET", "storage", f"b/{bucket}/o/{escaped(name)}", None, {"alt": "media"}
        ).content
        return content

    def email(self) -> str:
        """Return the e-mail address of the credentials' account.

        Raises:
            UserError: Exit 3; the credentials do not name an account.
        """
        address = getattr(self.credentials, "service_account_email", None)
        if isinstance(address, str) and "@" in address:
            return address
        self._refreshed()
        answer = self.call("GET", "oauth2", "tokeninfo", access_token=str(self.credentials.token))
        if "email" not in answer:
            raise UserError(
                "the credentials for Google Cloud do not say whose they are, so OS Login cannot be asked for "
                f"your user name. {GET_SOME}",
                EXIT_REFUSED,
                code="gcp.no-account",
            )
        return str(answer["email"])

    def export(self) -> None:
        """Have `gcloud`, which this process becomes, act with these credentials, if it would not by itself.

        Raises:
            UserError: The credentials are no longer valid.
        """
        if self.named:
            self._refreshed()
            os.environ[TOKEN_VARIABLE] = str(self.credentials.token)

    def _refreshed(self) -> None:
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        if self.credentials.valid and self.credentials.token:
            return
        try:
            self.credentials.refresh(Request())
        except GoogleAuthError as error:
            raise _stale(error) from error

    def _session(self) -> Any:
        """Return the session of this thread, because sessions are not thread-safe."""
        from google.auth.transport.requests import AuthorizedSession

        if not hasattr(self._threads, "session"):
            self._threads.session = AuthorizedSession(self.credentials)  # type: ignore[no-untyped-call]
        return self._threads.session

    def _send(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
    ) -> Any:
        import requests
        from google.auth.exceptions import GoogleAuthError, TransportError

        url = f"{self.services[service]}/{path.replace('{project}', self.project)}"
        for left in reversed(range(TRIES)):
            try:
                response = self._session().request(
                    method, url, params=dict(query), json=body, timeout=TIMEOUT, allow_redirects=False
                )
            except (TransportError, requests.RequestException) as error:
                if left:
                    self._pause(left)
                    continue
                raise UserError(f"Google Cloud does not answer: {error}", code="gcp.no-answer") from error
            except GoogleAuthError as error:
                raise _stale(error) from error
            if response.status_code < 300:
                return response
            refused = refusal(response.status_code, response.content, service, self.project)
            if not left or not (refused.status in PASSING or refused.reason in RATE):
                raise refused
            self._pause(left)
        raise AssertionError("the last try returns or raises")

    def _pause(self, left: int) -> None:
        self.sleep(min(30.0, 2.0 ** (TRIES - 1 - left)))


def refusal(status: int, content: bytes, service: str, project: str) -> GoogleError:
    """Return the error for an answer that is no success: what it means, and what to do.

    Args:
        content: The body, which is Google's JSON, or anything that a proxy on the way has put there.
    """
    message, reason, facts = _read(content)
    why = f"{reason}: {message}" if reason else message or f"HTTP status {status}"
    exit_code = EXIT_REFUSED if status in (401, 403) else EXIT_FAILED
    if reason in DISABLED:
        reason, api = "SERVICE_DISABLED", facts.get("service", f"{service}.googleapis.com")
        code = "gcp.api-disabled"
        text = (
            f"the API {api} is not enabled in project {project}: enable it with `gcloud services enable "
            f"{api} --project {project}`, wait a minute, and run the command again"
        )
    elif reason == "BILLING_DISABLED" or (status == 403 and "billing" in message.lower()):
        code = "gcp.no-billing"
        text = f"project {project} has no billing account ({why}): link one in the console under Billing"
    elif reason == "USER_PROJECT_DENIED":
        code = "gcp.no-project-access"
        text = (
            f"there is no project {project}, or your account may not use its APIs ({message}): look at "
            "gcp:project, or have roles/serviceusage.serviceUsageConsumer granted"
        )
    elif status == 401:
        code = "gcp.credentials-refused"
        text = f"Google Cloud does not accept these credentials ({why}). {GET_SOME}"
    elif reason in RATE or status == 429:
        exit_code = EXIT_FAILED
        code = "gcp.too-many-calls"
        text = f"these are too many calls at once for Google Cloud ({why}): try again later"
    elif "quota" in reason.lower():
        code = "gcp.quota"
        text = (
            f"a quota of project {project} is used up ({why}): ask for more in the console under IAM & "
            "Admin, Quotas, or make the cluster smaller"
        )
    elif status == 403:
        code = "gcp.not-allowed"
        text = (
            f"your account may not do that in project {project} ({why}): have it granted, and run the "
            "command again"
        )
    elif status == 404:
        code = "gcp.not-found"
        text = f"Google Cloud does not find what {service} was asked for ({why})"
    else:
        code = "gcp.refused"
        text = f"Google Cloud ({service}) refused: {why}"
    return GoogleError(text, status, reason, exit_code, code=code)


def _scopes(items: Mapping[str, Any], silent: Sequence[str], region: str | None) -> Iterator[dict[str, Any]]:
    """Yield the items of an aggregated list, which has `{kind: [item, …]}` or a warning for each scope.

    Raises:
        UserError: A zone of the region does not answer, so what it has would seem to be gone.
    """
    mute = {name for name, scope in items.items() if scope.get("warning", {}).get("code") == "UNREACHABLE"}
    prefix = f"{region}-" if region else ""
    # The scopes of a region are the region itself, for addresses, and each of its zones.
    if names := sorted(name for name in {*mute, *silent} if f"{name.rpartition('/')[2]}-".startswith(prefix)):
        raise UserError(
            f"Google Cloud does not answer for {', '.join(names)}: try again in a minute",
            code="gcp.zone-silent",
        )
    for scope in items.values():
        for kind, parts in scope.items():
            yield from parts if kind != "warning" else ()


def _read(content: bytes) -> tuple[str, str, dict[str, str]]:
    """Google's message, the reason, and the reason's details, from any of the forms that its APIs use."""
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        return " ".join(content.decode(errors="replace").split())[:300], "", {}
    if isinstance(error, str):
        # OAuth's: {"error": "invalid_token", "error_description": …}
        return str(json.loads(content).get("error_description", "")), error, {}
    for detail in error.get("details", []):
        if str(detail.get("@type", "")).endswith("google.rpc.ErrorInfo"):
            return (
                str(error.get("message", "")),
                str(detail.get("reason", "")),
                dict(detail.get("metadata", {})),
            )
    reasons = [str(detail.get("reason", "")) for detail in error.get("errors", [])]
    return str(error.get("message", "")), next(iter(reasons), str(error.get("status", ""))), {}


def _credentials(project: str | None, settings: Mapping[str, Any]) -> Any:
    identity.refuse_addresses()
    packages.provide("gcp")
    try:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests  # needs `requests`
    except ImportError:
        raise UserError(
            f"google-auth, a client library of Google Cloud, is not in the Python environment {sys.prefix}. "
            "Add it and requests there (pyproject.toml has both in the group gcp), then run the command "
            "again",
            EXIT_REFUSED,
            code="gcp.no-client",
        ) from None
    if not _at_google():
        # Otherwise the library looks many seconds for the metadata server of a machine at Google.
        os.environ.setdefault("NO_GCE_CHECK", "true")
    try:
        credentials = identity.credentials(settings, SCOPES)
    except google.auth.exceptions.DefaultCredentialsError as error:
        if variable := identity.variable():
            why = f"{variable} names no credentials that can be used: {error}. {GET_SOME}"
            raise UserError(why, EXIT_REFUSED, code="gcp.credentials-unusable") from error
        raise UserError(
            f"there are no credentials for Google Cloud here. {GET_SOME}",
            EXIT_REFUSED,
            code="gcp.no-credentials",
        ) from None
    except google.auth.exceptions.GoogleAuthError as error:
        why = f"the credentials for Google Cloud cannot be used: {error}. {GET_SOME}"
        raise UserError(why, EXIT_REFUSED, code="gcp.credentials-unusable") from error
    billed = identity.billed(settings) or project
    if (
        billed is not None
        and hasattr(credentials, "with_quota_project")
        and "GOOGLE_CLOUD_QUOTA_PROJECT" not in os.environ
    ):
        # Otherwise a user's calls count for, and need enabled APIs in, whatever project gcloud used last.
        credentials = credentials.with_quota_project(billed)
    return credentials


def _at_google() -> bool:
    """Whether this may be a machine at Google, which has its own credentials.

    The firmware says so, or an environment variable names the metadata server.
    """
    if os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP"):
        return True
    try:
        return "Google" in PRODUCT.read_text(errors="replace")
    except OSError:
        return False


def _stale(error: Exception) -> UserError:
    return UserError(
        f"the credentials for Google Cloud are no longer valid ({error}). {GET_SOME}",
        EXIT_REFUSED,
        code="gcp.credentials-expired",
    )


def escaped(name: str) -> str:
    """Return an object's name, escaped as a part of a URL."""
    return quote(name, safe="")
