"""`./cluster` with AWS Batch: submits, waits, reads results and logs, and takes everything down.

moto's Batch, ECR, FSx and CloudWatch Logs answer over HTTP. Waiting and failing, which moto's Batch does not
do, are answers that botocore's Stubber holds to Batch's model.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore import xform_name
from botocore.stub import Stubber

from cli import login_machine, logs, operate, providers, runner, sweep
from cli import report as reports
from cli.aws import diagnosis
from cli.aws.batch import (
    budget_gate,
    change_check,
    explanations,
    images,
    run_records,
    shutdown,
    submit,
    teardown,
)
from cli.aws.batch.commands import BatchCommands, parse_nodes
from cli.aws.batch.service import BatchService, Job
from cli.aws.provider import AwsProvider
from cli.console.progress import Console
from cli.provider import StackUp
from infra.aws.batch import access
from infra.aws.batch.definition import node_properties
from infra.aws.batch.repository import ImageRequest
from infra.aws.tags import CLUSTER, log_group
from infra.clouds.commands import ClusterRef
from infra.config import load_file
from infra.errors import EXIT_REFUSED, EXIT_USAGE, NotUpError, UserError
from infra.program.stack import Stack
from node.model import Budget
from tests.support.aws_account import Account, account, moto
from tests.support.batch_stack import batch_design
from tests.support.checkout import ROOT

__all__ = ["account", "moto"]
REGION = "us-east-1"
DESIGN = batch_design()
STACK = Stack(ROOT, "aws-batch")
RESULT = {"images_per_second": 98000.5, "loss": 6.9, "nodes": 20}
PLACE = ClusterRef("aws-batch", REGION)
TAGS = {CLUSTER: "aws-batch"}


class There:
    """The stack's parts of Batch in moto's account, as the engine would have made them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._made: dict[str, Any] = {}
        batch = self("batch")
        subnet = self("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        group = self("ec2").describe_security_groups()["SecurityGroups"][0]["GroupId"]
        iam = self("iam")
        iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="p")
        profile = iam.get_instance_profile(InstanceProfileName="p")["InstanceProfile"]["Arn"]
        role = iam.get_role(RoleName="r")["Role"]["Arn"]
        own = DESIGN.batch
        assert own is not None
        batch.create_compute_environment(
            computeEnvironmentName=own.compute_environment, type="MANAGED", state="ENABLED",
            serviceRole=role, tags=TAGS,
            computeResources={
                "type": "EC2", "minvCpus": 0, "maxvCpus": 4096, "desiredvCpus": 0, "instanceRole": profile,
                "instanceTypes": ["m5.large"], "subnets": [subnet], "securityGroupIds": [group],
            },
        )  # fmt: skip
        environment = {"order": 1, "computeEnvironment": own.compute_environment}
        batch.create_job_queue(
            jobQueueName=own.queue,
            state="ENABLED",
            priority=1,
            computeEnvironmentOrder=[environment],
            tags=TAGS,
        )
        self.register()
        self("logs").create_log_group(logGroupName=log_group("aws-batch"))

    def __call__(self, service: str) -> Any:
        if service not in self._made:
            keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": self.url}
            self._made[service] = boto3.client(service, REGION, **keys)
        return self._made[service]

    def register(self) -> None:
        own = DESIGN.batch
        assert own is not None
        self("batch").register_job_definition(
            jobDefinitionName=own.job_definition,
            type="multinode",
            nodeProperties=node_properties(
                DESIGN, "train@sha256:1", "arn:aws:iam::1:role/x", log_group("aws-batch")
            ),
            tags=TAGS,
        )

    def write_log(self, stream: str, *lines: str) -> None:
        now = int(time.time() * 1000)
        events = [{"timestamp": now + number, "message": line} for number, line in enumerate(lines)]
        self("logs").create_log_stream(logGroupName=log_group("aws-batch"), logStreamName=stream)
        self("logs").put_log_events(
            logGroupName=log_group("aws-batch"), logStreamName=stream, logEvents=events
        )


@pytest.fixture
def there(account: Account) -> There:
    """moto's Batch without containers: each job succeeds as soon as it is submitted."""
    settings = json.dumps({"batch": {"use_docker": False}}).encode()
    request = urllib.request.Request(f"{account.url}/moto-api/config", data=settings, method="POST")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=60).close()
    return There(account.url)


@pytest.fixture
def service(there: There) -> BatchService:
    return BatchService(DESIGN, there)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def job(status: str = "RUNNABLE", reason: str = "", **more: Any) -> Job:
    return Job("id", "name", status, reason, 20, 1, None, None, 0, **more)


# --- submitting -------------------------------------------------------------------------------------------


def test_the_same_request_is_the_same_job_and_another_revision_another(
    service: BatchService, there: There
) -> None:
    first = submit.submit(service)
    assert submit.submit(service).id == first.id
    assert submit.submit(service, 4).id != first.id
    assert submit.submit(service, number=1).id != first.id
    there.register()
    assert submit.submit(service).id != first.id, "another image"
    assert [one.name.rsplit("-", 1)[0] for one in service.jobs()].count("aws-batch-20") == 3


def test_another_number_of_nodes_overrides_the_range_and_the_number_of_gpus(service: BatchService) -> None:
    assert submit.overrides(service, 20) == {}
    made = submit.overrides(service, 2)
    (nodes,) = made["nodeOverrides"]["nodePropertyOverrides"]
    assert (made["nodeOverrides"]["numNodes"], nodes["targetNodes"]) == (2, "0:")
    assert nodes["containerOverrides"]["environment"] == [{"name": "MPI_GPUS", "value": "16"}]


@pytest.mark.parametrize("nodes", [0, 43])
def test_a_number_of_nodes_that_never_starts_is_refused(service: BatchService, nodes: int) -> None:
    with pytest.raises(UserError, match=r"allowed: 1 to 42") as caught:
        submit.submit(service, nodes)
    assert caught.value.exit_code == EXIT_USAGE


def test_without_a_stack_the_answer_is_that_it_is_not_up(account: Account) -> None:
    def client(name: str) -> Any:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": account.url}
        return boto3.client(name, "eu-west-2", **keys)

    empty = BatchService(DESIGN, client)
    for asked in (empty.definition, empty.jobs):
        with pytest.raises(NotUpError, match="not up"):
            asked()


# --- waiting and results ----------------------------------------------------------------------------------


def test_a_run_ends_in_the_record_of_its_log(service: BatchService, there: There) -> None:
    made = submit.submit(service)
    stream = there("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    there.write_log(stream, "step 1", f"RESULT {json.dumps(RESULT)}", "bye")
    record = submit.follow(service, made, print)
    assert (record["job_id"], record["nodes"], record["gpus"], record["machine"]) == (
        made.id, 20, 160, "p3dn.24xlarge",
    )  # fmt: skip
    assert record["result"] == RESULT
    run_records.keep("aws-batch", record)
    (again,) = run_records.load("aws-batch")
    assert run_records.rate(again) == 98000.5


def test_a_job_without_a_result_is_an_error_with_the_end_of_its_log(
    service: BatchService, there: There
) -> None:
    made = submit.submit(service)
    stream = there("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    there.write_log(stream, "no such file: /fsx/resized")
    with pytest.raises(UserError, match="succeeded without a result") as caught:
        submit.follow(service, made, print)
    assert "no such file: /fsx/resized" in str(caught.value)
    assert "`./cluster up --stack aws-batch` again" in str(caught.value)


def detail(status: str, **more: Any) -> dict[str, Any]:
    nodes = {"numNodes": 20, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:"}]}
    return {
        "jobs": [
            {
                "jobId": "id", "jobName": "name", "jobQueue": "tf-queue", "status": status, "startedAt": 0,
                "jobDefinition": "d", "nodeProperties": nodes, **more,
            }
        ]
    }  # fmt: skip


def test_a_wait_says_why_and_a_failure_says_what_batch_said() -> None:
    """The stub refuses a request or an answer that Batch's model does not have."""
    client = boto3.client("batch", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    environment = {
        "computeEnvironmentName": "tensorflow-gpu-fsx-ce", "computeEnvironmentArn": "arn", "state": "ENABLED",
        "status": "VALID", "computeResources": {
            "type": "EC2", "maxvCpus": 4096, "desiredvCpus": 1920, "subnets": ["subnet-1"],
        },
    }  # fmt: skip
    queue = {
        "jobQueueName": "tf-queue", "jobQueueArn": "arn", "state": "ENABLED", "status": "VALID",
        "priority": 1, "computeEnvironmentOrder": [],
    }  # fmt: skip
    attempt = {"container": {"exitCode": 137, "reason": "OutOfMemoryError: Container killed"}}
    asked = {"jobs": ["id"]}
    with Stubber(client) as stub:
        named = {"computeEnvironments": ["tensorflow-gpu-fsx-ce"]}
        stub.add_response("describe_compute_environments", {"computeEnvironments": [environment]}, named)
        stub.add_response("describe_job_queues", {"jobQueues": [queue]}, {"jobQueues": ["tf-queue"]})
        stub.add_response("describe_jobs", detail("RUNNING"), asked)
        failed = detail("FAILED", statusReason="Essential container in task exited", attempts=[attempt])
        stub.add_response("describe_jobs", failed, asked)
        stub.add_response("describe_jobs", {"jobs": []}, {"jobs": ["id#0"]})
        stub.add_response("describe_jobs", failed, asked)
        said: list[str] = []
        service = BatchService(DESIGN, {"batch": client}.__getitem__)
        with pytest.raises(UserError) as caught:
            submit.follow(service, job(), said.append, lambda _: None)
        stub.assert_no_pending_responses()
    assert said[0] == "Batch has asked for 1920 vCPUs, and machines are on their way"
    assert said[1].startswith("runs on 20 nodes since")
    assert "failed with exit status 137: the container used more memory than memory_mib" in str(caught.value)


VALID = {"state": "ENABLED", "status": "VALID", "computeResources": {"maxvCpus": 96, "desiredvCpus": 0}}


@pytest.mark.parametrize(
    ("one", "environment", "queue", "said"),
    [
        (job("SUBMITTED"), VALID, VALID, "not looked at it yet"),
        (job("STARTING"), VALID, VALID, "fetch the image"),
        (job(), VALID, VALID, "takes minutes"),
        (job(), None, VALID, "environment is gone"),
        (job(), {**VALID, "state": "DISABLED"}, VALID, "disabled, so no machine starts"),
        (job(), {**VALID, "status": "INVALID", "statusReason": "Denied"}, VALID, "invalid: Denied"),
        (job(), {**VALID, "computeResources": {"maxvCpus": 96, "desiredvCpus": 96}}, VALID, "all of its 96"),
        (job(), VALID, {**VALID, "state": "DISABLED"}, "queue is disabled"),
        (job(reason="MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"), VALID, VALID, "lower vcpus"),
        (job(reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"), VALID, VALID, "no such machines free"),
    ],
)  # fmt: skip
def test_a_waiting_job_says_why(one: Job, environment: Any, queue: Any, said: str) -> None:
    assert said in explanations.waits(one, environment, queue)


# --- the commands -----------------------------------------------------------------------------------------


@pytest.fixture
def up(there: There, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackUp]:
    """The stack as the commands find it."""
    config = load_file(STACK.file)
    monkeypatch.setattr(providers, "scheduler", lambda stack, _config: BatchCommands(stack, DESIGN, there))
    return iter([StackUp.of(STACK, config)])


def test_status_and_logs_and_run(
    up: Iterator[StackUp], there: There, capsys: pytest.CaptureFixture[str]
) -> None:
    known = next(up)
    made = submit.submit(BatchService(DESIGN, there), 2)
    stream = there("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    there.write_log(stream, *(f"line {number}" for number in range(50)), f"RESULT {json.dumps(RESULT)}")
    login_machine.show_cluster_status(known, as_json=False)
    text = capsys.readouterr().out
    assert "environment tensorflow-gpu-fsx-ce  enabled, valid" in text
    assert "queue tf-queue                     enabled, valid" in text
    assert made.id in text
    login_machine.show_cluster_status(known, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["partitions"][0]["name"] == "tf-queue"
    assert [one["how"] for one in found["ended"]] == ["succeeded"]
    assert logs.show(known, made.id, lines=3, follow=False) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["line 48", "line 49"]
    assert known.config is not None
    sweep.run(STACK, known.config, Console(), nodes="2")
    assert "98000.5" in capsys.readouterr().out
    (record,) = run_records.load("aws-batch")
    assert record["job_name"].startswith("aws-batch-2-"), "moto itself takes no other number of nodes"
    with pytest.raises(UserError, match="one queue"):
        sweep.run(STACK, known.config, Console(), nodes="2", gpus="1")
    with pytest.raises(UserError, match="no job nowhere"):
        logs.show(known, "nowhere", lines=3, follow=False)


BUDGET = dataclasses.replace(DESIGN, budget=Budget(max_usd=1000.0, max_hours=64.0, running_jobs="cancel"))


@pytest.fixture
def spend(there: There) -> Callable[[int], None]:
    """Writes what the state machine has counted, in machines that were up at a tick of five minutes."""
    key: dict[str, Any] = {"AttributeName": "Id"}
    there("dynamodb").create_table(
        TableName="aws-batch-budget",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{**key, "AttributeType": "S"}],
        KeySchema=[{**key, "KeyType": "HASH"}],
    )

    def write(machines: int) -> None:
        ticks = {"Id": {"S": "vcpus"}, "Ticks": {"N": str(machines * 96)}}
        there("dynamodb").put_item(TableName="aws-batch-budget", Item=ticks)

    return write


def test_status_says_what_is_left_of_the_budget(there: There, spend: Callable[[int], None]) -> None:
    """1000 USD are 32 machine-hours: 38 ticks with ten machines up are all but 12 USD of them."""
    own = BatchCommands(STACK, BUDGET, there)
    assert own.status()["cost"]["budget"]["left_usd"] == 1000.0
    spend(38 * 10)
    found = own.status()["cost"]["budget"]
    assert found["left_usd"] == pytest.approx(1000 - 380 * 5 / 60 * 31.212, abs=0.1)
    assert found["left_hours"] == pytest.approx(64 - 380 * 5 / 60), "each limit has a rest of its own"
    assert found["used"] == pytest.approx(1 - found["left_usd"] / 1000)
    assert found["running_jobs"] == "cancel"


def test_who_submits_opens_what_is_closed_if_the_budget_covers_it(
    there: There, spend: Callable[[int], None]
) -> None:
    service, batch = BatchService(BUDGET, there), there("batch")
    said: list[str] = []
    # Twenty machines for five minutes are 52 USD.
    spend(38 * 10 - 5)
    with pytest.raises(UserError, match=r"47 machine-minutes are left .* on 20 nodes takes 100") as caught:
        submit.submit(service, before=lambda nodes: budget_gate.prepare(service, nodes, said.append))
    assert (caught.value.exit_code, service.jobs()) == (EXIT_REFUSED, [])
    spend(38 * 9)
    budget_gate.prepare(service, 20, said.append)
    assert said == [], "nothing is closed"
    batch.update_job_queue(jobQueue="tf-queue", state="DISABLED")
    batch.update_compute_environment(computeEnvironment="tensorflow-gpu-fsx-ce", state="DISABLED")
    budget_gate.prepare(service, 20, said.append)
    assert said == [
        "environment tensorflow-gpu-fsx-ce was disabled: it is enabled again",
        "queue tf-queue was disabled: it is enabled again",
    ]
    states = [(service.queue() or {})["state"], (service.environment() or {})["state"]]
    assert states == ["ENABLED", "ENABLED"]


def test_numbers_of_nodes() -> None:
    assert parse_nodes(None, 20) == [1, 2, 4, 8, 16, 20]
    assert parse_nodes("2, 4,2", 20) == [2, 4]
    with pytest.raises(UserError, match="like 2,4"):
        parse_nodes("2,x", 20)


def test_nobody_logs_in_and_the_message_says_what_to_do_instead() -> None:
    for asked in (
        lambda: AwsProvider().access(STACK, {}, ["squeue"], tty=False),
        lambda: AwsProvider().ssh(STACK),
    ):
        with pytest.raises(
            UserError, match=r"no login machine.*`\./cluster status --stack aws-batch`"
        ) as caught:
            asked()
        assert caught.value.exit_code == EXIT_REFUSED


def test_the_doctor_says_that_docker_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = diagnosis.docker(DESIGN)
    assert "not on PATH" in finding.found
    assert {check.name for check in diagnosis.checks(DESIGN)} == {"credentials", "quotas", "docker"}
    assert list(diagnosis.docker(batch_design(repository=None, container_image="x"))) == []


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
    ("change", "said"),
    [
        ({}, None),
        ({"size_gib": 7200}, "fs-12345678 at /fsx is replaced by an empty one: size_gib 3600 → 7200"),
        ({"deployment": "SCRATCH_2", "size_gib": 4800}, "deployment SCRATCH_1 → SCRATCH_2$"),
        ({"s3_export": None}, "s3_export s3://imagenet-2012/results → nothing"),
        ({"path": "/data"}, r"fs-12345678 \(aws-batch-fsx\) is not in the stack file any more"),
    ],
)
def test_up_asks_before_a_file_system_is_replaced(
    there: There, change: dict[str, Any], said: str | None
) -> None:
    (mount,) = (dataclasses.replace(mount, **change) for mount in DESIGN.mounts)
    fsx = boto3.client("fsx", REGION, aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(fsx) as stub:
        stub.add_response("describe_file_systems", {"FileSystems": [LUSTRE]}, {})
        wanted = dataclasses.replace(DESIGN, mounts=(mount,))

        def check() -> None:
            change_check.check(lambda service: fsx if service == "fsx" else there(service), wanted)

        if said is None:
            check()
        else:
            with pytest.raises(UserError, match=re.compile(said, re.M)) as caught:
                check()
            assert caught.value.exit_code == EXIT_REFUSED
            assert "`./cluster up --stack aws-batch --replace`" in str(caught.value)


def test_up_asks_before_a_queue_with_jobs_is_replaced(there: There, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown, "unfinished_jobs", lambda _batch, queue: [{"jobId": queue}])
    change_check.check(there, DESIGN)
    for renamed in (batch_design(queue="other"), batch_design(compute_environment="other")):
        with pytest.raises(UserError, match="queue tf-queue is deleted, and with it 1 job"):
            change_check.check(there, renamed)
    monkeypatch.setattr(shutdown, "unfinished_jobs", lambda _batch, _queue: [])
    change_check.check(there, batch_design(queue="other"))


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
    there: There, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker is a script that pushes to moto's ECR and notes how it is called."""
    ecr = there("ecr")
    url = ecr.create_repository(repositoryName="mnp-tensorflow")["repository"]["repositoryUri"]
    (tmp_path / "workload" / "batch").mkdir(parents=True)
    (tmp_path / "workload" / "batch" / "Dockerfile").write_text("FROM scratch\n")
    calls = tmp_path / "calls"
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(calls=calls, python=sys.executable, url=there.url))
    docker.chmod(0o755)
    request = ImageRequest(REGION, url, "1234", "layers-5678")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="`docker` is not on PATH") as caught:
        images.provide(request, ecr, print, tmp_path)
    assert caught.value.exit_code == EXIT_REFUSED
    monkeypatch.setenv("PATH", f"{docker.parent}:/usr/bin:/bin")
    digest = images.provide(request, ecr, print, tmp_path)
    assert digest.startswith("sha256:")
    build, login, password, push = calls.read_text().splitlines()
    assert build.startswith("build --platform linux/amd64 --file")
    assert f"--build-arg IMAGE={url}:1234 --tag {url}:1234" in build
    assert login.split()[2:6] == ["login", "--username", "AWS", "--password-stdin"]
    assert int(password.split()[1]) > 0, "on standard input, and in no process's arguments"
    assert push.endswith(f"push {url}:1234")
    assert images.provide(request, ecr, print, tmp_path) == digest
    assert len(calls.read_text().splitlines()) == 4, "what is there is not built again"

    def tagged(tag: str) -> str:
        found = ecr.describe_images(repositoryName="mnp-tensorflow", imageIds=[{"imageTag": tag}])
        return str(found["imageDetails"][0]["imageDigest"])

    assert tagged("layers-5678") == digest
    # With layers: moto's digest of an image without any is one of a hundred.
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    other = {"mediaType": kind, "schemaVersion": 2, "layers": [{"digest": "sha256:2"}]}
    ecr.put_image(repositoryName="mnp-tensorflow", imageTag="9", imageManifest=json.dumps(other))
    later = images.provide(ImageRequest(REGION, url, "9", "layers-5678"), ecr, print, tmp_path)
    assert later == tagged("9") != digest
    assert tagged("layers-5678") == digest, "the first image with these layers keeps it"


# --- down -------------------------------------------------------------------------------------------------


def test_down_ends_jobs_after_a_question_and_leaves_nothing(
    there: There, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    there("ecr").create_repository(
        repositoryName="mnp-tensorflow", tags=[{"Key": CLUSTER, "Value": "aws-batch"}]
    )
    turn = access.parameter("aws-batch")
    there("ssm").put_parameter(Name=turn, Value="being made", Type="String")
    monkeypatch.setattr(teardown, "client_of", lambda _place: there)
    assert teardown.left([PLACE]) == [
        "compute environment tensorflow-gpu-fsx-ce (VALID)",
        "job queue tf-queue (VALID)",
        "job definition mnptensorflow-gpu-mnp1:1",
        "repository mnp-tensorflow",
        f"parameter {turn}",
    ]
    assert teardown.left([ClusterRef("another", REGION)]) == []
    asked: list[Any] = []
    teardown.drain([PLACE], print, asked.extend)
    assert there("batch").describe_job_queues(jobQueues=["tf-queue"])["jobQueues"][0]["state"] == "DISABLED"
    teardown.remove([PLACE], lambda _: None)
    assert teardown.left([PLACE]) == []


def test_a_job_with_a_file_system_of_its_own_is_started_by_the_state_machine() -> None:
    """The stubs hold requests and answers to the models of Batch, Step Functions and STS."""
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    clients = {name: boto3.client(name, REGION, **keys) for name in ("batch", "stepfunctions", "sts")}
    service = BatchService(batch_design(file_system="job"), clients.__getitem__)
    machine = "arn:aws:states:us-east-1:123456789012:stateMachine:aws-batch-job"
    run = machine.replace("stateMachine", "execution") + ":1"
    definition = {
        "jobDefinitionName": "mnptensorflow-gpu-mnp1", "jobDefinitionArn": "arn:d:2", "revision": 2,
        "type": "multinode",
    }  # fmt: skip
    name = submit.name_of(service, "arn:d:2", 2)
    filters = {"jobQueue": "tf-queue", "filters": [{"name": "JOB_NAME", "values": [name]}]}
    nodes = {
        "NumNodes": 2,
        "NodePropertyOverrides": [
            {
                "TargetNodes": "0:",
                "ContainerOverrides": {"Environment": [{"Name": "MPI_GPUS", "Value": "16"}]},
            }
        ],
    }
    given = {
        "JobName": name, "JobQueue": "tf-queue", "JobDefinition": "arn:d:2", "PropagateTags": True,
        "NodeOverrides": nodes,
    }  # fmt: skip
    with (
        Stubber(clients["batch"]) as batch,
        Stubber(clients["stepfunctions"]) as states,
        Stubber(clients["sts"]) as sts,
    ):
        asked = {"jobDefinitionName": "mnptensorflow-gpu-mnp1", "status": "ACTIVE"}
        batch.add_response("describe_job_definitions", {"jobDefinitions": [definition]}, asked)
        batch.add_response("list_jobs", {"jobSummaryList": []}, filters)
        batch.add_response("list_jobs", {"jobSummaryList": []}, filters)
        answer = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me", "UserId": "me"}
        sts.add_response("get_caller_identity", answer, {})
        begun = {"executionArn": run, "startDate": 0}
        states.add_response(
            "start_execution", begun, {"stateMachineArn": machine, "input": json.dumps(given)}
        )
        failed = {
            "executionArn": run, "stateMachineArn": machine, "startDate": 0, "status": "FAILED",
            "error": "FSx.BadRequestException", "cause": "no such bucket",
        }  # fmt: skip
        states.add_response("describe_execution", failed, {"executionArn": run})
        with pytest.raises(UserError, match=r"FAILED: FSx\.BadRequestException no such bucket"):
            submit.submit(service, 2)


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
            with pytest.raises(UserError, match=r"no bucket\. Nothing was deleted"):
                shutdown.export(client, "c", print, lambda _: None)
        else:
            assert shutdown.export(client, "c", print, lambda _: None) == ["fs-12345678"]
        stub.assert_no_pending_responses()


# --- permissions ------------------------------------------------------------------------------------------

SERVICES = {
    "batch": "batch", "dynamodb": "dynamodb", "ecr": "ecr", "fsx": "fsx", "logs": "logs", "ssm": "ssm",
    "stepfunctions": "states", "sts": "sts",
}  # fmt: skip
"""What the commands use clients of -> the prefix of its actions in IAM."""
IMAGE_PUSH = {
    "ecr:BatchCheckLayerAvailability", "ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload",
    "ecr:UploadLayerPart",
}  # fmt: skip
"""What Docker's push asks for (ECR user guide, "IAM permissions for pushing an image")."""


def test_the_page_names_each_action_that_the_commands_call_and_no_other() -> None:
    """A call is a method with the name of an operation, or that name as a paginator's text."""
    session = botocore.session.get_session()
    operations: dict[str, set[str]] = {}
    for service, prefix in SERVICES.items():
        for name in session.get_service_model(service).operation_names:
            operations.setdefault(xform_name(name), set()).add(f"{prefix}:{name}")
    # Several services may have an operation of that name.
    called: list[set[str]] = []
    for path in (ROOT / "cli" / "aws" / "batch").glob("*.py"):
        text = path.read_text()
        for method in re.findall(r"\.(\w+)\(", text) + re.findall(r'get_paginator\("(\w+)"\)', text):
            called += [operations[method]] if method in operations else []
    page = (ROOT / "docs" / "batch.md").read_text()
    table = page.partition("## What you need")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+:[A-Z]\w+)`", table))
    assert len(called) > 25
    assert [one for one in called if not one & named] == []
    assert named - IMAGE_PUSH <= set().union(*called)


# --- the report -------------------------------------------------------------------------------------------


def test_the_report_has_our_runs_beside_the_published_scaling(tmp_path: Path) -> None:
    for number, (nodes, rate) in enumerate(((1, 6000.0), (20, 108000.0), (20, 110000.0))):
        run_records.keep(
            "aws-batch",
            {
                "job_id": f"job-{number}", "job_name": "n", "machine": "p3dn.24xlarge", "nodes": nodes,
                "gpus": 8 * nodes, "seconds_job": 60.0, "cost_usd": 1.5,
                "result": {"images_per_second": rate},
            },
        )  # fmt: skip
    made = reports.make(["aws-batch"], tmp_path, project=ROOT)
    rows = list(csv.DictReader(made.table.open()))
    stated = [row for row in rows if row["origin"] == "published" and not row["note"]]
    assert [(row["gpus"], row["images_per_second"], row["speed_up"]) for row in stated] == [
        ("160", "100000.0", "20.00")
    ]
    assert {row["gpus"] for row in rows if row["origin"] == "published"} == {
        "8",
        "16",
        "32",
        "64",
        "128",
        "160",
    }
    mine = {row["job_id"]: row["speed_up"] for row in rows if row["origin"] == "ours"}
    assert mine == {"job-0": "1.00", "job-1": "18.17", "job-2": "18.17"}, "the median of repeats"
    page = made.page.read_text()
    assert "<svg" in page
    assert "on 160 GPUs, in images a second: 110,000." in page
    assert "http://www.w3.org" not in page.replace('xmlns="http://www.w3.org/2000/svg"', ""), "loads nothing"
    with pytest.raises(UserError, match="its report is of its own"):
        reports.make(["aws-batch", "local"], tmp_path, project=ROOT)


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

    def up(self, _on_event: Any, *, benchmark: bool = True) -> dict[str, Any]:
        self.did.append("up" if benchmark else "up without a job")
        return self.outputs()

    def destroy(self, _on_event: Any) -> None:
        self.did.append("destroy")
        self._gone()


def test_up_ends_in_the_result_and_down_in_nothing(
    there: There, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The provider's own code runs against moto, and only the engine and the program's rehearsal do not."""

    def gone() -> None:
        teardown.remove([PLACE], lambda _: None)
        there("logs").delete_log_group(logGroupName=log_group("aws-batch"))

    engine = Engine(gone)
    monkeypatch.setattr(runner, "select", lambda *_: engine)
    monkeypatch.setattr(operate, "check_program", lambda *_: None)
    config = load_file(STACK.file)
    made = submit.submit(BatchService(DESIGN, there))
    stream = there("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    there.write_log(stream, f"RESULT {json.dumps(RESULT)}")
    found = operate.bring_up(STACK, config, Console())
    assert found["result"] is not None
    assert (found["result"]["job_id"], found["result"]["result"]) == (made.id, RESULT)
    text = capsys.readouterr().out
    assert "images per second" in text
    assert "slurm-stacks/v1: aws-batch, AWS Batch, partitions tf-queue" in text
    assert operate.bring_up(STACK, config, Console(), benchmark=False, quiet=True)["result"] is None
    operate.take_down(STACK, "aws", Console(), yes=True)
    assert engine.did == ["up", "up without a job", "destroy"]
    assert teardown.left([PLACE]) == []
