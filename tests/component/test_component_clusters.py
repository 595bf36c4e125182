"""Clusters as components of a program, by the provider's own answers: names, arguments, outputs of others."""

from __future__ import annotations

import asyncio
import functools
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
from pulumi.runtime import mocks

from component.arguments import Given, Program, read
from component.provider import TOKEN, ClusterProvider
from infra.config import ConfigError, load_file
from infra.program import mode
from infra.program.stand_ins import MARK
from tests.component.test_component_schema import SHIPPED, in_schema
from tests.support.aws_machines import Machines as Aws
from tests.support.checkout import ROOT
from tests.support.gcp_machines import Machines as Gcp
from tests.support.recorder import Recorder, run

VPC, PUBLIC, NODES = "vpc-0123456789abcdef0", "subnet-0123456789abcdef1", "subnet-0123456789abcdef2"
GROUP, FILES, KEY = "sg-0123456789abcdef0", "fs-0123456789abcdef0", "my-key"
KMS = "arn:aws:kms:eu-west-1:123456789012:key/12345678-1234-1234-1234-123456789012"
CPU = {"name": "cpu", "instanceType": "m5.xlarge", "nodes": {"max": 4.0}, "diskGib": 60.0}
SMALL: dict[str, Any] = {"provider": "aws", "network": {"zones": ["eu-west-1b"]}, "partitions": [CPU]}


PRINTED = {"login": "x", "controller": "x:1", "scheduler_version": "slurm 1", "shared": "/s"}


class Cloud(mocks.Mocks):
    """Both clouds, for clusters of any name."""

    def __init__(self) -> None:
        subnets = dict.fromkeys((PUBLIC, NODES), "eu-west-1b")
        self._aws, self._gcp = Aws(subnets=subnets), Gcp(machines={"europe-west4-a": {"n1-standard-2": 2}})
        self.invokes: list[mocks.MockCallArgs] = []

    def new_resource(self, args: mocks.MockResourceArgs) -> Any:
        if args.typ == "command:local:Command" and args.inputs.get("create", "").startswith(
            "operations.local"
        ):
            return "x", {**args.inputs, "stdout": json.dumps(PRINTED)}
        return (self._gcp if args.typ.startswith("gcp:") else self._aws).new_resource(args)

    def call(self, args: mocks.MockCallArgs) -> Any:
        self.invokes.append(args)
        if args.token == "aws:ec2/getSubnets:getSubnets":
            return {"ids": [], "id": "x"}
        return (self._gcp if args.token.startswith("gcp:") else self._aws).call(args)


def declared(
    clusters: Mapping[str, Callable[[], Mapping[str, Any]]],
    *,
    preview: bool = False,
    seen: dict[str, Any] | None = None,
    opts: pulumi.ResourceOptions | None = None,
) -> Recorder:
    """Declare clusters in one program; a function returns the arguments of each, with outputs in them."""
    recorder = Recorder(Cloud())
    told = {} if seen is None else seen

    def program() -> Any:
        pulumi_config.set_all_config({"aws:region": "eu-west-1"})
        made = []
        for name, inputs in clusters.items():
            result = ClusterProvider().construct(name, TOKEN, inputs(), opts)
            found = pulumi.Output.all(urn=result.urn, **result.state)
            made.append(found.apply(functools.partial(told.__setitem__, name)))
        return pulumi.Output.all(*made)

    run(recorder, program, preview=preview)
    return recorder


def inputs(made: Recorder, name: str) -> dict[str, Any]:
    """Return a resource's inputs, with the files of assets by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, pulumi.FileAsset):
            return Path(str(value.path)).name
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    found: dict[str, Any] = plain(made.inputs(name))
    return found


def everything_of(made: Recorder) -> dict[str, dict[str, Any]]:
    return {name: inputs(made, name) for name in made.types()}


def known(value: Any) -> pulumi.Output[Any]:
    return pulumi.Output.from_input(value)


def unknown(_value: Any) -> pulumi.Output[Any]:
    never: asyncio.Future[Any] = asyncio.Future()
    false: asyncio.Future[bool] = asyncio.Future()
    never.set_result(pulumi.output.UNKNOWN)
    false.set_result(False)
    return pulumi.Output(set(), never, false)


def everything(of: Callable[[Any], Any]) -> dict[str, Any]:
    """A cluster's arguments of which all come from other resources that may."""
    return {
        "provider": "aws",
        "access": {"mode": "ssm", "key": of(KEY)},
        "aws": {"kmsKey": of(KMS)},
        "network": {
            "zones": ["eu-west-1b"],
            "aws": {"vpc": of(VPC), "publicSubnet": of(PUBLIC), "privateSubnets": [of(NODES)]},
        },
        "partitions": [CPU],
        "storage": {
            "home": {"kind": "efs", "existing": of(FILES), "securityGroup": of(GROUP)},
            "scratch": {"kind": "fsx_lustre", "sizeGib": 1200.0, "s3Import": of("s3://my-data/sets/one")},
            "buckets": [{"bucket": of("s3://my-bucket/sets"), "path": "/data"}],
        },
        "benchmark": {"enabled": False},
    }


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
        made = declared({"one": lambda: local, "two": lambda: local})
    finally:
        mode.FOLDER.reset(mode_token)
    stacks = {made.inputs(f"{name}-head")["create"].rpartition("--stack ")[2] for name in ("one", "two")}
    assert stacks == {"test.one", "test.two"}


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
        result = ClusterProvider().construct("train", TOKEN, {**SMALL, "region": "eu-west-1"}, opts)
        return result.urn

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


# --- outputs of other resources ----------------------------------------------------------------------------


def test_outputs_reach_every_resource_as_their_values() -> None:
    given = declared({"train": lambda: everything(lambda value: value)})
    through = declared({"train": lambda: everything(known)})
    assert MARK not in json.dumps(everything_of(through))
    assert everything_of(through) == everything_of(given), "as if the values were written there"


def test_a_preview_with_unknown_outputs_has_the_same_resources() -> None:
    preview = declared({"train": lambda: everything(unknown)}, preview=True)
    up = declared({"train": lambda: everything(known)})
    assert preview.types() == up.types()
    assert MARK not in json.dumps(everything_of(preview), default=str)
    assert preview.inputs("train-network-compute").get("vpcId") is None, "not known"


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
    given = in_schema({**cluster, **({"benchmark": benchmark} if benchmark else {})})
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


def test_an_output_where_names_depend_on_the_value_is_one_clear_mistake() -> None:
    unknown_name = Given(pulumi.Output.from_input("x"), known=False)
    found = refused({**SMALL, "partitions": [{**CPU, "name": unknown_name}]})
    assert {*found} == {"partitions[0].name"}
    text = found["partitions[0].name"]
    assert "[component.unknown]" in text
    assert "an Output that is not known in a preview" in text
    assert "pulumi config" in text


def test_an_output_that_is_known_is_its_value_where_a_value_must_be_known() -> None:
    name = Given(pulumi.Output.from_input("x"), known=True, value="x")
    given = {**SMALL, "partitions": [{**CPU, "name": name}]}
    config, _ = read("train", given, HERE)
    assert config.cluster.partitions[0].name == "x"


def test_a_secret_is_refused() -> None:
    secret = Given(pulumi.Output.from_input("x"), known=True, value="x", secret=True)
    found = refused({**SMALL, "access": {"key": secret}})
    assert "[component.secret]" in found["access.key"]


def test_the_zones_of_subnets_that_nobody_knows_yet_are_asked_for() -> None:
    subnet = Given(pulumi.Output.from_input(NODES), known=False)
    network = {"aws": {"vpc": VPC, "publicSubnet": PUBLIC, "privateSubnets": [subnet]}}
    found = refused({**SMALL, "network": network})
    assert {*found} == {"network.zones"}
    assert "the zone of each of network.aws.private_subnets, in their order" in found["network.zones"]


@pytest.mark.parametrize(
    ("program", "region", "told"),
    [
        (HERE, "us-east-1", "the program's aws:region, eu-west-1"),
        (Program("dev", ROOT, {}), "us-east-1", "nothing without a provider"),
        (
            Program("dev", ROOT, {"aws:region": "eu-west-1"}, frozenset({"aws"})), None,
            "the region of the aws provider that the component is given",
        ),
    ],
)  # fmt: skip
def test_the_region_is_that_of_the_provider(program: Program, region: str | None, told: str) -> None:
    network = {"zones": [f"{region or 'eu-west-1'}b"]}
    found = refused({**SMALL, "network": network, "region": region}, program)
    assert {*found} == {"region"}
    assert told in found["region"]


def test_a_mistake_reaches_the_engine_as_one_message() -> None:
    with pytest.raises(InputPropertiesError) as caught:
        declared({"train": lambda: {**SMALL, "budgt": {}}})
    assert caught.value.message.startswith("SlurmCluster train: 1 mistake.\n\nbudgt [key.unknown]")
    assert caught.value.errors == [], "the engine would print the values, also those that are no plain ones"


def test_the_package_has_one_type() -> None:
    with pytest.raises(ValueError, match="the package has no slurm-stacks:index:Other"):
        ClusterProvider().construct("x", "slurm-stacks:index:Other", {})


# --- the same on every machine -----------------------------------------------------------------------------

DIGEST = """
import hashlib, json, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.component import test_component_clusters as t
made = t.declared({"train": lambda: t.everything(t.known), "small": lambda: t.SMALL})
print(json.dumps(t.everything_of(made), sort_keys=True))
"""


def test_another_engineers_checkout_registers_the_same_inputs(tmp_path: Path) -> None:
    """Another folder, another home: equal byte for byte. An archive's name is the digest of its content."""
    found = []
    for number in (1, 2):
        user = tmp_path / f"user {number}"
        checkout = user / "work" / f"clone{number}"
        checkout.mkdir(parents=True)
        for entry in ROOT.iterdir():
            if entry.name not in (".git", ".slurm-stacks"):
                (checkout / entry.name).symlink_to(entry)
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=checkout,
            env={"HOME": str(user), "PATH": "/usr/bin:/bin", "USER": f"user{number}"},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert str(user) not in done.stdout
        assert str(ROOT) not in done.stdout
        found.append(done.stdout)
    assert found[0] == found[1]
