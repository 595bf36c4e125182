"""State machines in Amazon States Language, as plain data, and the budget that one of them counts.

The functions are pure and need no Pulumi: `status` reads the budget here. Each state calls one action of
AWS's API. There is no function of ours to keep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infra.aws.batch import access
from node.design.model import ClusterDesign
from node.design.storage import Mount

State = dict[str, Any]
SDK = "arn:{partition}:states:::aws-sdk:{service}:{action}"
WAIT_SECONDS = 30
LOCK = "being made"
"""The value of the parameter until the file system is there. Whoever makes the parameter has the turn."""
TURN_SECONDS, TURNS = 120, 5_000
"""How often an execution asks for its turn: for a week, in 20,000 of the 25,000 events of an execution."""
RETRY: list[State] = [
    {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 10, "MaxAttempts": 4, "BackoffRate": 2.0}
]
"""A call that only looks, or that may be made twice, is repeated for two and a half minutes."""
LEDGER = "vcpus"
"""The key of the ledger's only number: the vCPUs that were up, added at each tick."""
TICK_MINUTES = 5
"""How often the budget is counted."""
MINUTES = 60


def call(partition: str, service: str, action: str, **fields: Any) -> State:
    """Return a state that calls an action of AWS's API."""
    return {
        "Type": "Task",
        "Resource": SDK.format(partition=partition, service=service, action=action),
        **fields,
    }


def job_machine(design: ClusterDesign, partition: str, subnet: str, groups: list[str]) -> dict[str, Any]:
    """Return the machine that gives each job a file system.

    It makes the file system, runs the job that the input describes, exports to S3, deletes the file system.


    The input is a request of SubmitJob. One job runs at a time: the next one waits for the parameter, because
    machines find the file system by it.
    """
    (mount,) = (mount for mount in design.mounts if mount.kind == "fsx_lustre")
    parameter = access.parameter(design.name)
    caught = _caught("Known")
    after = "Export" if mount.s3_export else "Delete"
    by_id = {"FileSystemIds.$": "States.Array($.made.FileSystem.FileSystemId)"}
    address = "States.Format('{}@tcp:/{}', $.now.FileSystems[0].DNSName, "
    address += "$.now.FileSystems[0].LustreConfiguration.MountName)"
    lifecycle = "$.now.FileSystems[0].Lifecycle"
    last = _last_states(design, partition, mount, parameter)
    return {
        "Comment": f"a file system for each job of {design.name}",
        "StartAt": "Turn",
        "States": {
            "Turn": call(
                partition, "ssm", "putParameter",
                Parameters={"Name": parameter, "Value": LOCK, "Type": "String", "Overwrite": False},
                ResultPath=None,
                Retry=[
                    {
                        "ErrorEquals": ["Ssm.ParameterAlreadyExistsException"],
                        "IntervalSeconds": TURN_SECONDS, "MaxAttempts": TURNS, "BackoffRate": 1.0,
                    }
                ],
                Next="Make",
            ),
            "Make": call(
                partition, "fsx", "createFileSystem", Parameters=_file_system(design, mount, subnet, groups),
                ResultPath="$.made", Catch=caught, Next="Pause",
            ),
            "Pause": {"Type": "Wait", "Seconds": WAIT_SECONDS, "Next": "Look"},
            "Look": call(
                partition, "fsx", "describeFileSystems", Parameters=by_id, ResultPath="$.now", Retry=RETRY,
                Catch=caught, Next="There",
            ),
            "There": {
                "Type": "Choice",
                "Choices": [
                    {"Variable": lifecycle, "StringEquals": "AVAILABLE", "Next": "Tell"},
                    {"Variable": lifecycle, "StringEquals": "CREATING", "Next": "Pause"},
                ],
                "Default": "NotMade",
            },
            "NotMade": _failure("FileSystemFailed", "FSx could not make the file system", "Known"),
            "Tell": call(
                partition, "ssm", "putParameter",
                Parameters={"Name": parameter, "Value.$": address, "Type": "String", "Overwrite": True},
                ResultPath=None, Catch=caught, Next="Overridden",
            ),
            "Overridden": {
                "Type": "Choice",
                "Choices": [
                    {"Variable": "$.NodeOverrides", "IsPresent": True, "Next": "RunSome"},
                    {"Variable": "$.Parameters", "IsPresent": True, "Next": "RunManifest"},
                ],
                "Default": "Run",
            },
            "Run": _run(partition, after),
            "RunSome": _run(partition, after, **{"NodeOverrides.$": "$.NodeOverrides"}),
            "RunManifest": _run(partition, after, **{"Parameters.$": "$.Parameters"}),
            **last,
        },
    }  # fmt: skip


def _caught(then: str) -> list[State]:
    """Keep whatever error a state has for the end, and go on there."""
    return [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": then}]


def _failure(error: str, cause: str, then: str) -> State:
    """Note an error of our own."""
    return {
        "Type": "Pass",
        "Result": {"Error": error, "Cause": cause},
        "ResultPath": "$.failure",
        "Next": then,
    }


def _run(partition: str, then: str, **more: str) -> State:
    """Submit the job and wait for its end; what it has written is exported even if it has failed."""
    request = {key: f"$.{key[:-2]}" for key in ("JobName.$", "JobQueue.$", "JobDefinition.$")}
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::batch:submitJob.sync",
        "Parameters": {**request, "PropagateTags": True, **more},
        "ResultPath": "$.job",
        "Catch": _caught(then),
        "Next": then,
    }


def _last_states(design: ClusterDesign, partition: str, mount: Mount, parameter: str) -> dict[str, State]:
    """Return the states that export and delete the file system, whatever became of the job.

    At the end the turn is given back in every case: a file system whose export failed belongs to no job now.
    """
    by_id = {"FileSystemId.$": "$.made.FileSystem.FileSystemId"}
    task = "$.found.DataRepositoryTasks[0].Lifecycle"
    kept = "the export to S3 failed, and the file system is kept: its files are nowhere else"
    export = {
        "Export": call(
            partition, "fsx", "createDataRepositoryTask",
            Parameters={
                **by_id, "Type": "EXPORT_TO_REPOSITORY", "Report": {"Enabled": False},
                # A call that is repeated makes one task.
                "ClientRequestToken.$": "States.Hash($$.Execution.Id, 'MD5')",
            },
            ResultPath="$.export", Retry=RETRY, Catch=_caught("Kept"),
            Next="PauseExport",
        ),
        "PauseExport": {"Type": "Wait", "Seconds": WAIT_SECONDS, "Next": "LookExport"},
        "LookExport": call(
            partition, "fsx", "describeDataRepositoryTasks",
            Parameters={"TaskIds.$": "States.Array($.export.DataRepositoryTask.TaskId)"},
            ResultPath="$.found", Retry=RETRY, Catch=_caught("Kept"), Next="Exported",
        ),
        "Exported": {
            "Type": "Choice",
            "Choices": [
                {"Variable": task, "StringEquals": "SUCCEEDED", "Next": "Delete"},
                {"Variable": task, "StringEquals": "PENDING", "Next": "PauseExport"},
                {"Variable": task, "StringEquals": "EXECUTING", "Next": "PauseExport"},
            ],
            "Default": "Kept",
        },
        "Kept": _failure("ExportFailed", kept, "Free"),
    } if mount.s3_export else {}  # fmt: skip
    return {
        "Known": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.made", "IsPresent": True, "Next": "Delete"}],
            "Default": "Free",
        },
        **export,
        "Delete": call(
            partition,
            "fsx",
            "deleteFileSystem",
            Parameters=by_id,
            ResultPath=None,
            Retry=RETRY,
            Catch=_caught("Free"),
            Next="Free",
        ),
        "Free": call(
            partition,
            "ssm",
            "deleteParameter",
            Parameters={"Name": parameter},
            ResultPath=None,
            Retry=RETRY,
            Next="How",
        ),
        "How": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.failure", "IsPresent": True, "Next": "Failed"}],
            "Default": "Done",
        },
        "Failed": {"Type": "Fail", "ErrorPath": "$.failure.Error", "CausePath": "$.failure.Cause"},
        "Done": {"Type": "Succeed"},
    }


def _file_system(design: ClusterDesign, mount: Mount, subnet: str, groups: list[str]) -> dict[str, Any]:
    """Return the request of CreateFileSystem. It has the cluster's tags, so `down` finds what is left."""
    from infra.aws.storage import LUSTRE_VERSION
    from infra.aws.tags import tags

    s3 = {
        "ImportPath": mount.s3_import,
        "ExportPath": mount.s3_export,
        "AutoImportPolicy": "NEW_CHANGED_DELETED",
    }
    named = tags(design, f"{design.name}-job")
    return {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": LUSTRE_VERSION,
        "StorageCapacity": mount.size_gib,
        "StorageType": mount.storage_type,
        "SubnetIds": [subnet],
        "SecurityGroupIds": groups,
        "LustreConfiguration": {
            "DeploymentType": mount.deployment,
            **{key: value for key, value in s3.items() if value},
        },
        "Tags": [{"Key": key, "Value": value} for key, value in named.items()],
    }


def budget_machine(design: ClusterDesign, partition: str, most: int) -> dict[str, Any]:
    """Return the machine that adds what is up to the ledger.

    When the next tick would go beyond the budget it closes the queue, and with `running_jobs: cancel` ends
    the jobs and the machines.

    Machines that are up count with or without a job, as EC2 bills them.

    Args:
        most: The budget in vCPU-minutes.
    """
    batch = access.of(design)
    vcpus = "$.seen.ComputeEnvironments[0].ComputeResources.DesiredvCpus"
    closed = {"JobQueue": batch.queue, "State": "DISABLED"}
    stopped: dict[str, Any] = {"ComputeEnvironment": batch.compute_environment, "State": "DISABLED"}
    if batch.min_vcpus:
        # A disabled environment keeps this many up (botocore, batch: ComputeResource).
        stopped["ComputeResources"] = {"MinvCpus": 0}
    states: dict[str, State] = {
        "See": call(
            partition, "batch", "describeComputeEnvironments",
            Parameters={"ComputeEnvironments": [batch.compute_environment]}, ResultPath="$.seen",
            Next="Count",
        ),
        # DynamoDB adds atomically: overlapping ticks are both counted, and a repeated tick counts twice.
        "Count": call(
            partition, "dynamodb", "updateItem",
            Parameters={
                "TableName": access.ledger(design.name),
                "Key": {"Id": {"S": LEDGER}},
                "UpdateExpression": "ADD Ticks :vcpus",
                "ExpressionAttributeValues": {":vcpus": {"N.$": f"States.Format('{{}}', {vcpus})"}},
                "ReturnValues": "ALL_NEW",
            },
            ResultSelector={"ticks.$": "States.StringToJson($.Attributes.Ticks.N)"},
            ResultPath="$.spent", Next="Ahead",
        ),
        # What is up now is up until the next tick, too.
        "Ahead": {
            "Type": "Pass",
            "Parameters": {"ticks.$": f"States.MathAdd($.spent.ticks, {vcpus})"},
            "ResultPath": "$.ahead",
            "Next": "Enough",
        },
        "Enough": {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.ahead.ticks", "NumericGreaterThan": most // TICK_MINUTES, "Next": "Close"}
            ],
            "Default": "Done",
        },
        "Close": call(
            partition, "batch", "updateJobQueue", Parameters=closed, ResultPath=None,
            Next="List" if _cancels(design) else "Done",
        ),
        "Done": {"Type": "Succeed"},
    }  # fmt: skip
    if _cancels(design):
        # A disabled environment starts no machine, and ends those without a job.
        stop = call(
            partition, "batch", "updateComputeEnvironment", Parameters=stopped, ResultPath=None, Next="Done"
        )
        states |= {**_terminate(partition, batch.queue), "Stop": stop}
    return {"Comment": f"the budget of {design.name}", "StartAt": "See", "States": states}


def _cancels(design: ClusterDesign) -> bool:
    return design.budget.running_jobs == "cancel"


def _terminate(partition: str, queue: str) -> dict[str, State]:
    """End the jobs that run or start."""
    each = {
        "StartAt": "End",
        "States": {
            "End": call(
                partition, "batch", "terminateJob",
                Parameters={"JobId.$": "$.JobId", "Reason": "the stack's budget is used up"}, End=True,
            )
        },
    }  # fmt: skip
    states: dict[str, State] = {}
    order = {"List": "RUNNING", "ListStarting": "STARTING", "ListWaiting": "RUNNABLE"}
    names = [*order, "Stop"]
    for number, (name, status) in enumerate(order.items()):
        states[name] = call(
            partition, "batch", "listJobs", Parameters={"JobQueue": queue, "JobStatus": status},
            ResultPath="$.jobs", Next=f"End{name}",
        )  # fmt: skip
        states[f"End{name}"] = {
            "Type": "Map", "ItemsPath": "$.jobs.JobSummaryList", "ItemProcessor": each, "ResultPath": None,
            "Next": names[number + 1],
        }  # fmt: skip
    return states


def text(machine: Mapping[str, Any]) -> str:
    """Return a state machine's definition, as the API takes it."""
    return json.dumps(machine, indent=1)


def budget_limits(design: ClusterDesign) -> dict[str, int]:
    """Return the budget's limits as vCPU-minutes of machines that are up.

    The keys are `usd` and `hours`, as far as they are set.

    Of several machine types the dearest counts for USD, and the first for machine-hours. A limit in USD on
    machines that cost nothing is none.
    """
    batch, (queue,), budget = access.of(design), design.partitions, design.budget
    limits = {}
    if budget.max_usd is not None and batch.vcpu_price_hour:
        limits["usd"] = int(budget.max_usd / batch.vcpu_price_hour * MINUTES)
    if budget.max_hours is not None:
        limits["hours"] = int(budget.max_hours * queue.cpus * MINUTES)
    return limits
