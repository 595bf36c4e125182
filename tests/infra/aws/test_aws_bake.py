"""Baked images have exactly these resources and values, are named by their content, and go with their
recipe."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import botocore.session
import pulumi
import pytest
import yaml
from botocore.validate import ParamValidator
from pulumi.runtime import mocks

from cli.commands.operate import make_plan
from infra.aws import bake, policies
from infra.aws.bake import AwsImages
from infra.aws.cluster import AwsCluster
from infra.aws.launch_templates import ImageBuild
from infra.config import load_file
from infra.program.stack import Stack
from node.bootstrap.vm import images
from node.design.accelerators import Accelerator
from node.design.model import AwsSettings, ClusterDesign, Image, Partition
from operations.aws import __main__
from tests.support.aws_machines import AMI, Machines
from tests.support.aws_mocks import ACCOUNT, CONTROLLER, CPU, GPU, LOGIN, NFS, aws_design, declare
from tests.support.aws_rules import weaknesses
from tests.support.checkout import ROOT
from tests.support.iam import allowed
from tests.support.operation_lines import operation_words
from tests.support.recorder import Recorder, counts

BAKE = Image("ubuntu-24.04", bake=True)
V100 = dataclasses.replace(GPU, accelerator=Accelerator("v100", 8))
MORE = Partition("more", "m5.large", 8, 15000, 0, 10, disk_gib=10)
DESIGN = aws_design(image=BAKE, partitions=(CPU, V100, MORE))
KINDS = ["controller", "compute", "compute-nvidia-closed-efa"]
IMAGE_BUILD = ImageBuild("image-profile", "sg-image", "subnet-a", "bucket-1", AMI)
MODEL = botocore.session.get_session().get_service_model("imagebuilder")
EACH = {
    "aws:imagebuilder/image:Image",
    "aws:imagebuilder/imageRecipe:ImageRecipe",
    "aws:imagebuilder/component:Component",
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration",
    "command:local:Command",
}


class Builder(Machines):
    """Works as `Machines`, and gives each build an image of its own."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        identity, known = super().new_resource(args)
        if not self._preview and args.typ == "aws:imagebuilder/image:Image":
            known["outputResources"] = [{"amis": [{"image": f"ami-of-{args.name}", "region": "eu-west-1"}]}]
        return identity, known


def baked(
    design: ClusterDesign = DESIGN, image_build: ImageBuild = IMAGE_BUILD, *, preview: bool = False
) -> tuple[Recorder, dict[str, Mapping[str, Any]]]:
    seen: list[dict[str, Mapping[str, Any]]] = []

    def program() -> None:
        made = AwsImages("b", design, image_build, [], {})
        pulumi.Output.all(**{k: pulumi.Output.all(**v) for k, v in made.images.items()}).apply(seen.append)

    made = declare(program, preview=preview, aws=Builder(preview=preview))
    return made, seen[0] if seen else {}


def whole(design: ClusterDesign, *, preview: bool = False) -> Recorder:
    return declare(lambda: AwsCluster("c", design), preview=preview, aws=Builder(preview=preview))


@pytest.fixture(scope="module")
def cluster() -> Recorder:
    return whole(DESIGN)


def digests(recorder: Recorder) -> dict[str, str]:
    """kind -> the name of its recipe."""
    names = [name for name, kind in recorder.types().items() if kind == "aws:imagebuilder/image:Image"]
    return {name.removeprefix("b-"): recorder.inputs(f"{name}-recipe")["name"] for name in names}


@pytest.mark.parametrize("preview", [False, True])
def test_an_image_a_kind_and_what_builds_it(preview: bool) -> None:
    made, _ = baked(preview=preview)
    assert counts(made) == {
        "slurm-stacks:index:AwsImages": 1,
        "aws:cloudwatch/logGroup:LogGroup": 1,
        "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": 1,
        **dict.fromkeys(EACH, len(KINDS)),
    }
    assert sorted(digests(made)) == sorted(KINDS)
    assert {parent for name, parent in made.parents().items() if name != "b"} == {"b"}
    assert made.closed.count("b") == 1


def test_each_machine_starts_from_the_image_of_its_kind() -> None:
    design = dataclasses.replace(DESIGN, hosts=(CONTROLLER, LOGIN))
    _, found = baked(design)
    assert found == {
        "controller": {"controller": "ami-of-b-controller"},
        "login": {"login-0": "ami-of-b-login"},
        "compute": {
            "cpu": "ami-of-b-compute",
            "more": "ami-of-b-compute",
            "gpu": "ami-of-b-compute-nvidia-closed-efa",
        },
    }


@pytest.mark.parametrize("preview", [False, True])
def test_a_cluster_starts_its_machines_from_them(preview: bool) -> None:
    own = dataclasses.replace(MORE, image="ami-own")
    made = whole(dataclasses.replace(DESIGN, partitions=(CPU, V100, own)), preview=preview)
    if not preview:
        assert made.inputs("c-launch-templates-cpu")["imageId"] == "ami-of-c-images-compute"
        assert made.inputs("c-launch-templates-gpu")["imageId"] == "ami-of-c-images-compute-nvidia-closed-efa"
        assert made.inputs("c-head-controller")["ami"] == "ami-of-c-images-controller"
    assert made.inputs("c-launch-templates-more")["imageId"] == "ami-own"
    assert made.after("c-launch-templates-cpu") >= {"c-images-compute"}


def test_a_build_has_what_it_needs_before_it_starts(cluster: Recorder) -> None:
    made = cluster
    after = made.after("c-images-compute")
    assert after >= {"c-bundle-image", "c-identity-image-policy", "c-network-private-route"}
    assert not after & {"c-bundle-current", "c-bundle-settings"}, (
        "those know the templates, which know the image"
    )
    assert (
        json.loads(made.inputs("c-bundle-image")["content"])["code"]["key"]
        == made.inputs("c-bundle-code")["key"]
    )
    assert made.inputs("c-bundle-image")["key"] == "image.json"
    assert made.after("c-bundle-image") >= {"c-bundle-code", "c-bundle-loader", "c-bundle-image-settings"}


def test_all_of_it_goes_after_the_termination_and_each_rest_after_its_image(cluster: Recorder) -> None:
    made = cluster
    bake_parts = {name for name in made.types() if name.startswith("c-images-")}
    assert made.after("c-termination") >= bake_parts
    for kind in KINDS:
        image, end = f"c-images-{kind}", f"c-images-{kind}-cleanup"
        assert end in made.after(image), "the engine forgets the image before its AMI goes"
        assert f"{image}-recipe" in made.after(end), "a recipe stays until nothing is built by it"


def test_a_stack_that_bakes_none_has_nothing_of_it() -> None:
    made = whole(aws_design())
    assert not [name for name in made.types() if "bake" in name or "image" in name]


@pytest.mark.parametrize(
    ("stack", "wanted"),
    [
        ("aws-cpu", {"controller", "compute"}),
        ("aws-gpu", {"controller", "compute-nvidia-closed-efa", "compute-nvidia-open"}),
    ],
)
def test_a_plan_shows_them_and_is_without_weakness(tmp_path: Path, stack: str, wanted: set[str]) -> None:
    for name in ("Pulumi.yaml", "__main__.py"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    content = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())
    content["config"]["slurm-stacks:cluster"].setdefault("image", {})["bake"] = True
    (tmp_path / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump(content))
    plan = make_plan(
        Stack(tmp_path, stack),
        load_file(tmp_path / f"Pulumi.{stack}.yaml"),
    )
    types = {r["name"]: r["type"] for r in plan["resources"]}
    shown = {name for name, kind in types.items() if kind == "aws:imagebuilder/image:Image"}
    assert shown == {f"{stack}-images-{kind}" for kind in wanted}
    assert weaknesses(plan["resources"]) == []
    untagged = [
        r["name"]
        for r in plan["resources"]
        if r["type"].startswith("aws:imagebuilder/") and r["inputs"]["tags"]["slurm-stacks:cluster"] != stack
    ]
    assert untagged == []
    recipe = next(r for r in plan["resources"] if r["name"] == f"{stack}-images-controller-recipe")
    assert recipe["inputs"]["name"] == f"{stack}-controller-<digest>", "no made-up digest"


# --- what makes a new image -------------------------------------------------------------------------------


def test_the_same_recipe_is_the_same_image() -> None:
    assert digests(baked()[0]) == digests(baked()[0])
    busy = dataclasses.replace(
        CPU, max=99, min=3, price_hour=9.0, time_limit="1:00", instance_type="m5.2xlarge"
    )
    other = dataclasses.replace(DESIGN, partitions=(busy, V100, MORE), budget=DESIGN.budget)
    assert digests(baked(other)[0]) == digests(baked()[0])


@pytest.mark.parametrize(
    "other",
    [
        (DESIGN, dataclasses.replace(IMAGE_BUILD, parent="ami-2")),
        (dataclasses.replace(DESIGN, image=Image(id=AMI, bake=True)), IMAGE_BUILD),
        (DESIGN, dataclasses.replace(IMAGE_BUILD, bucket="bucket-2")),
    ],
)
def test_another_beginning_is_another_image(other: tuple[ClusterDesign, ImageBuild]) -> None:
    before, after = digests(baked()[0]), digests(baked(*other)[0])
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_what_cannot_change_has_a_name_of_its_content() -> None:
    """Image Builder refuses other content under the same name and version."""
    first, second = baked()[0], baked(image_build=dataclasses.replace(IMAGE_BUILD, parent="ami-2"))[0]
    for part in ("component", "recipe"):
        own, its = first.inputs(f"b-compute-{part}"), second.inputs(f"b-compute-{part}")
        assert own["name"] != its["name"]
        assert own["version"] == its["version"] == "1.0.0"
    assert first.inputs("b-compute-cleanup")["triggers"] == [first.inputs("b-compute-recipe")["name"]]


def test_a_smaller_disk_has_a_smaller_image_and_an_own_one_its_own_size() -> None:
    def size(made: Recorder, kind: str) -> Any:
        ((only),) = made.inputs(f"b-{kind}-recipe")["blockDeviceMappings"]
        return only["ebs"].get("volumeSize"), only["deviceName"]

    made, _ = baked()
    assert size(made, "compute") == (10, "/dev/sda1"), "partition more has 10 GiB"
    assert size(made, "controller") == (bake.DISK_GIB, "/dev/sda1")
    made, _ = baked(dataclasses.replace(DESIGN, image=Image(id="ami-2", bake=True)))
    assert size(made, "compute") == (None, "/dev/of-ami-2")


# --- what Image Builder takes -----------------------------------------------------------------------------

NAMES = {
    "version": "semanticVersion",
    "componentArn": "componentArn",
    "imageRecipeArn": "imageRecipeArn",
    "systemsManagerAgent": "additionalInstanceConfiguration",
}
REQUESTS = {
    "aws:imagebuilder/image:Image": "CreateImageRequest",
    "aws:imagebuilder/imageRecipe:ImageRecipe": "CreateImageRecipeRequest",
    "aws:imagebuilder/component:Component": "CreateComponentRequest",
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": (
        "CreateDistributionConfigurationRequest"
    ),
    "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": (
        "CreateInfrastructureConfigurationRequest"
    ),
}


def request(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The request that the provider sends for a resource's inputs."""
    sent = {NAMES.get(key, key): whole_numbers(value) for key, value in inputs.items()}
    if agent := sent.pop("additionalInstanceConfiguration", None):
        sent["additionalInstanceConfiguration"] = {
            "systemsManagerAgent": {"uninstallAfterBuild": agent["uninstallAfterBuild"]}
        }
    for mapping in sent.get("blockDeviceMappings", []):
        for flag in ("encrypted", "deleteOnTermination"):
            mapping["ebs"][flag] = {"true": True, "false": False}[mapping["ebs"][flag]]
    return {**sent, "clientToken": "x"}


def whole_numbers(value: Any) -> Any:
    """Turns whole numbers into integers: the engine has one kind of number."""
    if isinstance(value, dict):
        return {key: whole_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [whole_numbers(part) for part in value]
    return int(value) if isinstance(value, float) else value


def shapes(shape: Any, value: Any, path: str) -> list[str]:
    """The values that the service's model refuses and botocore lets pass: patterns and enumerations."""
    if shape.type_name == "structure":
        return [m for key, part in value.items() for m in shapes(shape.members[key], part, f"{path}.{key}")]
    if shape.type_name == "list":
        return [m for part in value for m in shapes(shape.member, part, f"{path}[]")]
    if shape.type_name == "map":
        return [m for part in value.values() for m in shapes(shape.value, part, f"{path}{{}}")]
    if isinstance(value, str) and value.startswith("arn:b-"):  # the mock's
        return []
    pattern = shape.metadata.get("pattern")
    if pattern and not re.fullmatch(pattern.strip("^$"), value):
        return [f"{path}: {value!r} is not {pattern}"]
    allowed_values = shape.metadata.get("enum")
    return (
        [f"{path}: {value!r} is none of {allowed_values}"]
        if allowed_values and value not in allowed_values
        else []
    )


def test_every_resource_is_as_the_services_model_has_it() -> None:
    made, _ = baked()
    asked = 0
    for name, kind in made.types().items():
        if kind not in REQUESTS:
            continue
        asked += 1
        shape, sent = MODEL.shape_for(REQUESTS[kind]), request(made.inputs(name))
        assert not ParamValidator().validate(sent, shape).has_errors(), (
            ParamValidator().validate(sent, shape).generate_report()
        )
        assert shapes(shape, sent, name) == []
        assert len(sent.get("data", "")) <= MODEL.shape_for("InlineComponentData").metadata["max"]
    assert asked == 4 * len(KINDS) + 1


def test_the_machine_is_private_and_as_closed_as_all_others() -> None:
    inputs = baked()[0].inputs("b-infrastructure")
    assert inputs["instanceMetadataOptions"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
    assert (inputs["subnetId"], inputs["securityGroupIds"]) == ("subnet-a", ["sg-image"])
    assert inputs["instanceProfileName"] == "image-profile"
    assert inputs["terminateInstanceOnFailure"] is True
    assert "keyPair" not in inputs
    assert inputs["instanceTypes"] == ["m5.large", "m5.xlarge"], "none with a GPU"
    reserved = {"CreatedBy", "Ec2ImageBuilderArn", "Name", "Tags"}
    assert not reserved & set(inputs["resourceTags"])
    assert inputs["resourceTags"]["slurm-stacks:role"] == "image"


def test_images_have_the_customers_key_and_another_name_with_another_key() -> None:
    keys = [f"arn:aws:kms:eu-west-1:123456789012:key/{n}2345678-1234-1234-1234-123456789012" for n in (1, 2)]
    names = {baked()[0].inputs(f"b-{KINDS[0]}-recipe")["name"]}
    for key in keys:
        recipe = baked(dataclasses.replace(DESIGN, aws=AwsSettings(kms_key=key)))[0].inputs(
            f"b-{KINDS[0]}-recipe"
        )
        assert [part["ebs"]["kmsKeyId"] for part in recipe["blockDeviceMappings"]] == [key]
        names.add(recipe["name"])
    assert len(names) == 3


def test_images_are_encrypted_and_carry_the_clusters_tag_from_their_first_moment() -> None:
    made, _ = baked()
    for kind in KINDS:
        recipe, (distribution,) = (
            made.inputs(f"b-{kind}-recipe"),
            made.inputs(f"b-{kind}-distribution")["distributions"],
        )
        assert [part["ebs"]["encrypted"] for part in recipe["blockDeviceMappings"]] == ["true"]
        ami = distribution["amiDistributionConfiguration"]
        assert ami["amiTags"] == recipe["amiTags"]
        assert (ami["amiTags"]["slurm-stacks:cluster"], ami["amiTags"]["slurm-stacks:recipe"]) == (
            "c",
            recipe["name"],
        )
        assert ami["amiTags"]["slurm-stacks:slurm"] == "23.11", "by which an older Slurm is refused"
        assert "{{ imagebuilder:buildDate }}" in ami["name"]
        assert not {"launchPermission", "targetAccountIds"} & set(ami), "nobody else's"
        assert made.inputs(f"b-{kind}")["loggingConfiguration"] == {"logGroupName": "/aws/imagebuilder/c"}


# --- what runs on it --------------------------------------------------------------------------------------

ACTIONS = {"ExecuteBash", "Reboot", "UpdateOS", "S3Download", "WebDownload", "CreateFile", "Assert"}
STEP_KEYS = {"name", "action", "timeoutSeconds", "onFailure", "maxAttempts", "inputs", "loop", "if"}


def script() -> str:
    document = yaml.safe_load(baked()[0].inputs("b-compute-component")["data"])
    (phase,) = document["phases"]
    (step,) = phase["steps"]
    (command,) = step["inputs"]["commands"]
    return str(command)


def test_the_document_has_the_shape_that_image_builder_reads() -> None:
    document = yaml.safe_load(baked()[0].inputs("b-compute-component")["data"])
    assert set(document) == {"name", "description", "schemaVersion", "phases"}
    assert document["schemaVersion"] == 1.0
    (phase,) = document["phases"]
    assert phase["name"] == "build"
    (step,) = phase["steps"]
    assert set(step) <= STEP_KEYS
    assert step["action"] in ACTIONS
    assert step["onFailure"] in {"Abort", "Continue", "Ignore"}
    assert (step["maxAttempts"], step["timeoutSeconds"]) == (1, bake.STEP_SECONDS)


def test_the_script_is_the_machines_first_code_and_ends_as_the_role_does(tmp_path: Any) -> None:
    text = script()
    assert "{{" not in text, "Image Builder would fill it in"
    start = (ROOT / "node" / "aws" / "run_loader.py").read_text()
    assert start in text
    last = text.strip().splitlines()[-1]
    assert last == (
        "exec /usr/bin/python3 /opt/slurm-stacks/run_loader.py --bucket bucket-1 --region eu-west-1 "
        "--cluster c --role image --host image-compute"
    )
    # The exit status is the step's. 194 asks for a restart.
    mine = text.replace("/opt/slurm-stacks", str(tmp_path)).replace(
        last.partition(" --")[0].replace("/opt/slurm-stacks", str(tmp_path)), "exec sh -c 'exit 194'"
    )
    assert subprocess.run(["bash", "-c", mine], check=False).returncode == 194
    assert (tmp_path / "run_loader.py").read_text() == start


def test_the_role_reads_the_code_reports_and_has_no_secret() -> None:
    scope = policies.Scope(
        "aws", "eu-west-1", ACCOUNT, "arn:aws:s3:::b", "arn:secret", "arn:log", "arn:role", [], []
    )
    document = policies.image(scope, DESIGN)
    place = f"eu-west-1:{ACCOUNT}"
    component = f"arn:aws:imagebuilder:{place}:component/{digests(baked()[0])['compute']}/1.0.0/1"
    for action, resource in (
        ("s3:GetObject", "arn:aws:s3:::b/loader.py"),
        ("s3:GetObject", "arn:aws:s3:::b/image.json"),
        ("s3:GetObject", "arn:aws:s3:::b/code/1.zip"),
        ("s3:GetObject", "arn:aws:s3:::b/settings/1.json"),
        ("s3:PutObject", "arn:aws:s3:::b/boot/image-compute.json"),
        ("imagebuilder:GetComponent", component),
        ("logs:PutLogEvents", f"arn:aws:logs:{place}:log-group:/aws/imagebuilder/c:log-stream:1"),
        ("ssm:UpdateInstanceInformation", "arn:aws:ec2:x"),
        ("ec2messages:GetMessages", "*"),
    ):
        assert allowed(document, action, resource, {}), action
    for action, resource in (
        ("secretsmanager:GetSecretValue", "arn:secret"),
        ("s3:GetObject", "arn:aws:s3:::b/current.json"),
        ("s3:PutObject", "arn:aws:s3:::b/boot/controller.json"),
        ("s3:PutObject", "arn:aws:s3:::b/code/1.zip"),
        ("ec2:RunInstances", "*"),
        ("logs:PutLogEvents", "arn:log"),
    ):
        assert not allowed(document, action, resource, {}), action


def test_what_ends_an_image_is_a_command_that_there_is() -> None:
    made, _ = baked()
    module, *words = operation_words(made.inputs("b-compute-cleanup"), "delete")
    assert module == "operations.aws"
    options = __main__.parse(words)
    assert (options.verb, options.cluster, options.region) == ("unbake", "c", "eu-west-1")
    assert options.recipe == digests(made)["compute"]


def test_a_machine_that_becomes_an_image_is_reached_by_nobody(cluster: Recorder) -> None:
    made = cluster
    rules = [
        name
        for name, kind in made.types().items()
        if kind.endswith("Rule") and "c-network-image-id" in str(made.inputs(name))
    ]
    assert rules == ["c-network-image-out-0-0-0-0-0-all"]


def test_names_are_short_enough_for_a_role_and_an_image() -> None:
    long = dataclasses.replace(DESIGN, name="c" * 40, mounts=NFS)
    for kind in images.kinds(long):
        assert len(f"{long.name}-{kind.name}-12345678") <= 127
