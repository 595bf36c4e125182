"""Each setting of the clouds' providers is followed by our own calls, harmless, or refused by name."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import bundle
from infra.config import ConfigError, load_file, parse, provider_settings
from infra.config import stack_file as stack_files
from infra.config.load import CLUSTER
from infra.config.provider_settings import ENDPOINTS_OF_GOOGLE, FOLLOWED, HARMLESS, REFUSED
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import Settings, Site
from tests.support import sentences
from tests.support.checkout import ROOT

PROVIDERS = ("aws", "gcp")
GOOD: dict[str, dict[str, Any]] = {
    "aws": {
        "allowedAccountIds": ["111111111111"],
        "assumeRoleWithWebIdentity": {"roleArn": "arn:aws:iam::1:role/w", "webIdentityTokenFile": "/t"},
        "assumeRoles": [{"roleArn": "arn:aws:iam::1:role/r", "duration": "1h30m", "tags": {"a": "b"}}],
        "customCaBundle": "/ca.pem",
        "endpoints": {"s3": "https://s3.example.test", "rds": "https://rds.example.test"},
        "forbiddenAccountIds": ["222222222222"],
        "profile": "research",
        "s3UsePathStyle": True,
        "sharedConfigFiles": ["~/config"],
        "sharedCredentialsFiles": ["~/credentials"],
        "skipMetadataApiCheck": True,
        "stsRegion": "eu-west-1",
        "useDualstackEndpoint": False,
        "useFipsEndpoint": True,
    },
    "gcp": {
        "billingProject": "billed-1",
        "impersonateServiceAccount": "deploy@p-1.iam.gserviceaccount.com",
        "impersonateServiceAccountDelegates": ["between@p-1.iam.gserviceaccount.com"],
        "userProjectOverride": True,
    },
}
"""Provider -> key -> a value."""
WRONG: dict[str, list[tuple[str, Any, str]]] = {
    "aws": [
        ("profile", 7, "text"),
        ("allowedAccountIds", "111111111111", "list"),
        ("assumeRoles", {"roleArn": "a"}, "list of roles"),
        ("assumeRoles", [{"sessionName": "a"}], "roleArn"),
        ("assumeRoles", [{"roleArn": "a", "duration": "an hour"}], "1h"),
        ("assumeRoles", [{"roleArn": "a", "role": "b"}], "and not role"),
        ("assumeRoles", [{"roleArn": "a", "externalId": {"secure": "v1:x"}}], "no secret"),
        ("assumeRoleWithWebIdentity", {"roleArn": "a", "webIdentityToken": "t"}, "webIdentityTokenFile"),
        ("endpoints", [{"s3": "s3.example.test"}], "https://"),
        ("endpoints", [{"s3": "https://user:word@s3.example.test"}], "no password"),
        ("sharedConfigFiles", ["/a", "/b"], "one path"),
        ("sharedConfigFiles", ["./aws/config"], "absolute path"),
        ("sharedCredentialsFiles", ["aws/credentials"], "absolute path"),
        ("customCaBundle", "ca.pem", "absolute path"),
        ("assumeRoleWithWebIdentity", {"roleArn": "a", "webIdentityTokenFile": "t"}, "absolute path"),
        ("allowedAccountIds", [True], "list of texts"),
        ("assumeRoles", "[" * 100_000, "list of roles"),
        ("useFipsEndpoint", "yes", "true or false"),
        ("profile", {"secure": "v1:x"}, "no secret"),
    ],
    "gcp": [
        ("impersonateServiceAccountDelegates", "a", "list"),
        ("billingProject", {"secure": "v1:x"}, "no secret"),
    ],
}
"""Provider -> key, a value that is not taken, and a word of what is allowed."""


def source(provider: str, name: str) -> str:
    """Return the source of a file of the installed SDK's module of configuration."""
    found = importlib.util.find_spec(f"pulumi_{provider}")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "config" / name).read_text(encoding="utf-8")


def keys(provider: str) -> set[str]:
    """Return the keys that the installed SDK's module of configuration reads."""
    return set(re.findall(r"__config__\.get(?:_\w+)?\('(\w+)'\)", source(provider, "vars.py")))


def classes(provider: str, key: str) -> list[str]:
    found = ["followed"] if key in FOLLOWED[provider] else []
    _, mistakes = provider_settings.read(
        provider, {f"{provider}:{key}": GOOD[provider].get(key, "x")}, frozenset()
    )
    found += ["refused"] if [m.code for m in mistakes] == ["provider.refused"] else []
    return found + (["harmless"] if not found and not mistakes else [])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_key_of_the_installed_provider_has_one_class(provider: str) -> None:
    known = keys(provider)
    assert len(known) > 30
    assert {key: classes(provider, key) for key in known if len(classes(provider, key)) != 1} == {}
    named = {*FOLLOWED[provider], *HARMLESS[provider], *REFUSED[provider]} - {"version", "pluginDownloadURL"}
    assert named - known == set(), "the provider has no such key any more"
    assert FOLLOWED[provider].keys() == GOOD[provider].keys(), "each has its line in the tables of tests"


def test_only_the_endpoints_that_a_cluster_uses_are_refused() -> None:
    endpoints = {key.removesuffix("CustomEndpoint") for key in keys("gcp") if key.endswith("CustomEndpoint")}
    assert endpoints >= ENDPOINTS_OF_GOOGLE
    assert {
        name for name in endpoints if classes("gcp", f"{name}CustomEndpoint") == ["refused"]
    } == ENDPOINTS_OF_GOOGLE


def test_every_endpoint_that_is_followed_is_one_of_the_providers() -> None:
    endpoints = source("aws", "outputs.py").partition("class Endpoints")[2]
    assert [key for key in provider_settings.ENDPOINTS if f"def {key}(self)" not in endpoints] == []


@pytest.mark.parametrize(("provider", "key"), [(p, key) for p, values in GOOD.items() for key in values])
def test_what_is_followed_reaches_the_design_from_a_file_and_from_the_engine(
    provider: str, key: str, tmp_path: Path
) -> None:
    value = GOOD[provider][key]
    content = yaml.safe_load((ROOT / f"Pulumi.{provider}-cpu.yaml").read_text())
    content["config"][f"{provider}:{key}"] = value
    file = tmp_path / "Pulumi.s.yaml"
    file.write_text(yaml.safe_dump(content))
    expected = json.dumps({key: value}, sort_keys=True, separators=(",", ":"))
    assert design(load_file(file), catalog()).provider_settings == expected
    assert provider_settings.of_file(file) == expected
    # The engine gives a program objects and flags as text.
    as_text = value if isinstance(value, str) else json.dumps(value)
    from_engine = parse({**content["config"], f"{provider}:{key}": as_text}, "s")
    assert from_engine.provider_settings == expected


@pytest.mark.parametrize(
    ("provider", "key", "value", "word"), [(p, *row) for p, rows in WRONG.items() for row in rows]
)
def test_what_has_another_form_is_a_mistake(provider: str, key: str, value: Any, word: str) -> None:
    text, (mistake,) = provider_settings.read(provider, {f"{provider}:{key}": value}, frozenset())
    assert (text, mistake.code, mistake.path) == (None, "provider.form", f"{provider}:{key}")
    assert word in mistake.allowed
    assert [part for part in ("v1:x", "word@", '"t"') if part in str(mistake)] == []


@pytest.mark.parametrize(("provider", "key"), [(p, key) for p, values in GOOD.items() for key in values])
def test_a_secret_never_becomes_an_argument(provider: str, key: str) -> None:
    full = f"{provider}:{key}"
    text, (mistake,) = provider_settings.read(provider, {full: "hidden"}, frozenset({full}))
    assert (text, mistake.code) == (None, "provider.form")
    assert "hidden" not in str(mistake)


@pytest.mark.parametrize(("provider", "key"), [(p, key) for p, values in REFUSED.items() for key in values])
@pytest.mark.parametrize("value", ["in-clear", {"secure": "v1:in-clear"}])
def test_what_is_refused_is_named_with_the_cure_and_without_its_value(
    provider: str, key: str, value: Any
) -> None:
    _, (mistake,) = provider_settings.read(provider, {f"{provider}:{key}": value}, frozenset())
    assert (mistake.code, mistake.path) == ("provider.refused", f"{provider}:{key}")
    assert mistake.advice
    assert "in-clear" not in str(mistake)


def stack_file(folder: Path, name: str, provider: str, *lines: str, top: str = "") -> Path:
    text = (ROOT / f"Pulumi.{provider}-cpu.yaml").read_text()
    file = folder / f"Pulumi.{name}.yaml"
    file.write_text(
        top + text.replace("config:\n", "config:\n" + "".join(f"  {line}\n" for line in lines), 1)
    )
    return file


REFUSALS = [
    ("provider.refused", "aws", "aws:accessKey: AKIA"),
    ("provider.refused", "gcp", "gcp:credentials: '{}'"),
    ("provider.refused", "gcp", "gcp:computeCustomEndpoint: https://compute.example.test/"),
    ("provider.form", "aws", "aws:assumeRoles: research"),
    ("provider.unknown", "aws", "aws:profil: research"),
]
"""Code, provider, line of a stack file."""


def refused(folder: Path, provider: str, line: str) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        load_file(stack_file(folder, "s", provider, line))
    return raised.value


@pytest.mark.parametrize(("code", "provider", "line"), REFUSALS)
def test_a_stack_file_that_cannot_be_followed_is_refused(
    code: str, provider: str, line: str, tmp_path: Path
) -> None:
    assert [mistake.code for mistake in refused(tmp_path, provider, line).mistakes] == [code]
    with pytest.raises(ConfigError):
        provider_settings.of_file(tmp_path / "Pulumi.s.yaml")


def test_a_key_is_shown_without_what_a_terminal_acts_on(tmp_path: Path) -> None:
    (mistake,) = refused(tmp_path, "aws", '"aws:pro\\x1bfil": research').mistakes
    assert (mistake.code, mistake.path) == ("provider.unknown", r'["aws:pro\u001bfil"]')


def test_the_sentences(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    texts = [str(m) for _, provider, line in REFUSALS for m in refused(tmp_path, provider, line).mistakes]
    with pytest.raises(ConfigError) as raised:
        stack_files.named("acme/other/s", ROOT)
    sentences.check(pytestconfig, __file__, [*texts, raised.value.printed])


def test_settings_of_other_providers_do_not_matter(tmp_path: Path) -> None:
    assert load_file(stack_file(tmp_path, "s", "gcp", "aws:accessKey: AKIA")).provider_settings is None
    local = {CLUSTER: {"provider": "local", "partitions": [{"name": "p", "instance_type": "local.small"}]}}
    assert provider_settings.read("local", {**local, "aws:accessKey": "A"}, frozenset()) == (None, [])


def test_an_endpoint_without_encryption_is_named() -> None:
    values = {"aws:endpoints": [{"s3": "http://s3.example.test", "ec2": "https://ec2.example.test"}]}
    text, _ = provider_settings.read("aws", values, frozenset())
    assert provider_settings.plain_endpoints(text) == ["s3: http://s3.example.test"]


def test_machines_are_not_told_as_whom_the_engineer_asks(tmp_path: Path) -> None:
    cluster = design(load_file(stack_file(tmp_path, "s", "aws", "aws:profile: research")), catalog())
    assert b"research" not in bundle.settings_object(Settings(cluster, Site("/", "slurm", "controller", "")))
