"""`./cluster` with AWS Batch: jobs are submitted, wait, fail and end in a result.

moto's Batch and CloudWatch Logs answer over HTTP. Waiting and failing, which moto's Batch does not do, are
answers that botocore's Stubber holds to Batch's model.
"""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from cli.providers.batch import jobs, run_records, waits
from infra.errors import EXIT_USAGE, NotUpError
from operations.aws.batch.service import BatchService, Job
from tests.support import sentences
from tests.support.aws_account import Account
from tests.support.batch_account import (
    DESIGN,
    REGION,
    RESULT,
    BatchAccount,
    account,
    batch_account,
    moto,
    service,
)
from tests.support.batch_stack import batch_design

__all__ = ["account", "batch_account", "moto", "service"]


def job(status: str = "RUNNABLE", reason: str = "", **more: Any) -> Job:
    return Job("id", "name", status, reason, 20, 1, None, None, 0, **more)


# --- submitting -------------------------------------------------------------------------------------------


def test_the_same_request_is_the_same_job_and_another_revision_another(
    service: BatchService, batch_account: BatchAccount
) -> None:
    first = jobs.submit(service)
    assert jobs.submit(service).id == first.id
    assert jobs.submit(service, 4).id != first.id
    assert jobs.submit(service, number=1).id != first.id
    batch_account.register()
    assert jobs.submit(service).id != first.id, "another image"
    assert [job.name.rsplit("-", 1)[0] for job in service.jobs()].count("aws-batch-20") == 3


def test_another_number_of_nodes_overrides_the_range_and_the_number_of_gpus(service: BatchService) -> None:
    assert jobs.overrides(service, 20) == {}
    made = jobs.overrides(service, 2)
    (nodes,) = made["nodeOverrides"]["nodePropertyOverrides"]
    assert (made["nodeOverrides"]["numNodes"], nodes["targetNodes"]) == (2, "0:")
    assert nodes["containerOverrides"]["environment"] == [{"name": "MPI_GPUS", "value": "16"}]


@pytest.mark.parametrize("nodes", [0, 43])
def test_a_number_of_nodes_that_never_starts_is_refused(service: BatchService, nodes: int) -> None:
    with sentences.raises("batch.nodes-range", "1 to 42") as caught:
        jobs.submit(service, nodes)
    assert caught.value.exit_code == EXIT_USAGE


def test_without_a_stack_the_answer_is_that_it_is_not_up(account: Account) -> None:
    def client(name: str) -> Any:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": account.url}
        return boto3.client(name, "eu-west-2", **keys)

    empty = BatchService(DESIGN, client)
    for asked, code in ((empty.definition, "batch.no-definition"), (empty.jobs, "batch.no-queue")):
        with sentences.raises(code, kind=NotUpError):
            asked()


# --- waiting and results ----------------------------------------------------------------------------------


def test_a_run_ends_in_the_record_of_its_log(service: BatchService, batch_account: BatchAccount) -> None:
    made = jobs.submit(service)
    stream = batch_account("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    batch_account.write_log(stream, "step 1", f"RESULT {json.dumps(RESULT)}", "bye")
    record = jobs.follow(service, made, print)
    assert (record["job_id"], record["nodes"], record["gpus"], record["machine"]) == (
        made.id, 20, 160, "p3dn.24xlarge",
    )  # fmt: skip
    assert record["result"] == RESULT
    run_records.keep_record("aws-batch", record)
    (again,) = run_records.load_records("aws-batch")
    assert run_records.rate(again) == 98000.5


def test_a_job_without_a_result_is_an_error_with_the_end_of_its_log(
    service: BatchService, batch_account: BatchAccount
) -> None:
    made = jobs.submit(service)
    stream = batch_account("batch").describe_jobs(jobs=[made.id])["jobs"][0]["container"]["logStreamName"]
    batch_account.write_log(stream, "no such file: /fsx/resized")
    with sentences.raises("batch.job-failed", "/fsx/resized", "`./cluster up --stack aws-batch`"):
        jobs.follow(service, made, print)


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
        with sentences.raises("batch.job-failed", "137", "memory_mib"):
            jobs.follow(service, job(), said.append, lambda _: None)
        stub.assert_no_pending_responses()
    assert said[0] == "Batch has asked for 1920 vCPUs, and machines are on their way"
    assert said[1].startswith("runs on 20 nodes since")


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
    assert said in waits.waits(one, environment, queue)


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
    name = jobs.name_of(service, "arn:d:2", 2)
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
        with sentences.raises("batch.not-submitted", "FAILED: FSx.BadRequestException no such bucket"):
            jobs.submit(service, 2)
