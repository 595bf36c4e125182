"""Whatever asks AWS for a stack asks as Pulumi's provider does: by the profile, roles and addresses."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cli.providers.aws import diagnosis
from cli.providers.aws.provider import AwsProvider
from cli.providers.batch import teardown
from infra.aws import access
from infra.clouds.commands import ClusterRef, WaitRequest
from infra.config import provider_settings
from infra.errors import EXIT_REFUSED, UserError
from node.design.model import AwsSettings
from operations.aws import __main__ as verbs
from operations.aws import account, identity
from operations.aws.batch import __main__ as batch_verbs
from operations.aws.cloud import AwsCloud
from operations.clouds import commands, termination
from operations.clouds.cloud import Machine
from tests.support import sentences
from tests.support.asked_accounts import ACCOUNT, AskedAccounts, accounts
from tests.support.aws_mocks import aws_design

__all__ = ["accounts"]
REGION = "eu-west-1"
ROLE = "arn:aws:iam::111111111111:role/"
REPOSITORY = f"111111111111.dkr.ecr.{REGION}.amazonaws.com/images"
BOUNDARY = "arn:aws:iam::111111111111:policy/b"


@pytest.fixture(autouse=True)
def two_profiles(accounts: AskedAccounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config file with a default and another profile; nothing else in the environment names an account."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    config = tmp_path / "config"
    config.write_text(
        f"[default]\naws_access_key_id = KEYOFdefault\naws_secret_access_key = s\n"
        f"endpoint_url = {accounts.url}\n"
        f"[profile research]\naws_access_key_id = KEYOFresearch\naws_secret_access_key = s\n"
        f"endpoint_url = {accounts.url}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(termination, "TERMINATION_POLL_SECONDS", 0.0)
    account._clients.cache_clear()
    return config


def text(values: Mapping[str, Any]) -> str:
    found, mistakes = provider_settings.read("aws", {f"aws:{k}": v for k, v in values.items()}, frozenset())
    assert (mistakes, found is not None) == ([], True)
    return str(found)


def place(values: Mapping[str, Any]) -> ClusterRef:
    return ClusterRef("c", REGION, provider_settings=text(values))


def ended(where: ClusterRef) -> object:
    """What the engine runs when it destroys a stack: the command line of the resource."""
    line = ["terminate-nodes", "--stack", "s", *where.arguments()]
    return commands.verbs(AwsCloud)["terminate-nodes"](verbs.parse(line))


def waited(where: ClusterRef) -> object:
    request = WaitRequest(where, "bucket-1", ["controller"], "controller", "ssh")
    sys.stdin = io.StringIO(request.text())
    return commands.verbs(AwsCloud)["wait"](argparse.Namespace())


def looked(check: str) -> Callable[[ClusterRef], object]:
    """Return a check of the doctor's, which asks AWS."""

    def look(where: ClusterRef) -> object:
        design = replace(
            aws_design(),
            region=REGION,
            provider_settings=where.provider_settings,
            aws=AwsSettings(permissions_boundary=BOUNDARY),
        )
        design = replace(design, access=replace(design.access, key="mine"))
        return [
            finding for found in diagnosis.checks(design) if found.name == check for finding in found.look()
        ]

    return look


def pushed(where: ClusterRef) -> object:
    fields = {
        "region": REGION,
        "repository": REPOSITORY,
        "tag": "t",
        "provider_settings": where.provider_settings,
    }
    sys.stdin = io.StringIO(json.dumps(fields))
    return batch_verbs.image(argparse.Namespace())


READERS: dict[str, Callable[[ClusterRef], object]] = {
    "machines": lambda where: AwsCloud(where).machines(),
    "the bucket": lambda where: AwsCloud(where).bucket(),
    "what stays on purpose": lambda where: AwsCloud(where).kept({}),
    "the audit": lambda where: AwsCloud(where).leftovers(),
    "old images": lambda where: AwsCloud(where).end_images(print),
    "the sweep of a destroy": ended,
    "the wait for a boot": waited,
    "unbake": lambda where: verbs.unbake(
        verbs.parse(["unbake", "--stack", "s", *where.arguments(), "--recipe", "r"])
    ),
    "list": lambda where: AwsProvider().clusters(where),
    "instance types": lambda where: AwsProvider().describe(where, ["x9.large"]),
    "quotas": looked("quotas"),
    "the key pair": looked("key"),
    "platform": looked("platform"),
    "queues": lambda where: teardown.left([where]),
    "the end of a queue": lambda where: batch_verbs.finish(
        batch_verbs.parse(["end", "--stack", "s", *where.arguments(), "--queue", "q", "--environment", "e"])
    ),
    "the container image": pushed,
}
"""Everything that asks the account of a stack."""


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_asks_the_profile_of_the_stack_file(
    reader: str, accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    with contextlib.suppress(UserError):
        READERS[reader](place({"profile": "research"}))
    assert set(accounts.asked) == {"KEYOFresearch"}


SOME = ["machines", "the sweep of a destroy", "the container image"]


@pytest.mark.parametrize("reader", SOME)
def test_every_reader_asks_as_the_last_role_of_the_stack_file(
    reader: str, accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    roles = [{"roleArn": f"{ROLE}one"}, {"roleArn": f"{ROLE}two"}]
    with contextlib.suppress(UserError):
        READERS[reader](place({"assumeRoles": roles}))
    assert set(accounts.asked) == {"KEYOFtwo"}
    assert [key for key, _ in accounts.sts[:2]] == ["KEYOFdefault", "KEYOFone"]


def test_without_settings_the_environments_account_is_asked(accounts: AskedAccounts) -> None:
    with contextlib.suppress(UserError):
        AwsCloud(ClusterRef("c", REGION)).machines()
    assert set(accounts.asked) == {"KEYOFdefault"}


def asks(accounts: AskedAccounts, values: Mapping[str, Any], service: str = "ec2") -> set[str]:
    accounts.asked.clear()
    client = account.client(place(values), service)
    call = {"ec2": "describe_instances", "s3": "list_buckets"}[service]
    with contextlib.suppress(ClientError):
        getattr(client, call)()
    return set(accounts.asked)


def test_a_named_profile_wins_over_keys_in_the_environment(
    accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEYOFenvironment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert asks(accounts, {"profile": "research"}) == {"KEYOFresearch"}
    monkeypatch.setenv("AWS_PROFILE", "research")
    monkeypatch.setenv("AWS_ENDPOINT_URL", accounts.url)
    assert asks(accounts, {"useFipsEndpoint": False}) == {"KEYOFenvironment"}, "as the engine's provider does"


def test_a_role_is_assumed_with_all_that_the_stack_file_says(accounts: AskedAccounts) -> None:
    role = {
        "roleArn": f"{ROLE}r", "duration": "1h30m", "externalId": "ee", "policy": "{}",
        "policyArns": [BOUNDARY], "sessionName": "nn", "sourceIdentity": "ii",
        "tags": {"k": "v"}, "transitiveTagKeys": ["k"],
    }  # fmt: skip
    assert asks(accounts, {"profile": "research", "assumeRoles": [role]}) == {"KEYOFr"}
    ((key, given),) = accounts.sts
    assert key == "KEYOFresearch"
    assert given.items() >= {
        "RoleArn": f"{ROLE}r", "DurationSeconds": "5400", "ExternalId": "ee", "Policy": "{}",
        "PolicyArns.member.1.arn": BOUNDARY, "RoleSessionName": "nn", "SourceIdentity": "ii",
        "Tags.member.1.Key": "k", "Tags.member.1.Value": "v", "TransitiveTagKeys.member.1": "k",
    }.items()  # fmt: skip


def test_roles_are_assumed_in_the_region_of_the_stack(
    accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    cases: list[tuple[dict[str, str], str]] = [({}, REGION), ({"stsRegion": "eu-west-3"}, "eu-west-3")]
    for values, region in cases:
        clients = identity._sts_clients(identity.session(values, REGION), values)
        assert clients("sts").meta.region_name == region
    made = account.session(text({"assumeRoles": [{"roleArn": f"{ROLE}r"}]}), REGION)
    assert made.region_name == REGION


@pytest.mark.parametrize("variable", ["TF_AWS_S3_ENDPOINT", "AWS_IAM_ENDPOINT", "TF_AWS_STS_ENDPOINT"])
def test_variables_that_lead_the_engine_elsewhere_are_refused_by_name(
    variable: str, accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "https://example.test")
    with sentences.raises("aws.other-address", variable) as raised:
        AwsCloud(ClusterRef("c", REGION)).machines()
    assert raised.value.exit_code == EXIT_REFUSED
    assert accounts.asked == []


def test_a_web_identity_is_the_base_of_the_roles(accounts: AskedAccounts, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    web = {"roleArn": f"{ROLE}web", "webIdentityTokenFile": str(token), "sessionName": "nn"}
    assert asks(accounts, {"assumeRoleWithWebIdentity": web, "assumeRoles": [{"roleArn": f"{ROLE}r"}]}) == {
        "KEYOFr"
    }
    (unsigned, first), (key, _) = accounts.sts
    assert (unsigned, first["WebIdentityToken"], key) == ("", "secret-token", "KEYOFweb")


def test_the_files_and_addresses_of_the_stack_file_are_used(
    accounts: AskedAccounts, two_profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text("[research]\naws_access_key_id = KEYOFother\naws_secret_access_key = s\n")
    config = tmp_path / "empty"
    config.write_text("[profile research]\n")
    values = {
        "profile": "research",
        "sharedConfigFiles": [str(config)],
        "sharedCredentialsFiles": [str(other)],
        "endpoints": [{"ec2": accounts.url}, {"s3": accounts.url}],
        "s3UsePathStyle": True,
    }
    assert asks(accounts, values) == {"KEYOFother"}
    assert asks(accounts, values, "s3") == {"KEYOFother"}
    client = account.client(
        place({**values, "useFipsEndpoint": True, "endpoints": {"s3": accounts.url}}), "ec2"
    )
    assert client.meta.endpoint_url == f"https://ec2-fips.{REGION}.amazonaws.com"
    assert client.meta.config.s3 == {"addressing_style": "path"}
    dual = account.client(place({**values, "useDualstackEndpoint": True, "endpoints": None}), "ec2")
    assert dual.meta.endpoint_url == f"https://ec2.{REGION}.api.aws"
    sts = account.client(place({"profile": "research", "stsRegion": "us-west-2"}), "sts")
    assert sts.meta.region_name == "us-west-2"


def test_the_authority_of_the_stack_file_is_checked_by(tmp_path: Path) -> None:
    options = identity._options({"customCaBundle": str(tmp_path / "ca.pem")}, "ec2", {})
    assert options["verify"] == str(tmp_path / "ca.pem")


def test_without_the_metadata_service_no_machines_identity_is_taken() -> None:

    def sources(skip: bool) -> set[str]:
        session = identity.session({"skipMetadataApiCheck": skip})
        return {each.METHOD for each in session.get_component("credential_provider").providers}

    assert sources(False) - sources(True) == {"iam-role"}


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"allowedAccountIds": [ACCOUNT]}, False),
        ({"allowedAccountIds": ["222222222222"]}, True),
        ({"forbiddenAccountIds": [ACCOUNT]}, True),
        ({"forbiddenAccountIds": ["222222222222"]}, False),
    ],
)
def test_another_account_than_the_allowed_ones_is_asked_for_nothing(
    values: dict[str, Any], refused: bool, accounts: AskedAccounts
) -> None:
    if not refused:
        assert asks(accounts, values) == {"KEYOFdefault"}
        return
    with sentences.raises("aws.other-account", ACCOUNT, *values) as raised:
        account.client(place(values), "ec2")
    assert raised.value.exit_code == EXIT_REFUSED
    assert accounts.asked == []


def test_a_profile_that_is_not_there_is_named(accounts: AskedAccounts) -> None:
    with sentences.raises("aws.credentials-unusable", "nobodys") as raised:
        AwsCloud(place({"profile": "nobodys"})).machines()
    assert raised.value.exit_code == EXIT_REFUSED
    assert accounts.asked == []


@pytest.mark.parametrize("reader", SOME)
def test_what_only_an_environment_of_pulumis_knows_is_asked_of_nobody(
    reader: str, accounts: AskedAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    unknown, _ = provider_settings.read("aws", {}, frozenset(), ["acme/aws-dev"])
    where = ClusterRef("c", REGION, provider_settings=unknown)
    with contextlib.suppress(UserError):
        READERS[reader](where)
    assert accounts.asked == []
    monkeypatch.setenv(provider_settings.ENVIRONMENT_VARIABLE, "acme/aws-dev")
    with contextlib.suppress(UserError):
        READERS[reader](where)
    assert set(accounts.asked) == {"KEYOFdefault"}


def test_the_refusal_names_the_environment() -> None:
    unknown, _ = provider_settings.read("aws", {}, frozenset(), ["acme/aws-dev"])
    with sentences.raises(
        "cloud.environment-unknown", "environment: acme/aws-dev", "pulumi env run"
    ) as raised:
        account.require(unknown)
    assert raised.value.exit_code == EXIT_REFUSED


def test_the_aws_cli_acts_as_the_stack_file_says(
    monkeypatch: pytest.MonkeyPatch, accounts: AskedAccounts
) -> None:
    """With Session Manager, `aws` makes the connection."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    became: list[dict[str, str]] = []
    monkeypatch.setattr(commands, "replace_process", lambda line, _: became.append(dict(os.environ)))
    settings = text({"assumeRoles": [{"roleArn": f"{ROLE}r"}], "endpoints": {"ssm": accounts.url}})
    line = str(access.ssh_proxy(REGION, "ssm", "mine", lambda words: words, settings))
    words = [word.replace("%%", "%") for word in shlex.split(line)]
    assert words[:2] == ["operations.aws", "proxy"]
    verbs.proxy(
        verbs.parse([word.replace("%h", "i-1").replace("%r", "u").replace("%p", "22") for word in words[1:]])
    )
    (environment,) = became
    assert environment["AWS_ACCESS_KEY_ID"] == "KEYOFr"
    assert environment["AWS_PROFILE"] == ""
    assert environment["AWS_ENDPOINT_URL_SSM"] == accounts.url


def test_a_key_pair_without_settings_needs_no_command_of_ours() -> None:
    assert str(access.ssh_proxy(REGION, "ssm", "mine")).startswith("aws ssm start-session")
    assert access.ssh_proxy(REGION, "ssh", None, provider_settings="{}") is None
    line = str(access.ssh_proxy(REGION, "ssm", None, lambda words: words, '{"profile":"a%b"}'))
    assert "a%%b" in line


def test_another_profile_is_not_another_cluster() -> None:
    """The engine replaces a command, and all behind it, when its triggers change."""
    one, two = place({"profile": "one"}), place({"profile": "two"})
    assert one.where() == two.where()
    assert one.arguments() != two.arguments()


def test_commands_that_people_paste_name_the_profile() -> None:
    machine = Machine("i-1", "controller", "controller", "running", 0.0, None, None, None)
    cloud = AwsCloud(place({"profile": "my research"}))
    for line in (cloud.console_line(machine), cloud.stop_line(machine)):
        assert f" --region {REGION} --profile 'my research' " in line
    plain = AwsCloud(ClusterRef("c", REGION))
    assert "--profile" not in plain.console_line(machine) + plain.stop_line(machine)
