"""Google Cloud is asked with the credentials that Pulumi's provider takes, from settings and variables."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.auth import impersonated_credentials
from google.oauth2 import credentials as users
from google.oauth2 import service_account

from cli.providers.gcp import diagnosis
from infra.clouds.commands import ClusterRef
from infra.config import provider_settings
from infra.errors import EXIT_REFUSED
from infra.gcp import access
from operations.clouds import commands
from operations.gcp import __main__ as verbs
from operations.gcp import account, identity
from operations.gcp.cloud import GcpCloud
from tests.support import sentences

DEPLOYER = "deploy@p-1.iam.gserviceaccount.com"
BETWEEN = "between@p-1.iam.gserviceaccount.com"
USER = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}


@pytest.fixture(autouse=True)
def default_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Application Default Credentials of a user; nothing else in the environment names an account."""
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_", "GCLOUD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(identity.OVERRIDE, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    file = tmp_path / "user.json"
    file.write_text(json.dumps(USER))
    monkeypatch.setenv(identity.DEFAULT, str(file))
    return file


def key(email: str) -> str:
    """Return the key of a service account."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "client_email": email,
            "private_key": pem.decode(),
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


def place(values: Mapping[str, Any] = {}) -> ClusterRef:
    given = {f"gcp:{name}": value for name, value in values.items()}
    text, mistakes = provider_settings.read("gcp", given, frozenset())
    assert mistakes == []
    return ClusterRef("c", "europe-west4", "europe-west4-a", "p-1", text)


def test_without_settings_the_users_default_credentials_are_taken() -> None:
    found = account.of(place())
    assert isinstance(found.credentials, users.Credentials)
    assert (found.credentials.quota_project_id, found.named) == ("p-1", False)


def test_an_account_is_impersonated_with_its_delegates() -> None:
    settings = {"impersonateServiceAccount": DEPLOYER, "impersonateServiceAccountDelegates": [BETWEEN]}
    found = account.of(place(settings)).credentials
    assert isinstance(found, impersonated_credentials.Credentials)
    assert found.service_account_email == DEPLOYER
    assert found._delegates == [BETWEEN]
    assert isinstance(found._source_credentials, users.Credentials)


def test_a_setting_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(identity.IMPERSONATED, BETWEEN)
    assert account.of(place()).email() == BETWEEN
    assert account.of(place({"impersonateServiceAccount": DEPLOYER})).email() == DEPLOYER


@pytest.mark.parametrize("variable", identity.KEYS)
@pytest.mark.parametrize("by_file", [True, False])
def test_a_key_in_a_variable_of_the_provider_is_taken(
    variable: str, by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = key(DEPLOYER)
    (tmp_path / "key.json").write_text(text)
    monkeypatch.setenv(variable, str(tmp_path / "key.json") if by_file else text)
    found = account.of(place())
    assert isinstance(found.credentials, service_account.Credentials)
    assert (found.email(), found.named) == (DEPLOYER, True)


def test_a_token_comes_before_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(identity.KEYS[0], key(DEPLOYER))
    monkeypatch.setenv(identity.TOKEN, "a-token")
    assert account.of(place()).credentials.token == "a-token"


def test_what_is_no_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(identity.KEYS[0], "/nobodys/file.json")
    with sentences.raises("gcp.credentials-unusable", identity.KEYS[0]) as raised:
        account.require()
    assert raised.value.exit_code == EXIT_REFUSED


@pytest.mark.parametrize(
    ("settings", "variables", "project"),
    [
        ({"billingProject": "billed", "userProjectOverride": True}, {}, "billed"),
        ({"billingProject": "billed"}, {}, "p-1"),
        ({"userProjectOverride": True}, {identity.BILLED: "billed"}, "billed"),
        ({}, {identity.BILLED: "billed", identity.OVERRIDE: "true"}, "billed"),
        ({"userProjectOverride": False}, {identity.BILLED: "billed", identity.OVERRIDE: "true"}, "p-1"),
    ],
)
def test_calls_are_charged_to_the_project_of_the_provider(
    settings: dict[str, Any], variables: dict[str, str], project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert account.of(place(settings)).credentials.quota_project_id == project


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", "https://compute.example.test/"),
        (identity.UNIVERSE, "example.test"),
    ],
)
def test_variables_that_lead_elsewhere_are_refused_by_name(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with sentences.raises("gcp.other-address", variable) as raised:
        GcpCloud(place()).machines()
    assert raised.value.exit_code == EXIT_REFUSED


def test_every_command_line_of_a_resource_says_as_whom_to_ask() -> None:
    where = place({"impersonateServiceAccount": DEPLOYER})
    ends = verbs.parse(["terminate-nodes", "--stack", "s", *where.arguments()])
    more = ["--bucket", "b", "--instance", "i", "--host", "h"]
    for options in (ends, verbs.parse(["baked", "--stack", "s", *where.arguments(), *more])):
        assert commands.place(options) == where

    for line in (access.ask(where, str), str(access.proxy(where, "iap", str))):
        options = verbs.parse(shlex.split(line)[1:])
        assert commands.place(options).provider_settings == where.provider_settings


@pytest.mark.parametrize("named", [True, False])
def test_gcloud_acts_as_the_same_account(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Identity-Aware Proxy, `gcloud` makes the connection."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    if named:
        monkeypatch.setenv(identity.TOKEN, "a-token")
    found = account.of(place())
    found.export()
    assert os.environ.get(account.TOKEN_VARIABLE) == ("a-token" if named else None)


def test_the_doctor_says_whose_credentials_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(identity.IMPERSONATED, DEPLOYER)
    (finding,) = diagnosis.credentials(None)
    assert DEPLOYER in finding.found


def test_what_only_an_environment_of_pulumis_knows_is_asked_of_nobody() -> None:
    text, _ = provider_settings.read("gcp", {}, frozenset(), ["acme/gcp-dev"])
    with sentences.raises("cloud.environment-unknown", "acme/gcp-dev") as raised:
        account.of(ClusterRef("c", "r", "z", "p-1", text))
    assert raised.value.exit_code == EXIT_REFUSED
