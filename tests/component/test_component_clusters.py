"""Clusters as components of a program, by the provider's own answers: names, arguments, outputs of others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.errors import InputPropertiesError
from pulumi.runtime import config as pulumi_config

from component.arguments import FORMS, Form, Given, Program, checked, read
from component.construction import TOKEN, construct
from infra.config import ConfigError, argument_names, load_file
from infra.config.load import CLUSTER
from infra.program import mode
from infra.program.stand_ins import MARK
from tests.component.test_component_schema import SHIPPED
from tests.support import sentences
from tests.support.checkout import ROOT
from tests.support.component_program import (
    CPU,
    NODES,
    PRINTED,
    PUBLIC,
    SMALL,
    VPC,
    Cloud,
    declared,
    everything,
    everything_of,
    google,
    inputs,
    known,
    unknown,
)  # fmt: skip
from tests.support.operation_lines import operation_words
from tests.support.recorder import Recorder, run

# --- several clusters in one program -----------------------------------------------------------------------


def test_two_clusters_of_a_program_share_nothing() -> None:
    """Each has what it has alone in a program, and every name begins with its component's."""
    both = {"train": lambda: SMALL, "small": lambda: {**SMALL, "name": "other", "budget": {"maxHours": 3.0}}}
    made = declared(both)
    alone = {name: declared({name: inputs}) for name, inputs in both.items()}
    assert {*made.types()} == {*alone["train"].types(), *alone["small"].types()}
    for name, one in alone.items():
        assert all(each == name or each.startswith(f"{name}-") for each in one.types())
        for resource in one.types():
            assert inputs(made, resource) == inputs(one, resource), resource
    assert made.inputs("small-bucket-store")["tags"]["slurm-stacks:cluster"] == "other"


def test_two_local_clusters_have_run_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mode_token = mode.FOLDER.set(tmp_path)
    try:
        local = {"provider": "local", "partitions": [{"name": "debug", "instanceType": "local.small"}]}
        monkeypatch.setattr("infra.program.owner.claim_in_program", lambda stack: None)
        seen: dict[str, Any] = {}
        made = declared({"one": lambda: local, "two": lambda: local}, seen=seen)
    finally:
        mode.FOLDER.reset(mode_token)
    stacks = {made.inputs(f"{name}-head")["create"].rpartition("--stack ")[2] for name in ("one", "two")}
    assert stacks == {"test.one", "test.two"}
    # No stack file says how to log in, so the head's command writes the outputs.
    assert seen["one"]["loginSsh"] == PRINTED["login_ssh"]
    assert seen["one"]["cluster"]["login"]["access"] == {
        "mode": "local", "user": None, "key": None, "machine": PRINTED["id"],
    }  # fmt: skip
    assert made.inputs("one-head")["environment"]["CLUSTER_ID"] == "x"


def test_a_guard_must_go_before_what_holds_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is deleted first, in a destroy and with another queue (tests/engine/test_engine_component.py)."""
    # The mocks submit no job.
    monkeypatch.setattr("infra.slurm_cluster.publish.of", lambda *_: {})
    benchmark = {"nodes": 1.0}
    made = declared({"train": lambda: {**SMALL, "benchmark": benchmark}})
    guard = made.inputs("train-guard")
    assert operation_words(guard, "delete") == ["operations.ssh", "guard", "--tool=slurm-stacks"]
    assert guard["triggers"] == ["train-head-controller-id"], "the queue is on the controller's disk"
    assert "create" not in guard
    assert "update" not in guard
    kept = declared({"train": lambda: {**SMALL, "controller": {"state": "kept"}}})
    assert kept.inputs("train-guard")["triggers"] == ["train-storage-state-id"]
    assert made.after("train-guard") >= {"train-head-controller", "train-ready", "train-benchmark-job"}


def test_the_outputs_are_those_of_a_stack() -> None:
    seen: dict[str, Any] = {}
    declared({"train": lambda: SMALL}, seen=seen)
    found = seen["train"]
    assert found["urn"].endswith("slurm-stacks:index:SlurmCluster::train")
    assert found["cluster"]["apiVersion"].startswith("slurm-stacks/")
    assert found["cluster"]["name"] == "train"
    assert found["loginSsh"].startswith("ssh ")
    assert found["benchmarkResult"] is None


def test_every_question_and_every_resource_goes_to_the_providers_that_the_component_is_given() -> None:
    cloud: list[Recorder] = []

    def program() -> Any:
        import pulumi_aws as aws

        pulumi_config.set_all_config({"aws:region": "us-east-1"})
        there = aws.Provider("there", region="eu-west-1")
        opts = pulumi.ResourceOptions(providers={"aws": there})
        return construct("train", TOKEN, {**SMALL, "region": "eu-west-1"}, opts)[0]

    recorder = Recorder(Cloud())
    cloud.append(recorder)
    run(recorder, program)
    usual = [
        name
        for name, request in recorder.asked.items()
        if request.type.startswith("aws:")
        and not request.provider.endswith("::there-id")
        and "there" not in request.provider
    ]
    assert usual == []
    answers: Any = recorder.mocks
    assert [call.token for call in answers.invokes if "there" not in (call.provider or "")] == []


@pytest.mark.parametrize("own", [False, True], ids=["the program's provider", "a provider of its own"])
def test_the_programs_account_counts_where_its_provider_does(own: bool) -> None:
    """A provider that a program declares has none of the program's settings."""

    def program() -> Any:
        import pulumi_aws as aws

        pulumi_config.set_all_config({"aws:region": "eu-west-1", "aws:profile": "research"})
        there = {"aws": aws.Provider("there", region="eu-west-1")} if own else None
        arguments = {**SMALL, "region": "eu-west-1"}
        return construct("train", TOKEN, arguments, pulumi.ResourceOptions(providers=there))[0]

    recorder = Recorder(Cloud())
    run(recorder, program)
    words = operation_words(recorder.inputs("train-termination"), "delete")
    settings = words[words.index("--provider-settings") + 1] if "--provider-settings" in words else None
    assert settings == (None if own else '{"profile":"research"}')


@pytest.mark.parametrize("secret", [False, True])
def test_a_setting_of_the_program_that_cannot_be_followed_is_refused(secret: bool) -> None:
    settings = {"aws:region": "eu-west-1", "aws:profile" if secret else "aws:token": "hidden"}
    names = frozenset({"aws:profile"}) if secret else frozenset()
    with pytest.raises(ConfigError) as raised:
        read("train", SMALL, Program("test", ROOT, settings, secret=names))
    (mistake,) = raised.value.mistakes
    assert mistake.code == ("provider.form" if secret else "provider.refused")
    assert "hidden" not in str(raised.value)


# --- outputs of other resources ----------------------------------------------------------------------------


CLOUDS = pytest.mark.parametrize("arguments", [everything, google], ids=["aws", "gcp"])


@CLOUDS
def test_outputs_reach_every_resource_as_their_values(arguments: Callable[..., dict[str, Any]]) -> None:
    given = declared({"train": lambda: arguments(lambda value: value)})
    through = declared({"train": lambda: arguments(known)})
    assert MARK not in json.dumps(everything_of(through))
    assert everything_of(through) == everything_of(given), "as if the values were written there"


@CLOUDS
def test_a_preview_with_unknown_outputs_has_the_same_resources(
    arguments: Callable[..., dict[str, Any]],
) -> None:
    preview = declared({"train": lambda: arguments(unknown)}, preview=True)
    up = declared({"train": lambda: arguments(known)})
    assert preview.types() == up.types()
    assert MARK not in json.dumps(everything_of(preview), default=str)


def test_the_address_of_a_whole_bucket_has_no_folder_in_a_policy() -> None:
    arguments = {
        **SMALL,
        "storage": {"buckets": [{"bucket": known("s3://my-bucket"), "path": "/data"}]},
    }
    made = declared({"train": lambda: arguments})
    statements = json.loads(inputs(made, "train-identity-compute-policy")["policy"])["Statement"]
    lists, reads = (
        next(statement for statement in statements if statement["Sid"] == f"Mount{what}0")
        for what in ("List", "Read")
    )
    assert lists["Resource"] == "arn:aws:s3:::my-bucket"
    assert lists["Condition"] == {"StringLike": {"s3:prefix": ["", "*"]}}
    assert reads["Resource"] == "arn:aws:s3:::my-bucket/*"


def test_a_value_of_another_form_is_refused_when_it_is_known() -> None:
    def wrong() -> dict[str, Any]:
        aws = {"vpc": known("my vpc"), "publicSubnet": PUBLIC, "privateSubnets": [NODES]}
        return {**SMALL, "network": {"zones": ["eu-west-1b"], "aws": aws}}

    with pytest.raises(Exception, match=r"network\.aws\.vpc \[component\.value\]") as caught:
        declared({"train": wrong})
    assert '"my vpc"' in str(caught.value)
    assert "the id of a VPC, vpc-…" in str(caught.value)


# --- arguments ---------------------------------------------------------------------------------------------

HERE = Program(
    "dev", ROOT, {"aws:region": "eu-west-1", "gcp:project": "acme-ml", "gcp:zone": "europe-west4-a"}
)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_the_arguments_of_a_component_are_those_of_a_stack_file(file: Path) -> None:
    """What the shipped stack files say is read alike. Values that a user fills in are mistakes here."""
    values = yaml.safe_load(file.read_text())["config"]
    expected = load_file(file)
    cluster, benchmark = (values.get(f"slurm-stacks:{key}") for key in ("cluster", "benchmark"))
    given = argument_names.in_schema({**cluster, **({"benchmark": benchmark} if benchmark else {})})
    settings = {key: value for key, value in values.items() if not key.startswith("slurm-stacks:")}
    program = Program("dev", ROOT, settings)
    if expected.placeholders:
        with pytest.raises(ConfigError) as caught:
            read(expected.cluster.name, given, program)
        assert {each.path for each in caught.value.mistakes} >= {"project"} or caught.value.mistakes
        return
    config, values_of_others = read(expected.cluster.name, given, program)
    assert config.model_copy(update={"stack": expected.stack}) == expected
    assert values_of_others.all == ()
    again, _ = read(config.cluster.name, argument_names.arguments(config), program)
    assert again == config, "so the component's inputs in a state, and for policies, say all of it"


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """Outputs are made in an event loop, which the engine's requests run in."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    asyncio.set_event_loop(None)
    made.close()


def refused(inputs: Mapping[str, Any], program: Program = HERE) -> dict[str, str]:
    """Return the mistakes in arguments: path -> the whole text."""
    with pytest.raises(ConfigError) as caught:
        read("train", inputs, program)
    return {each.path: str(each) for each in caught.value.mistakes}


def test_mistakes_are_those_of_a_stack_file_with_the_paths_of_the_schema() -> None:
    found = refused(
        {
            "provider": "aws",
            "partitions": [{**CPU, "instanceType": "m5.xlrge", "diskGib": 5.0}],
            "storage": {"scratch": {"kind": "fsx_lustre", "sizeGib": 1300.0}},
            "budgt": {},
            "benchmark": {"epochs": "many"},
        }
    )
    assert {*found} == {
        "partitions[0].instanceType", "partitions[0].diskGib", "storage.scratch.sizeGib", "budgt",
        "benchmark.epochs",
    }  # fmt: skip
    assert "did you mean m5.xlarge" in found["partitions[0].instanceType"]
    assert "budget" in found["budgt"]


def subnets_of_others() -> dict[str, Any]:
    subnet = Given(pulumi.Output.from_input(NODES), known=False)
    aws = {"vpc": VPC, "publicSubnet": PUBLIC, "privateSubnets": [subnet]}
    return {**SMALL, "network": {"aws": aws}}


def test_an_output_where_names_depend_on_the_value_is_one_clear_mistake(pytestconfig: pytest.Config) -> None:
    """And so are the others that only a component has. Their sentences are in a file."""
    unknown_name = Given(pulumi.Output.from_input("x"), known=False)
    secret = Given(pulumi.Output.from_input("x"), known=True, value="x", secret=True)
    given = Program("dev", ROOT, HERE.settings, frozenset({"aws"}))
    elsewhere = {**SMALL, "region": "us-east-1", "network": {"zones": ["us-east-1b"]}}
    cases: list[tuple[dict[str, Any], Program, str, str]] = [
        ({**SMALL, "partitions": [{**CPU, "name": unknown_name}]}, HERE, "partitions[0].name", "unknown"),
        ({**SMALL, "access": {"key": secret}}, HERE, "access.key", "secret"),
        (subnets_of_others(), HERE, "network.zones", "zones"),
        (elsewhere, HERE, "region", "region"),
        (elsewhere, Program("dev", ROOT, {}), "region", "region"),
        (SMALL, given, "region", "region"),
    ]
    told = []
    for arguments, program, path, code in cases:
        found = refused(arguments, program)
        assert {*found} == {path}
        assert f"[component.{code}]" in found[path]
        told.append(found[path])
    wrong = FORMS["network.aws.vpc"]
    assert isinstance(wrong, Form)
    with pytest.raises(ConfigError) as caught:
        checked("my vpc", f"{CLUSTER}.network.aws.vpc", wrong)
    sentences.check(pytestconfig, __file__, [*told, str(caught.value.mistakes[0])])


def test_an_output_that_is_known_is_its_value_where_a_value_must_be_known() -> None:
    name = Given(pulumi.Output.from_input("x"), known=True, value="x")
    config, _ = read("train", {**SMALL, "partitions": [{**CPU, "name": name}]}, HERE)
    assert config.cluster.partitions[0].name == "x"


def test_a_region_that_the_component_is_given_with_a_provider_is_its_own() -> None:
    given = Program("dev", ROOT, HERE.settings, frozenset({"aws"}))
    elsewhere = {**SMALL, "region": "us-east-1", "network": {"zones": ["us-east-1b"]}}
    assert read("train", elsewhere, given)[0].region == "us-east-1"


def test_a_mistake_reaches_the_engine_as_one_message() -> None:
    with pytest.raises(InputPropertiesError) as caught:
        declared({"train": lambda: {**SMALL, "budgt": {}}})
    assert caught.value.message.startswith("SlurmCluster train: 1 mistake.\n\nbudgt [key.unknown]")
    assert caught.value.errors == [], "the engine would print the values, also those that are no plain ones"


def test_the_package_has_one_type() -> None:
    with pytest.raises(ValueError, match="the package has no slurm-stacks:index:Other"):
        construct("x", "slurm-stacks:index:Other", {})


# --- the same on every machine -----------------------------------------------------------------------------

DIGEST = """
import hashlib, json, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.support import component_program as t
made = t.declared({"train": lambda: t.everything(t.known), "small": lambda: t.SMALL})
print(json.dumps(t.everything_of(made), sort_keys=True))
"""


def test_another_engineers_checkout_registers_the_same_inputs(tmp_path: Path) -> None:
    """Another folder, another home: equal byte for byte. An archive's name is the digest of its content."""
    user = tmp_path / "another user"
    checkout = user / "work" / "clone"
    checkout.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in (".git", ".slurm-stacks"):
            (checkout / entry.name).symlink_to(entry)
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        cwd=checkout,
        env={"HOME": str(user), "PATH": "/usr/bin:/bin", "USER": "another"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(user) not in done.stdout
    assert str(ROOT) not in done.stdout
    here = declared({"train": lambda: everything(known), "small": lambda: SMALL})
    assert done.stdout == json.dumps(everything_of(here), sort_keys=True) + "\n"
