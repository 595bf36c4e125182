"""`./cluster` with AWS Batch: what `up` asks first, the image that it pushes, and what `down` ends.

moto's Batch, ECR, FSx and CloudWatch Logs answer over HTTP. Waiting and failing, which moto's Batch does not
do, are answers that botocore's Stubber holds to Batch's model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from cli import engine as runner
from cli.changes.closing import Holder
from cli.changes.decision import CheckedChanges
from cli.commands import operate
from cli.console.events import Summary
from cli.console.progress import Console
from cli.providers import provider
from cli.providers.batch import changes, jobs, queues, teardown
from cli.providers.batch.provider import BatchProvider
from cli.providers.clouds.base import CloudProvider
from cli.providers.local.provider import LocalProvider
from infra.addresses import private_parts
from infra.aws.batch import access
from infra.aws.batch.definition import ImageRequest
from infra.aws.tags import CLUSTER, log_group
from infra.clouds.commands import ClusterRef
from infra.config import load_file, parse
from infra.errors import EXIT_REFUSED, UserError
from node.design.model import ClusterDesign
from operations.access import StackUp
from operations.aws.batch import container_image, shutdown
from operations.aws.batch.service import BatchService
from tests.support import sentences
from tests.support.aws_account import Account
from tests.support.batch_account import (
    DESIGN,
    PLACE,
    REGION,
    RESULT,
    STACK,
    BatchAccount,
    account,
    batch_account,
    moto,
)
from tests.support.batch_stack import batch_design
from tests.support.stack_values import values

__all__ = ["account", "batch_account", "moto"]


# --- changes ----------------------------------------------------------------------------------------------

LUSTRE = {
    "FileSystemId": "fs-12345678",
    "StorageCapacity": 3600,
    "StorageType": "SSD",
    "Tags": [{"Key": CLUSTER, "Value": "aws-batch"}, {"Key": "Name", "Value": "aws-batch-fsx"}],
    "LustreConfiguration": {
        "DeploymentType": "SCRATCH_1",
        "DataRepositoryConfiguration": {
            "ImportPath": "s3://imagenet-2012", "ExportPath": "s3://imagenet-2012/results",
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, None),
        ({"size_gib": 7200}, "size_gib 3600 → 7200"),
        ({"deployment": "SCRATCH_2", "size_gib": 4800}, "deployment SCRATCH_1 → SCRATCH_2"),
        ({"s3_export": None}, "s3_export s3://imagenet-2012/results → nothing"),
        ({"path": "/data"}, "aws-batch-fsx, 3600 GiB"),
    ],
)
def test_up_asks_before_a_file_system_is_replaced(
    batch_account: BatchAccount, change: dict[str, Any], named: str | None
) -> None:
    (mount,) = (dataclasses.replace(mount, **change) for mount in DESIGN.mounts)
    fsx = boto3.client("fsx", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(fsx) as stub:
        stub.add_response("describe_file_systems", {"FileSystems": [LUSTRE]}, {})
        wanted = dataclasses.replace(DESIGN, mounts=(mount,))

        def check() -> None:
            changes.check(lambda service: fsx if service == "fsx" else batch_account(service), wanted, PLACE)

        if named is None:
            check()
        else:
            line = "`./cluster up --stack aws-batch --replace`"
            with sentences.raises("batch.change-ends-files", "fs-12345678", named, line) as caught:
                check()
            assert caught.value.exit_code == EXIT_REFUSED


def test_up_asks_before_a_queue_with_jobs_is_replaced(
    batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "unfinished_jobs", lambda _batch, queue: [{"jobId": queue}])
    changes.check(batch_account, DESIGN, PLACE)
    for changed, why in {
        "queue": "",
        "compute_environment": ": batch.compute_environment tensorflow-gpu-fsx-ce → other",
        "placement_group": ": batch.placement_group tf-group → other",
    }.items():
        with pytest.raises(UserError) as caught:
            changes.check(batch_account, batch_design(**{changed: "other"}), PLACE)
        (line,) = (line for line in str(caught.value).splitlines() if "tf-queue" in line)
        assert line == f"  queue tf-queue is deleted, and with it 1 job that go on{why}"
    with sentences.raises("batch.change-ends-files", "batch.placement_group tf-group → nothing"):
        changes.check(batch_account, batch_design(placement_group=None), PLACE)
    monkeypatch.setattr(shutdown, "unfinished_jobs", lambda _batch, _queue: [])
    changes.check(batch_account, batch_design(queue="other"), PLACE)


def test_up_refuses_names_of_batch_that_another_cluster_has(batch_account: BatchAccount) -> None:
    changes.refuse_taken(batch_account, DESIGN)
    changes.refuse_taken(batch_account, batch_design(queue="free", compute_environment="free"))
    with pytest.raises(UserError) as caught:
        changes.refuse_taken(batch_account, dataclasses.replace(DESIGN, name="second"))
    assert caught.value.exit_code == EXIT_REFUSED
    assert str(caught.value).splitlines() == [
        f"nothing was made: these names are taken in {REGION}",
        "  slurm-stacks:cluster.batch.compute_environment: tensorflow-gpu-fsx-ce is of cluster aws-batch",
        "  slurm-stacks:cluster.batch.queue: tf-queue is of cluster aws-batch",
        "Write others into Pulumi.aws-batch.yaml.",
    ]


def with_network(**values: Any) -> ClusterDesign:
    return dataclasses.replace(DESIGN, network=dataclasses.replace(DESIGN.network, **values))


OLD_VPC, NEW_VPC = "vpc-11111111", "vpc-22222222"


@pytest.mark.parametrize(
    ("wanted", "own", "named"),
    [
        (DESIGN, True, None),
        (with_network(cidr="10.9.0.0/16"), True, "network.cidr 10.0.0.0/16 → 10.9.0.0/16"),
        (with_network(vpc=NEW_VPC), True, f" → {NEW_VPC}"),
        (with_network(vpc=NEW_VPC), False, f"network.aws {OLD_VPC} → {NEW_VPC}"),
        (with_network(vpc=OLD_VPC), False, None),
        (
            with_network(private_cidr="10.0.128.0/18"),
            True,
            "subnet 10.0.128.0/20",
        ),
        (dataclasses.replace(DESIGN, region="us-west-2"), True, "aws-batch"),
        (dataclasses.replace(DESIGN, batch=None), True, "aws-batch"),
    ],
    ids=["same", "cidr", "into somebody's", "another VPC", "same VPC", "private", "region", "scheduler"],
)
def test_up_asks_before_the_network_or_the_cluster_of_a_file_system_is_another_one(
    batch_account: BatchAccount,
    monkeypatch: pytest.MonkeyPatch,
    wanted: ClusterDesign,
    own: bool,
    named: str | None,
) -> None:
    monkeypatch.setattr(shutdown, "unfinished_jobs", lambda _batch, queue: [{"jobId": queue}])
    there: dict[str, Any] = {**LUSTRE, "VpcId": OLD_VPC}
    if own:
        tags = [{"ResourceType": "vpc", "Tags": [{"Key": CLUSTER, "Value": "aws-batch"}]}]
        ec2 = batch_account("ec2")
        vpc = ec2.create_vpc(CidrBlock=str(DESIGN.network.cidr), TagSpecifications=tags)["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.128.0/20")["Subnet"]["SubnetId"]
        there |= {"SubnetIds": [subnet]}
    fsx = boto3.client("fsx", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(fsx) as stub:
        stub.add_response("describe_file_systems", {"FileSystems": [there]}, {})

        def check() -> None:
            changes.check(lambda name: fsx if name == "fsx" else batch_account(name), wanted, PLACE)

        if named is None:
            check()
            return
        with sentences.raises("batch.change-ends-files", "fs-12345678", named) as caught:
            check()
    assert caught.value.exit_code == EXIT_REFUSED
    another = own and "subnet" not in named
    assert ("tf-queue" in str(caught.value)) == another, (
        "jobs' machines are in a network of the cluster's own"
    )


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({}, False),
        ({"private_cidr": "10.0.192.0/18"}, False),
        ({"private_cidr": "10.0.128.0/18"}, True),
        ({"private_cidr": "10.0.0.0/17", "public_cidr": "10.0.192.0/24"}, True),
        ({"public_cidr": "10.0.0.0/25"}, True),
        ({"public_cidr": "10.0.1.0/24"}, True),
        ({"cidr": "10.9.0.0/16", "public_cidr": "10.9.0.0/25", "private_cidr": "10.9.128.0/18"}, False),
    ],
)
def test_up_refuses_subnets_that_cannot_be_made_beside_the_old_ones(
    batch_account: BatchAccount, values: dict[str, str], refused: bool
) -> None:
    """moto judges, too: it refuses a subnet that shares addresses with another one of its VPC."""
    ec2, wanted = batch_account("ec2"), with_network(**values)
    tags = [{"Key": CLUSTER, "Value": "aws-batch"}]
    made = ec2.create_vpc(
        CidrBlock=str(DESIGN.network.cidr), TagSpecifications=[{"ResourceType": "vpc", "Tags": tags}]
    )
    vpc = made["Vpc"]["VpcId"]
    for cidr in (str(DESIGN.network.public_cidr), private_parts(str(DESIGN.network.private_cidr))[0]):
        ec2.create_subnet(
            VpcId=vpc, CidrBlock=cidr, TagSpecifications=[{"ResourceType": "subnet", "Tags": tags}]
        )

    def check() -> None:
        changes.refuse_shared_addresses(batch_account, wanted, PLACE)

    if not refused:
        check()
        return
    with sentences.raises("batch.network-shared") as caught:
        check()
    assert caught.value.exit_code == EXIT_REFUSED
    news = [str(wanted.network.public_cidr), private_parts(str(wanted.network.private_cidr))[0]]
    there = [str(DESIGN.network.public_cidr), private_parts(str(DESIGN.network.private_cidr))[0]]

    def conflicts(cidr: str) -> bool:
        try:
            ec2.create_subnet(VpcId=vpc, CidrBlock=cidr)
        except ec2.exceptions.ClientError as error:
            return bool(error.response["Error"]["Code"] == "InvalidSubnet.Conflict")
        return False

    assert True in [conflicts(new) for new in news if new not in there]


@pytest.mark.parametrize("replace", [False, True])
def test_a_stack_that_is_of_batch_asks_whatever_its_file_says_now(
    monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    """Its former file system has the former name."""
    asked: list[tuple[str, ClusterRef]] = []
    monkeypatch.setattr(changes, "check", lambda _client, design, there: asked.append((design.name, there)))
    monkeypatch.setattr(changes, "refuse_taken", lambda *_arguments: None)
    monkeypatch.setattr(queues, "refuse_if_working", lambda *_arguments: None)
    monkeypatch.setattr(changes, "refuse_shared_addresses", lambda *_arguments: None)
    monkeypatch.setattr(CloudProvider, "check_changes", lambda *_arguments, **_options: CheckedChanges())
    for kind in ("batch", "aws"):
        up = StackUp.of(STACK, parse(values(kind, {"name": "new", "aws:region": REGION}), "aws-batch"))
        request = operate.Request(up, None, provider.of(up), False, replace, True, 0.0)
        checked = operate._checked(request, Engine(lambda: None), Console())  # type: ignore[arg-type]
        assert isinstance(checked.former, BatchProvider), "what is up is ended as what it is"
    assert asked == [("new", PLACE)] * (0 if replace else 2)


def test_what_is_up_comes_down_as_what_it_is_and_without_outputs_as_its_file_says() -> None:
    of_batch = StackUp.of(STACK, load_file(STACK.file))
    for outputs, batch in (
        ({}, True),
        ({"cluster": "no object"}, True),
        ({"cluster": {"scheduler": {"name": "batch"}}}, True),
        ({"cluster": {"scheduler": {"name": "slurm"}}}, False),
    ):
        found = provider.of_what_is_up(of_batch, lambda outputs=outputs: outputs)  # type: ignore[misc]
        assert isinstance(found, BatchProvider) == batch, outputs
    broken = StackUp(STACK, "aws")
    assert not isinstance(provider.of_what_is_up(broken, dict), BatchProvider)
    local = StackUp(STACK, "local")
    found = provider.of_what_is_up(local, lambda: pytest.fail("the engine is asked"))
    assert isinstance(found, LocalProvider)


# --- the image --------------------------------------------------------------------------------------------

DOCKER = """\
#!/bin/sh
echo "$@" >>{calls}
case "$*" in
    *login*) read -r password; echo "password ${{#password}}" >>{calls} ;;
    *push*) exec {python} -c '
import boto3, json, sys
ecr = boto3.client("ecr", "us-east-1", endpoint_url="{url}", aws_access_key_id="a", aws_secret_access_key="b")
manifest = {{"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "layers": [{{"digest": "sha256:1"}}]}}
ecr.put_image(repositoryName="mnp-tensorflow", imageTag="1234", imageManifest=json.dumps(manifest))
' ;;
esac
"""


def test_an_image_is_built_and_pushed_once_and_named_by_its_digest(
    batch_account: BatchAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker is a script that pushes to moto's ECR and notes how it is called."""
    ecr = batch_account("ecr")
    url = ecr.create_repository(repositoryName="mnp-tensorflow")["repository"]["repositoryUri"]
    (tmp_path / "workload" / "batch").mkdir(parents=True)
    (tmp_path / "workload" / "batch" / "Dockerfile").write_text("FROM scratch\n")
    calls = tmp_path / "calls"
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(calls=calls, python=sys.executable, url=batch_account.url))
    docker.chmod(0o755)
    request = ImageRequest(REGION, url, "1234", "layers-5678")
    monkeypatch.setenv("PATH", "/nowhere")
    with sentences.raises("docker.missing", "`docker`") as caught:
        container_image.provide(request, ecr, print, tmp_path)
    assert caught.value.exit_code == EXIT_REFUSED
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    digest = container_image.provide(request, ecr, print, tmp_path)
    assert digest.startswith("sha256:")
    build, login, password, push = calls.read_text().splitlines()
    assert build.startswith("build --platform linux/amd64 --file")
    assert f"--build-arg IMAGE={url}:1234 --tag {url}:1234" in build
    assert login.split()[2:6] == ["login", "--username", "AWS", "--password-stdin"]
    assert int(password.split()[1]) > 0, "on standard input, and in no process's arguments"
    assert push.endswith(f"push {url}:1234")
    assert container_image.provide(request, ecr, print, tmp_path) == digest
    assert len(calls.read_text().splitlines()) == 4, "what is there is not built again"

    def tagged(tag: str) -> str:
        found = ecr.describe_images(repositoryName="mnp-tensorflow", imageIds=[{"imageTag": tag}])
        return str(found["imageDetails"][0]["imageDigest"])

    assert tagged("layers-5678") == digest
    # With layers: moto's digest of an image without any is one of a hundred.
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    other = {"mediaType": kind, "schemaVersion": 2, "layers": [{"digest": "sha256:2"}]}
    ecr.put_image(repositoryName="mnp-tensorflow", imageTag="9", imageManifest=json.dumps(other))
    later = container_image.provide(ImageRequest(REGION, url, "9", "layers-5678"), ecr, print, tmp_path)
    assert later == tagged("9") != digest
    assert tagged("layers-5678") == digest, "the first image with these layers keeps it"


# --- down -------------------------------------------------------------------------------------------------


def test_down_ends_jobs_after_a_question_and_leaves_nothing(
    batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    batch_account("ecr").create_repository(
        repositoryName="mnp-tensorflow", tags=[{"Key": CLUSTER, "Value": "aws-batch"}]
    )
    turn = access.parameter("aws-batch")
    batch_account("ssm").put_parameter(Name=turn, Value="being made", Type="String")
    monkeypatch.setattr(teardown, "client_of", lambda _place: batch_account)
    assert teardown.left([PLACE]) == [
        "compute environment tensorflow-gpu-fsx-ce (VALID)",
        "job queue tf-queue (VALID)",
        "job definition mnptensorflow-gpu-mnp1:1",
        "repository mnp-tensorflow",
        f"parameter {turn}",
    ]
    assert teardown.left([ClusterRef("another", REGION)]) == []
    asked: list[Any] = []
    teardown.drain([PLACE], STACK, print, asked.extend)
    assert (
        batch_account("batch").describe_job_queues(jobQueues=["tf-queue"])["jobQueues"][0]["state"]
        == "DISABLED"
    )
    teardown.remove([PLACE], lambda _: None)
    assert teardown.left([PLACE]) == []


def test_queues_that_an_interrupted_down_has_closed_are_opened_and_no_others(
    batch_account: BatchAccount, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the engine nothing has changed, so an `up` would leave the queue disabled for ever."""
    batch = batch_account("batch")

    def state() -> str:
        return str(queues.of_cluster(batch, PLACE.cluster)[0]["state"])

    def close() -> None:
        batch.update_job_queue(jobQueue="tf-queue", state="DISABLED")

    own = Holder.of(STACK, "down")
    close()
    queues.mark(batch, PLACE.cluster, own)
    queues.open_interrupted(batch, PLACE.cluster, print)
    assert (state(), capsys.readouterr().out) == ("DISABLED", ""), "an administrator has closed it"
    batch.update_job_queue(jobQueue="tf-queue", state="ENABLED")
    elsewhere = dataclasses.replace(own, process="boot/1 2 3", checkout="another")
    queues.mark(batch, PLACE.cluster, elsewhere)
    close()
    with pytest.raises(UserError) as caught:
        queues.refuse_if_working(batch_account, PLACE.cluster, Holder.of(STACK, "up"), "test")
    assert (caught.value.code, caught.value.exit_code) == ("cluster.busy", EXIT_REFUSED)
    assert "(tf-queue)" in str(caught.value)
    killed = dataclasses.replace(elsewhere, checkout=own.checkout)
    queues.mark(batch, PLACE.cluster, killed)
    queues.refuse_if_working(batch_account, PLACE.cluster, Holder.of(STACK, "up"), "test")
    queues.open_interrupted(batch, PLACE.cluster, print)
    assert state() == "ENABLED"
    assert "was interrupted when it had closed partitions (tf-queue)" in capsys.readouterr().out
    queues.open_interrupted(batch, PLACE.cluster, print)
    assert capsys.readouterr().out == ""


def test_jobs_are_named_and_terminated_before_the_queue_goes() -> None:
    client = boto3.client("batch", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    one = {"jobId": "id", "jobName": "name", "status": "RUNNING"}
    queue = {
        "jobQueueName": "q", "jobQueueArn": "arn", "state": "ENABLED", "status": "VALID", "priority": 1,
        "computeEnvironmentOrder": [],
    }  # fmt: skip
    with Stubber(client) as stub:

        def listed(running: bool) -> None:
            stub.add_response("describe_job_queues", {"jobQueues": [queue]}, {"jobQueues": ["q"]})
            for state in ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING"):
                found = [one] if running and state == "RUNNING" else []
                stub.add_response(
                    "list_jobs", {"jobSummaryList": found}, {"jobQueue": "q", "jobStatus": state}
                )

        stub.add_response("describe_job_queues", {"jobQueues": [queue]}, {"jobQueues": ["q"]})
        stub.add_response("update_job_queue", {}, {"jobQueue": "q", "state": "DISABLED"})
        listed(True)
        stub.add_response("terminate_job", {}, {"jobId": "id", "reason": shutdown.WHY})
        listed(True)
        listed(False)
        assert shutdown.end_jobs(client, "q", print, lambda _: None) == 1
        stub.assert_no_pending_responses()


def test_the_environment_starts_no_machine_any_more_and_its_change_is_waited_for() -> None:
    client = boto3.client("batch", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    resources = {"type": "EC2", "minvCpus": 96, "maxvCpus": 4096, "subnets": ["subnet-1"]}
    environment = {
        "computeEnvironmentName": "ce", "computeEnvironmentArn": "arn", "computeResources": resources,
    }  # fmt: skip
    asked = {"computeEnvironments": ["ce"]}
    with Stubber(client) as stub:

        def described(state: str, status: str) -> None:
            found = {**environment, "state": state, "status": status}
            stub.add_response("describe_compute_environments", {"computeEnvironments": [found]}, asked)

        described("ENABLED", "UPDATING")
        described("ENABLED", "VALID")
        described("ENABLED", "VALID")
        change = {"computeEnvironment": "ce", "state": "DISABLED", "computeResources": {"minvCpus": 0}}
        stub.add_response("update_compute_environment", {}, change)
        described("DISABLED", "UPDATING")
        described("DISABLED", "VALID")
        shutdown.stop_machines(client, "ce", lambda _: None)
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(("lifecycle", "fails"), [("SUCCEEDED", False), ("FAILED", True)])
def test_a_file_system_that_writes_to_s3_does_so_before_it_goes(lifecycle: str, fails: bool) -> None:
    client = boto3.client("fsx", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    tags = [{"Key": CLUSTER, "Value": "c"}]
    writes = {"DataRepositoryConfiguration": {"ImportPath": "s3://b/in", "ExportPath": "s3://b/out"}}
    systems = [
        {"FileSystemId": "fs-12345678", "Tags": tags, "LustreConfiguration": writes},
        {"FileSystemId": "fs-87654321", "Tags": [{"Key": CLUSTER, "Value": "other"}]},
        # Nobody asked for this path: FSx gives it.
        {
            "FileSystemId": "fs-11223344", "Tags": tags, "LustreConfiguration": {
                "DataRepositoryConfiguration": {"ExportPath": "s3://b/FSxLustre20181105T222312Z"},
            },
        },
    ]  # fmt: skip
    task = {
        "TaskId": "task-01234567890123456", "Lifecycle": "EXECUTING", "Type": "EXPORT_TO_REPOSITORY",
        "CreationTime": 0,
    }  # fmt: skip
    with Stubber(client) as stub:
        stub.add_response("describe_file_systems", {"FileSystems": systems}, {})
        request = {
            "Type": "EXPORT_TO_REPOSITORY",
            "FileSystemId": "fs-12345678",
            "Report": {"Enabled": False},
        }
        stub.add_response("create_data_repository_task", {"DataRepositoryTask": task}, request)
        last = {**task, "Lifecycle": lifecycle, "FailureDetails": {"Message": "no bucket"}}
        asked = {"TaskIds": [task["TaskId"]]}
        stub.add_response("describe_data_repository_tasks", {"DataRepositoryTasks": [last]}, asked)
        if fails:
            with sentences.raises("batch.export-failed"):
                shutdown.export(client, "c", print, lambda _: None)
        else:
            assert shutdown.export(client, "c", print, lambda _: None) == ["fs-12345678"]
        stub.assert_no_pending_responses()


# --- up and down, whole -----------------------------------------------------------------------------------


class Engine:
    """A runner that makes and deletes nothing: what the engine would make is in moto already."""

    name = "fake"

    def __init__(self, gone: Callable[[], object]) -> None:
        self.did: list[str] = []
        self._gone = gone

    def outputs(self) -> dict[str, Any]:
        scheduler = {"name": "batch", "version": "AWS Batch"}
        partitions = [{"name": "tf-queue"}]
        cluster = {"name": "aws-batch", "region": REGION, "scheduler": scheduler, "partitions": partitions}
        return {"cluster": {**cluster, "apiVersion": "slurm-stacks/v1"}}

    def preview(self, _on_event: Any, *, benchmark: bool = True) -> Summary:
        self.did.append("preview" if benchmark else "preview without a job")
        return Summary()

    def up(self, _on_event: Any, *, benchmark: bool = True, lost: tuple[str, ...] = ()) -> dict[str, Any]:
        self.did.append("up" if benchmark else "up without a job")
        return self.outputs()

    def changing(self, _verb: str, _on_event: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check_destroy(self) -> None: ...

    def destroy(self, _on_event: Any, _look: Any) -> None:
        self.did.append("destroy")
        self._gone()


def test_up_ends_in_the_result_and_down_in_nothing(
    batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The provider's own code runs against moto, and only the engine and the program's rehearsal do not."""

    def gone() -> None:
        teardown.remove([PLACE], lambda _: None)
        batch_account("logs").delete_log_group(logGroupName=log_group("aws-batch"))

    engine = Engine(gone)
    monkeypatch.setattr(runner, "select", lambda *_: engine)
    monkeypatch.setattr(operate, "check_program", lambda *_: None)
    config = load_file(STACK.file)
    made = jobs.submit(BatchService(DESIGN, batch_account))
    stream = batch_account("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    batch_account.write_log(stream, f"RESULT {json.dumps(RESULT)}")
    found = operate.bring_up(STACK, config, Console())
    assert found["result"] is not None
    assert (found["result"]["job_id"], found["result"]["result"]) == (made.id, RESULT)
    text = capsys.readouterr().out
    assert "images per second" in text
    assert "slurm-stacks/v1: aws-batch, AWS Batch, partitions tf-queue" in text
    assert operate.bring_up(STACK, config, Console(), benchmark=False, quiet=True)["result"] is None
    operate.take_down(StackUp.of(STACK, config), Console(), yes=True)
    assert engine.did == ["preview", "up", "preview without a job", "up without a job", "destroy"]
    assert teardown.left([PLACE]) == []
