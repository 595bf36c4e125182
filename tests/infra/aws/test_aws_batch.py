"""An AWS Batch stack: its exact resources, what botocore's models say of them, and what its roles may do."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import json
import re
import subprocess
from collections.abc import Mapping
from email import message_from_string
from pathlib import Path
from typing import Any

import botocore.session
import pulumi
import pytest
import yaml
from botocore.validate import ParamValidator

from cli.commands.operate import make_plan
from cli.console.plan import show_plan
from infra import outputs
from infra.aws import bake
from infra.aws.batch import definition, policies
from infra.aws.batch.bake import script
from infra.aws.batch.cluster import BatchCluster
from infra.aws.batch.definition import LARGE, ImageRequest, content_tag, layers_tag
from infra.aws.batch.environment import USER_DATA_LIMIT, user_data
from infra.config import load_file
from infra.program.stack import Stack
from node.bootstrap.vm import images
from node.design.batch import CACHING_GIB
from tests.support.aws_machines import AMI
from tests.support.aws_mocks import ACCOUNT, declare
from tests.support.aws_rules import weaknesses
from tests.support.batch_aws import IMAGE, BatchAws
from tests.support.batch_stack import batch_design as stack
from tests.support.checkout import ROOT
from tests.support.iam import allowed
from tests.support.recorder import Recorder, counts, custom, needs

MODEL = botocore.session.get_session().get_service_model("batch")
LOGS = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/slurm-stacks/aws-batch"
REPOSITORY = f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/mnp-tensorflow"
SCOPE = policies.Scope("aws", "us-east-1", ACCOUNT, LOGS, REPOSITORY)
RULE = "aws:vpc/securityGroup{way}Rule:SecurityGroup{way}Rule"


OWN_IMAGE = dataclasses.replace(
    stack(container_image="train:1", repository=None, job_role=f"arn:aws:iam::{ACCOUNT}:role/mine"),
    image=dataclasses.replace(stack().image, id=AMI, bake=False),
)
STOCK = dataclasses.replace(OWN_IMAGE, image=dataclasses.replace(OWN_IMAGE.image, id=None))


@functools.cache
def _declared(name: str, preview: bool) -> tuple[Recorder, list[Any]]:
    seen: list[Any] = []

    def program() -> Any:
        batch_cluster = BatchCluster("c", VARIANTS[name])
        return pulumi.Output.all(**batch_cluster.inventory).apply(seen.append)

    return declare(program, preview=preview, aws=BatchAws(preview=preview)), seen


VARIANTS = {"published": stack(), "own": OWN_IMAGE, "stock": STOCK}
SHARED = {
    "slurm-stacks:index:BatchCluster": 1,
    "slurm-stacks:index:AwsNetwork": 1,
    "slurm-stacks:index:AwsLogs": 1,
    "slurm-stacks:index:AwsStorage": 1,
    "slurm-stacks:index:BatchIdentity": 1,
    "slurm-stacks:index:BatchEnvironment": 1,
    "slurm-stacks:index:BatchDefinition": 1,
    "aws:ec2/vpc:Vpc": 1,
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": 1,
    "aws:ec2/internetGateway:InternetGateway": 1,
    "aws:ec2/natGateway:NatGateway": 1,
    "aws:ec2/eip:Eip": 1,
    "aws:ec2/subnet:Subnet": 2,
    "aws:ec2/routeTable:RouteTable": 2,
    "aws:ec2/route:Route": 2,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": 2,
    "aws:ec2/vpcEndpoint:VpcEndpoint": 1,
    "aws:ec2/securityGroup:SecurityGroup": 2,
    RULE.format(way="Ingress"): 7,
    RULE.format(way="Egress"): 6,
    "aws:cloudwatch/logGroup:LogGroup": 1,
    "aws:fsx/lustreFileSystem:LustreFileSystem": 1,
    "aws:iam/role:Role": 1,
    "aws:iam/rolePolicy:RolePolicy": 1,
    "aws:iam/instanceProfile:InstanceProfile": 1,
    "aws:ec2/placementGroup:PlacementGroup": 1,
    "aws:ec2/launchTemplate:LaunchTemplate": 1,
    "aws:batch/computeEnvironment:ComputeEnvironment": 1,
    "aws:batch/jobQueue:JobQueue": 1,
    "aws:batch/jobDefinition:JobDefinition": 1,
    "command:local:Command": 1,
}
BUILT = {
    "slurm-stacks:index:BatchRepository": 1,
    "aws:ecr/repository:Repository": 1,
    "slurm-stacks:index:BatchBake": 1,
    "slurm-stacks:index:AwsImages": 1,
    "slurm-stacks:index:Bundle": 1,
    "slurm-stacks:index:AwsBucket": 1,
    "aws:s3/bucket:Bucket": 1,
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": 1,
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": 1,
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": 1,
    "aws:s3/bucketPolicy:BucketPolicy": 1,
    "aws:s3/bucketObjectv2:BucketObjectv2": 4,
    "aws:imagebuilder/image:Image": 1,
    "aws:imagebuilder/imageRecipe:ImageRecipe": 1,
    "aws:imagebuilder/component:Component": 1,
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": 1,
    "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": 1,
    # The roles of jobs and of the image's machine. The commands: the image's push, and a recipe's removal.
    "aws:iam/role:Role": 2,
    "aws:iam/rolePolicy:RolePolicy": 1,
    "aws:iam/instanceProfile:InstanceProfile": 1,
    "aws:cloudwatch/logGroup:LogGroup": 1,
    "aws:ec2/securityGroup:SecurityGroup": 1,
    RULE.format(way="Egress"): 1,
    "command:local:Command": 2,
}


# --- resources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_stack_is_exactly_these_resources(name: str, preview: bool) -> None:
    more = BUILT if name == "published" else {}
    wanted = {kind: SHARED.get(kind, 0) + more.get(kind, 0) for kind in SHARED | more}
    assert counts(_declared(name, preview)[0]) == wanted


def test_a_destroy_ends_the_jobs_first() -> None:
    """Everything that jobs need goes after the command that ends them and exports the file system."""
    made = _declared("published", False)[0]
    below = needs(made)["c-termination"]
    jobs = {
        "c-environment-compute",
        "c-environment-queue",
        "c-definition-job",
        "c-environment-launch-template",
    }
    assert below >= jobs | {"c-storage-fsx", "c-environment-placement-group", "c-identity-machine-policy"}
    assert not [name for name in custom(made) if "c-termination" in needs(made)[name]]
    command = made.inputs("c-termination")["delete"]
    assert "operations.aws.batch end --stack aws-batch" in command
    assert "--queue tf-queue --environment tensorflow-gpu-fsx-ce" in command


def test_the_environment_is_the_published_one() -> None:
    made = _declared("published", False)[0]
    environment = made.inputs("c-environment-compute")
    of = environment["computeResources"]
    assert (environment["name"], environment["type"], environment["state"]) == (
        "tensorflow-gpu-fsx-ce", "MANAGED", "ENABLED",
    )  # fmt: skip
    assert (of["minVcpus"], of["desiredVcpus"], of["maxVcpus"]) == (0, 0, 4096)
    assert (of["type"], of["instanceTypes"], of["imageId"]) == ("EC2", ["p3dn.24xlarge"], "ami-baked")
    assert made.inputs("c-environment-placement-group")["name"] == "tf-group"
    assert of["tags"]["Name"] == "tensorflow-gpu-fsx-processor"
    assert of["tags"]["slurm-stacks:cluster"] == "aws-batch"
    assert of["launchTemplate"] == {"launchTemplateId": "c-environment-launch-template-id", "version": "3"}
    assert "serviceRole" not in environment, "Batch's service-linked role"
    policy = environment["updatePolicy"]
    # The provider's validator stands between us and the API: IntBetween(1, 360), in all of its releases.
    assert policy == {"terminateJobsOnUpdate": False, "jobExecutionTimeoutMinutes": 360}
    request = {"computeEnvironment": "c", "updatePolicy": {k: int(v) if v else v for k, v in policy.items()}}
    assert errors("UpdateComputeEnvironment", request) == ""
    limit = MODEL.shape_for("UpdatePolicy").members["jobExecutionTimeoutMinutes"].documentation
    assert "The maximum value is 7200" in re.sub("<[^>]+>", "", limit)
    queue = made.inputs("c-environment-queue")
    assert (queue["name"], queue["state"]) == ("tf-queue", "ENABLED")
    repository = made.inputs("c-repository-images")
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}


def test_batchs_own_images_are_asked_for_by_type_and_never_for_a_v100() -> None:
    resources = _declared("stock", False)[0].inputs("c-environment-compute")["computeResources"]
    assert resources["ec2Configurations"] == [{"imageType": "ECS_AL2023_NVIDIA"}]
    assert "imageId" not in resources
    types = MODEL.shape_for("Ec2Configuration").members["imageType"].documentation
    assert "ECS_AL2023_NVIDIA doesn't support" in re.sub("<[^>]+>", "", html.unescape(types))
    template = _declared("stock", False)[0].inputs("c-environment-launch-template")
    assert template["blockDeviceMappings"][0]["deviceName"] == "/dev/xvda"


# --- the job definition -----------------------------------------------------------------------------------


def registered(name: str) -> dict[str, Any]:
    """Return the job definition as `RegisterJobDefinition` gets it."""
    inputs = _declared(name, False)[0].inputs("c-definition-job")
    return {
        "jobDefinitionName": inputs["name"],
        "type": inputs["type"],
        "nodeProperties": json.loads(inputs["nodeProperties"]),
        # The engine's numbers are floats.
        "retryStrategy": {"attempts": int(inputs["retryStrategy"]["attempts"])},
        "tags": inputs["tags"],
    }


def errors(operation: str, request: Mapping[str, Any]) -> str:
    """Return botocore's complaints about a request."""
    shape = MODEL.operation_model(operation).input_shape
    return str(ParamValidator().validate(request, shape).generate_report())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_definition_is_one_that_the_api_takes(name: str) -> None:
    assert errors("RegisterJobDefinition", registered(name)) == ""
    wrong = registered(name)
    wrong["nodeProperties"]["numNodes"] = "20"
    assert "numNodes" in errors("RegisterJobDefinition", wrong)


def test_the_definition_is_the_published_one() -> None:
    (nodes,) = registered("published")["nodeProperties"]["nodeRangeProperties"]
    properties = registered("published")["nodeProperties"]
    assert (properties["numNodes"], properties["mainNode"], nodes["targetNodes"]) == (20, 0, "0:")
    container = nodes["container"]
    assert container["image"] == IMAGE, "by digest"
    assert {one["type"]: one["value"] for one in container["resourceRequirements"]} == {
        "VCPU": "62", "MEMORY": "424000", "GPU": "8",
    }  # fmt: skip
    environment = {one["name"]: one["value"] for one in container["environment"]}
    assert {key: environment[key] for key in ("SCRATCH_DIR", "JOB_DIR", "BATCH_SIZE", "MPI_GPUS")} == {
        "SCRATCH_DIR": "/scratch", "JOB_DIR": "/fsx/resized", "BATCH_SIZE": "256", "MPI_GPUS": "160",
    }  # fmt: skip
    assert environment["EXTRA_MPI_PARAMS"].startswith("-x HOROVOD_HIERARCHICAL_ALLREDUCE=1 -x HOROVOD_FUSION")
    names = {one["name"]: one["host"]["sourcePath"] for one in container["volumes"]}
    mounted = {names[one["sourceVolume"]]: one["containerPath"] for one in container["mountPoints"]}
    assert mounted == {"/scratch": "/scratch", "/fsx": "/fsx"}
    assert container["ulimits"] == [{"name": "memlock", "hardLimit": -1, "softLimit": -1}]
    assert container["linuxParameters"] == {"sharedMemorySize": 53000, "devices": []}
    assert container["logConfiguration"]["options"]["awslogs-group"] == "/slurm-stacks/aws-batch"
    assert container["instanceType"] == "p3dn.24xlarge"
    assert registered("published")["retryStrategy"] == {"attempts": 1}


def test_with_efa_the_container_has_its_devices_and_the_machine_its_interface() -> None:
    made = definition.node_properties(stack(efa=1), IMAGE, "arn:role", "logs")
    (device,) = made["nodeRangeProperties"][0]["container"]["linuxParameters"]["devices"]
    assert device["hostPath"] == device["containerPath"] == "/dev/infiniband/uverbs0"
    request = {"jobDefinitionName": "j", "type": "multinode", "nodeProperties": made}
    assert errors("RegisterJobDefinition", request) == ""


# --- machines ---------------------------------------------------------------------------------------------


def test_the_user_data_is_mime_and_mounts_before_the_agent_starts() -> None:
    template = _declared("published", False)[0].inputs("c-environment-launch-template")
    text = base64.b64decode(template["userData"]).decode()
    assert len(text.encode()) < USER_DATA_LIMIT
    message = message_from_string(text)
    assert message.get_content_type() == "multipart/mixed"
    assert [part.get_content_type() for part in message.get_payload()] == ["text/x-shellscript"]  # type: ignore[union-attr]
    content = message.get_payload(0).get_payload()  # type: ignore[union-attr]
    assert isinstance(content, str)
    source = "c-storage-fsx.dns@tcp:/mounted"
    assert content.splitlines()[-1] == f"mount_one {source} /fsx lustre relatime,flock"
    assert "mkdir -p /scratch\n" in content


def test_the_mount_is_tried_again_and_a_machine_without_it_ends(tmp_path: Path) -> None:
    """The script runs for real, with programs that note how they are called."""
    for name, text in {
        "mount": 'echo "$0 $*" >>$CALLS; [ $(wc -l <$CALLS) -gt ${FAILS} ]',
        "mkdir": "true", "sleep": "true", "systemctl": 'echo "systemctl $*" >>$CALLS',
        "shutdown": 'echo "shutdown $*" >>$CALLS', "mount.lustre": "true", "tee": "cat >/dev/null",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    message = message_from_string(user_data(stack(), {"/fsx": "fs@tcp:/x"}))
    content = message.get_payload(0).get_payload()  # type: ignore[union-attr]
    calls = tmp_path / "calls"

    def run(fails: int) -> tuple[int, list[str]]:
        calls.write_text("")
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": str(fails)}
        done = subprocess.run(["sh", "-c", str(content)], env=environment, timeout=60, check=False)
        return done.returncode, calls.read_text().splitlines()

    status, lines = run(2)
    assert (status, len(lines)) == (0, 3)
    assert lines[-1].endswith("mount -t lustre -o relatime,flock fs@tcp:/x /fsx")
    status, lines = run(1000)
    assert status == 1
    assert lines[-2:] == ["systemctl mask --now ecs", "shutdown -h +1"]


CURL = """\
case "$*" in
    *api/token*) echo token ;;
    *iam/security-credentials/role*)
        printf '{\\n  "AccessKeyId" : "AKEY",\\n  "SecretAccessKey" : "SK/+",\\n  "Token" : "T=="\\n}\\n' ;;
    *iam/security-credentials/*) echo role ;;
    *--aws-sigv4*)
        echo "curl $*" >>$CALLS
        printf '{"Parameter":{"Name":"n","Value":"%s","Version":1}}' "$VALUE" ;;
esac
"""


@pytest.mark.parametrize(("value", "status"), [("fs-1.fsx@tcp:/abc", 0), ("being made", 1)])
def test_a_machine_of_a_job_finds_the_jobs_file_system(tmp_path: Path, value: str, status: int) -> None:
    """The metadata service's answers have the form that EC2's guide shows; curl is a script."""
    programs = {"mount": 'echo "mount $*" >>$CALLS', "curl": CURL, "tee": "cat >/dev/null"}
    for name in ("mkdir", "sleep", "systemctl", "shutdown", "mount.lustre"):
        programs[name] = "true"
    for name, text in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    message = message_from_string(user_data(stack(file_system="job"), {}))
    content = str(message.get_payload(0).get_payload())  # type: ignore[union-attr]
    calls = tmp_path / "calls"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls), "VALUE": value}
    done = subprocess.run(["sh", "-c", content], env=environment, timeout=60, check=False)
    assert done.returncode == status
    asked, *mounted = calls.read_text().splitlines()
    assert "--aws-sigv4 aws:amz:us-east-1:ssm --user AKEY:SK/+ -H X-Amz-Security-Token: T==" in asked
    assert mounted == ([] if status else [f"mount -t lustre -o relatime,flock {value} /fsx"])


def test_the_image_gets_docker_and_the_agent_after_the_drivers() -> None:
    (kind,) = images.kinds(stack())
    assert (kind.name, images.content(stack(), kind)["packages"]) == ("compute-nvidia-closed", ["chrony"])
    document = yaml.safe_load(bake.document(stack(), "bucket", kind, {"ecs": script(stack())}))
    steps = document["phases"][0]["steps"]
    assert [step["name"] for step in steps] == ["steps", "ecs"]
    text = steps[1]["inputs"]["commands"][0]
    assert "{{" not in text, "Image Builder would read these as its variables"
    assert text.rstrip().splitlines()[-2] == "bash /var/tmp/ecs_image.sh gpu us-east-1"


def test_the_baked_image_holds_the_container_image_whose_layers_other_code_leaves(tmp_path: Path) -> None:
    """Every change of the code would otherwise build the machines' image anew, for half an hour."""
    made = _declared("published", False)[0]
    layers = f"{IMAGE.partition('@')[0]}:{layers_tag(ROOT)}"
    text = made.inputs("c-bake-images-compute-nvidia-closed-component")["data"]
    assert f"bash /var/tmp/ecs_image.sh gpu us-east-1 {layers}\n" in text
    assert json.loads(made.inputs("c-repository-push")["stdin"])["layers"] == layers_tag(ROOT)
    (disk,) = made.inputs("c-bake-images-compute-nvidia-closed-recipe")["blockDeviceMappings"]
    assert disk["ebs"]["volumeSize"] == CACHING_GIB
    document = json.loads(made.inputs("c-bake-image-policy")["policy"])
    repository = made.inputs("c-identity-machine-policy")["policy"]
    (arn,) = (one["Resource"] for one in json.loads(repository)["Statement"] if one["Sid"] == "Pull")
    for action in ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"):
        assert allowed(document, action, arn)
    assert not allowed(document, "ecr:PutImage", arn)
    for name in ("batch", "envs/gpu"):
        (tmp_path / "workload" / name).mkdir(parents=True)
    for name in LARGE:
        (tmp_path / "workload" / name).write_text(name)
    first, code = layers_tag(tmp_path), content_tag(tmp_path)
    (tmp_path / "workload" / "batch" / "entry.py").write_text("1")
    assert (layers_tag(tmp_path), content_tag(tmp_path) == code) == (first, False)
    (tmp_path / "workload" / LARGE[-1]).write_text("another TensorFlow")
    assert layers_tag(tmp_path) != first


# --- roles ------------------------------------------------------------------------------------------------


def may(action: str, resource: str) -> bool:
    return allowed(policies.machine(SCOPE, stack()), action, resource)


def test_a_machine_may_be_a_container_instance_of_its_environment_alone() -> None:
    ecs = f"arn:aws:ecs:us-east-1:{ACCOUNT}"
    for name in ("AWSBatch-tensorflow-gpu-fsx-ce-1a2b", "tensorflow-gpu-fsx-ce_Batch_1a2b"):
        assert may("ecs:RegisterContainerInstance", f"{ecs}:cluster/{name}")
        assert may("ecs:Poll", f"{ecs}:container-instance/{name}/77")
    assert not may("ecs:RegisterContainerInstance", f"{ecs}:cluster/other")
    assert not may("ecs:Poll", f"{ecs}:container-instance/AWSBatch-other-1/77")
    assert may("ecr:GetAuthorizationToken", "*")
    assert may("ecr:BatchGetImage", REPOSITORY)
    assert not may("ecr:BatchGetImage", REPOSITORY.replace("mnp-tensorflow", "other"))
    assert not may("ecr:PutImage", REPOSITORY)
    assert may("logs:PutLogEvents", f"{LOGS}:log-stream:job/default/1")
    assert not may("logs:PutLogEvents", f"{LOGS}-2:log-stream:job/default/1")
    assert not may("ecs:CreateCluster", f"{ecs}:cluster/AWSBatch-tensorflow-gpu-fsx-ce-1")


def test_an_image_in_somebodys_repository_may_be_pulled_and_one_elsewhere_needs_nothing() -> None:
    none = dataclasses.replace(SCOPE, repository=None)
    for image, resource in {
        "210987654321.dkr.ecr.eu-west-1.amazonaws.com/team/train:2":
            "arn:aws:ecr:eu-west-1:210987654321:repository/team/train",
        "docker.io/library/python:3.12": None,
    }.items():  # fmt: skip
        document = policies.machine(none, stack(container_image=image, repository=None))
        pulls = [s["Resource"] for s in document["Statement"] if s["Sid"] == "Pull"]
        assert pulls == ([resource] if resource else [])


def test_jobs_may_nothing_but_read_manifests() -> None:
    assert policies.job(SCOPE) is None
    document = policies.job(dataclasses.replace(SCOPE, bucket="arn:aws:s3:::b"))
    assert document is not None
    assert allowed(document, "s3:GetObject", "arn:aws:s3:::b/manifests/one.json")
    assert not allowed(document, "s3:GetObject", "arn:aws:s3:::b/settings/1")


# --- the plan and the outputs -----------------------------------------------------------------------------


def test_the_plan_reads_like_the_published_tables(capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(Stack(ROOT, "aws-batch"), load_file(ROOT / "Pulumi.aws-batch.yaml"))
    assert weaknesses(plan["resources"]) == []
    found = outputs.load(plan["outputs"]["cluster"])
    assert (found.scheduler.name, found.scheduler.version, found.login) == ("batch", "AWS Batch", None)
    assert "login_ssh" not in plan["outputs"]
    show_plan(plan)
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (
        "aws-batch: batch on aws us-east-1",
        "tf-queue 0–42 × p3dn.24xlarge, each 96 CPUs, 745 GiB, 8 × v100 for jobs",
        "/fsx fsx_lustre SCRATCH_1 3600 GiB",
        "tensorflow-gpu-fsx-ce, MANAGED, p3dn.24xlarge, 0–4096 vCPUs, 0 desired",
        "mnptensorflow-gpu-mnp1, multinode, 20 nodes, main node 0, each 62 vCPUs, 424000",
        "tf-group, cluster",
        "mnp-tensorflow, scans on push",
        "SCRATCH_1, 3600 GiB, from PLACEHOLDER_S3_IMPORT, to PLACEHOLDER_S3_EXPORT",
        "holds <aws-batch-repository-images.repositoryUrl>:layers-",
        "a job of 20 nodes of p3dn.24xlarge costs 624.24 USD an hour; at most 2 jobs run at once",
    ):
        assert words in text, words


def test_the_tag_of_an_image_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "workload" / "__pycache__").mkdir(parents=True)
    (tmp_path / "workload" / "a.py").write_text("1")
    first = content_tag(tmp_path)
    (tmp_path / "workload" / "__pycache__" / "a.pyc").write_text("2")
    assert content_tag(tmp_path) == first
    (tmp_path / "workload" / "a.py").write_text("2")
    assert content_tag(tmp_path) != first
    request = ImageRequest("us-east-1", "r", first)
    assert ImageRequest.parse(request.text()) == request
