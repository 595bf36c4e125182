"""A budget, manifests, file systems of jobs: resources, policies, state machines by botocore's models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator

from infra.aws.batch import options, policies, states
from infra.aws.batch.cluster import BatchCluster
from infra.aws.batch.environment import user_data
from infra.aws.batch.states import budget_limits
from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design.model import Budget, ClusterDesign
from tests.support.aws_mocks import ACCOUNT, declare
from tests.support.batch_aws import BatchAws
from tests.support.batch_stack import batch_design
from tests.support.checkout import ROOT
from tests.support.iam import allowed
from tests.support.recorder import counts, custom, needs
from tests.support.stack_values import filled_in

SESSION = botocore.session.get_session()
SCOPE = policies.Scope("aws", "us-east-1", ACCOUNT, "arn:aws:logs:us-east-1:1:log-group:g")
CANCELS = dataclasses.replace(batch_design(), budget=Budget(max_usd=1000.0, running_jobs="cancel"))
KEEPS = dataclasses.replace(batch_design(), budget=Budget(max_hours=100.0, running_jobs="keep"))
OF_JOB = batch_design(file_system="job", start_on_manifest=True)
NO_EXPORT = dataclasses.replace(
    OF_JOB, mounts=tuple(dataclasses.replace(mount, s3_export=None) for mount in OF_JOB.mounts)
)
PLACE = ("subnet-12345678", ["sg-12345678"])
MACHINES = {
    "cancels": states.budget_machine(CANCELS, "aws", budget_limits(CANCELS)["usd"]),
    "keeps": states.budget_machine(KEEPS, "aws", budget_limits(KEEPS)["hours"]),
    "job": states.job_machine(OF_JOB, "aws", *PLACE),
    "no-export": states.job_machine(NO_EXPORT, "aws", *PLACE),
}
DOCUMENTS = {
    "cancels": policies.budget(SCOPE, CANCELS),
    "keeps": policies.budget(SCOPE, KEEPS),
    "job": policies.file_systems(SCOPE, OF_JOB),
}


def walk(machine: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the states of a state machine, including those inside of maps."""
    for name, state in machine["States"].items():
        yield name, state
        if "ItemProcessor" in state:
            yield from walk(state["ItemProcessor"])


def successors(state: Mapping[str, Any]) -> Iterator[str]:
    if "Next" in state:
        yield state["Next"]
    if "Default" in state:
        yield state["Default"]
    for one in (*state.get("Choices", ()), *state.get("Catch", ())):
        yield one["Next"]


def calls(machine: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return service, action and parameters of each call."""
    for _, state in walk(machine):
        if state["Type"] == "Task":
            parts = state["Resource"].split(":")
            service, action = parts[-2], parts[-1].removesuffix(".sync")
            yield service, f"{action[0].upper()}{action[1:]}", state["Parameters"]


def filled(shape: Any, value: Any) -> Any:
    """Return parameters as the API gets them: names in its case, and a value of the right type for a path."""
    if shape.type_name == "structure" and isinstance(value, dict):
        members = {name.lower(): name for name in shape.members}
        made = {}
        for key, one in value.items():
            name = members[key.removesuffix(".$").lower()]
            its = shape.members[name]
            made[name] = sample(its) if key.endswith(".$") else filled(its, one)
        return made
    if shape.type_name == "list" and isinstance(value, list):
        return [filled(shape.member, one) for one in value]
    if shape.type_name == "map" and isinstance(value, dict):
        return {key: filled(shape.value, one) for key, one in value.items()}
    return value


def sample(shape: Any) -> Any:
    kinds = {"string": "x" * 20, "integer": 1, "long": 1, "boolean": True, "map": {}, "structure": {}}
    return [sample(shape.member)] if shape.type_name == "list" else kinds[shape.type_name]


# --- state machines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_is_reached_and_every_way_leads_to_a_state(name: str) -> None:
    machine = MACHINES[name]
    for part in (
        machine,
        *(state["ItemProcessor"] for _, state in walk(machine) if "ItemProcessor" in state),
    ):
        known, seen = set(part["States"]), reached(part, part["StartAt"])
        assert seen == known
        ends = {
            name
            for name, one in part["States"].items()
            if one["Type"] in ("Succeed", "Fail") or one.get("End")
        }
        assert ends
        assert all(any(successors(one)) for key, one in part["States"].items() if key not in ends)


@pytest.mark.parametrize("name", MACHINES)
def test_every_call_is_one_that_the_service_takes(name: str) -> None:
    found = list(calls(MACHINES[name]))
    assert found
    for service, action, parameters in found:
        operation = SESSION.get_service_model(service).operation_model(action)
        request = filled(operation.input_shape, parameters)
        report = ParamValidator().validate(request, operation.input_shape)
        assert not report.has_errors(), f"{service} {action}: {report.generate_report()}"


def reached(machine: Mapping[str, Any], *begin: str, without: str = "") -> set[str]:
    """Return these states and all that can follow them, on paths that do not lead through `without`."""
    seen, ahead = set(), list(begin)
    while ahead:
        state = ahead.pop()
        if state not in seen and state != without:
            seen.add(state)
            ahead += successors(machine["States"][state])
    return seen


@pytest.mark.parametrize("name", ["job", "no-export"])
def test_whatever_happens_the_turn_is_given_back(name: str) -> None:
    """The next job waits for it."""
    machine = MACHINES[name]
    assert reached(machine, "Make", without="Free") & {"Done", "Failed"} == set()
    assert all(state["Type"] != "Fail" or key == "Failed" for key, state in machine["States"].items())


def test_a_file_system_is_kept_if_its_export_fails_and_goes_in_all_other_cases() -> None:
    machine = MACHINES["job"]
    made = machine["States"]
    for failing in ("Export", "LookExport"):
        assert [one["Next"] for one in made[failing]["Catch"]] == ["Kept"]
    assert made["Exported"]["Default"] == "Kept"
    assert "Delete" not in reached(machine, "Kept")
    for started in ("Run", "RunSome", "RunManifest"):
        assert set(successors(made[started])) == {"Export"}, "a job that failed has written, too"
        assert set(successors(MACHINES["no-export"]["States"][started])) == {"Delete"}
    for early in ("Make", "Look", "Tell"):
        assert [one["Next"] for one in made[early]["Catch"]] == ["Known"]
    assert "Export" not in reached(machine, "Known"), "no job has written anything"
    assert "Done" not in reached(machine, "NotMade", without="How"), "and no job has run"
    assert made["Make"]["Parameters"]["LustreConfiguration"] == {
        "DeploymentType": "SCRATCH_1",
        "ImportPath": "s3://imagenet-2012",
        "ExportPath": "s3://imagenet-2012/results",
        "AutoImportPolicy": "NEW_CHANGED_DELETED",
    }


def test_an_error_of_a_job_is_the_error_of_its_execution() -> None:
    """`How` fails where an error was noted; every error of a state, and both of our own, are noted there."""
    for state in MACHINES["job"]["States"].values():
        noted = [one["ResultPath"] for one in state.get("Catch", ())]
        if state["Type"] == "Pass":
            noted.append(state["ResultPath"])
            assert set(state["Result"]) == {"Error", "Cause"}
        assert set(noted) <= {"$.failure"}
    (choice,) = MACHINES["job"]["States"]["How"]["Choices"]
    assert (choice["Variable"], choice["Next"]) == ("$.failure", "Failed")


def test_the_budget_ends_what_runs_before_the_next_tick_would_exceed_it() -> None:
    """1000 USD at 31.212 USD an hour and 96 vCPUs are 32 machine-hours, in ticks of five minutes."""
    assert budget_limits(CANCELS) == {"usd": int(1000 / 31.212 * 96 * 60)}
    assert budget_limits(KEEPS) == {"hours": 100 * 96 * 60}
    (choice,) = MACHINES["cancels"]["States"]["Enough"]["Choices"]
    assert choice["Variable"] == "$.ahead.ticks"
    assert choice["NumericGreaterThan"] == budget_limits(CANCELS)["usd"] // 5
    assert {action for _, action, _ in calls(MACHINES["cancels"])} >= {
        "TerminateJob",
        "UpdateComputeEnvironment",
    }
    up = states.budget_machine(
        dataclasses.replace(batch_design(min_vcpus=96), budget=CANCELS.budget), "aws", 1
    )
    (stop,) = (found for _, action, found in calls(up) if action == "UpdateComputeEnvironment")
    assert stop["ComputeResources"] == {"MinvCpus": 0}, "a disabled environment keeps its least up"
    keeps = {action for _, action, _ in calls(MACHINES["keeps"])}
    assert keeps == {"DescribeComputeEnvironments", "UpdateItem", "UpdateJobQueue"}


def test_a_budget_of_batch_ends_what_runs_unless_the_stack_file_keeps_it() -> None:
    """No controller watches, so what runs would otherwise go on and cost without an end."""
    text = filled_in((ROOT / "Pulumi.aws-batch.yaml").read_text())
    for said, wanted in (("", "cancel"), (", running_jobs: keep", "keep")):
        given = text.replace("    batch:\n", f"    budget: {{max_usd: 500{said}}}\n    batch:\n")
        cluster_design = design(parse(yaml.safe_load(given)["config"], "aws-batch"), catalog())
        assert cluster_design.budget == Budget(max_usd=500, running_jobs=wanted)


def test_the_budget_counts_the_prices_of_the_stack_file() -> None:
    """The dearest vCPU of several types counts, with a price that only the stack file knows."""
    text = filled_in((ROOT / "Pulumi.aws-batch.yaml").read_text())
    given = yaml.safe_load(text.replace("[p3dn.24xlarge]", "[p3dn.24xlarge, p4d.24xlarge]"))["config"]
    given["slurm-stacks:cluster"] |= {
        "budget": {"max_usd": 960},
        "instance_types": {"p4d.24xlarge": {"price_hour": 96}},
    }
    cluster_design = design(parse(given, "aws-batch"), catalog())
    assert budget_limits(cluster_design) == {"usd": 960 * 60}


# --- policies, in both directions -------------------------------------------------------------------------

ARNS = {
    "batch:UpdateJobQueue": "job-queue/tf-queue",
    "batch:UpdateComputeEnvironment": "compute-environment/tensorflow-gpu-fsx-ce",
    "batch:SubmitJob": "job-queue/tf-queue",
    "batch:TerminateJob": "job/1",
    "dynamodb:UpdateItem": "table/aws-batch-budget",
    "ssm:PutParameter": "parameter/slurm-stacks/aws-batch/file-system",
    "ssm:DeleteParameter": "parameter/slurm-stacks/aws-batch/file-system",
}
BESIDES = {
    # The further permissions that submitJob.sync and CreateFileSystem need.
    "job": {
        *policies.LINKED_BUCKET,
        "batch:DescribeJobs", "batch:TerminateJob", "events:DescribeRule", "events:PutRule",
        "events:PutTargets", "fsx:TagResource", "iam:AttachRolePolicy", "iam:CreateServiceLinkedRole",
        "iam:PutRolePolicy",
    },
}  # fmt: skip
OURS = {
    "aws:ResourceTag/slurm-stacks:cluster": "aws-batch",
    "aws:RequestTag/slurm-stacks:cluster": "aws-batch",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_state_machine_may_what_it_calls_and_nothing_else(name: str) -> None:
    document = DOCUMENTS[name]
    called = {f"{service}:{action}" for service, action, _ in calls(MACHINES[name])}
    for action in called:
        service = action.partition(":")[0]
        resource = ARNS.get(action, "file-system/fs-1" if service == "fsx" else "*")
        arn = resource if resource == "*" else f"arn:aws:{service}:us-east-1:{ACCOUNT}:{resource}"
        assert allowed(document, action, arn, OURS), action
    granted = {action for statement in document["Statement"] for action in statement["Action"]}
    assert granted - called == BESIDES.get(name, set())


def test_whoever_makes_a_linked_file_system_may_read_and_write_its_bucket_and_no_other() -> None:
    for action in ("s3:GetBucketAcl", "s3:GetObject", "s3:ListBucket", "s3:PutObject"):
        assert allowed(DOCUMENTS["job"], action, "arn:aws:s3:::imagenet-2012/train/1")
        assert not allowed(DOCUMENTS["job"], action, "arn:aws:s3:::others/train/1")
    assert allowed(DOCUMENTS["job"], "s3:ListBucket", "arn:aws:s3:::imagenet-2012")
    assert not allowed(DOCUMENTS["job"], "s3:DeleteObject", "arn:aws:s3:::imagenet-2012/train/1")


def test_a_state_machine_deletes_no_other_clusters_file_system() -> None:
    other = dict.fromkeys(OURS, "other")
    system = f"arn:aws:fsx:us-east-1:{ACCOUNT}:file-system/fs-1"
    for action in ("fsx:DeleteFileSystem", "fsx:CreateFileSystem"):
        assert not allowed(DOCUMENTS["job"], action, system, other)
    queue = f"arn:aws:batch:us-east-1:{ACCOUNT}:job-queue/other"
    assert not allowed(DOCUMENTS["job"], "batch:SubmitJob", queue)
    assert not allowed(DOCUMENTS["cancels"], "batch:UpdateJobQueue", queue)


# --- resources --------------------------------------------------------------------------------------------

RULE, TARGET = "aws:cloudwatch/eventRule:EventRule", "aws:cloudwatch/eventTarget:EventTarget"
STATES, TABLE = "aws:sfn/stateMachine:StateMachine", "aws:dynamodb/table:Table"
WANTED: dict[str, tuple[ClusterDesign, dict[str, int]]] = {
    "budget": (CANCELS, {RULE: 1, TARGET: 1, STATES: 1, TABLE: 1, "aws:budgets/budget:Budget": 1}),
    "manifests": (
        batch_design(start_on_manifest=True),
        {RULE: 1, TARGET: 1, "aws:s3/bucketNotification:BucketNotification": 1},
    ),
    "job": (
        OF_JOB,
        {RULE: 1, TARGET: 1, STATES: 1, "aws:s3/bucketNotification:BucketNotification": 1},
    ),
}


@pytest.mark.parametrize("name", WANTED)
def test_an_option_is_these_resources_and_goes_before_the_jobs(name: str) -> None:
    design, wanted = WANTED[name]
    made = declare(lambda: BatchCluster("c", design), aws=BatchAws())
    kinds = {RULE, TARGET, STATES, TABLE, "aws:budgets/budget:Budget", *wanted}
    assert {kind: count for kind, count in counts(made).items() if kind in kinds} == wanted
    lustre = counts(made).get("aws:fsx/lustreFileSystem:LustreFileSystem", 0)
    assert lustre == (0 if name == "job" else 1)
    starting = {key for key in custom(made) if made.types()[key] in {RULE, TARGET, STATES, TABLE}}
    assert all("c-termination" in needs(made)[key] for key in starting)


def test_the_definition_has_a_value_for_each_placeholder_of_the_command() -> None:
    command = ("train", "--lr", "Ref::lr", "Ref::manifest")
    design = batch_design(command=command, parameters={"lr": "0.1"}, start_on_manifest=True)
    made = declare(lambda: BatchCluster("c", design), aws=BatchAws())
    (definition,) = [key for key, kind in made.types().items() if kind.endswith(":JobDefinition")]
    assert made.inputs(definition)["parameters"] == {"lr": "0.1", "manifest": ""}


def test_a_manifest_starts_the_job_with_its_address() -> None:
    made = declare(lambda: BatchCluster("c", WANTED["manifests"][0]), aws=BatchAws())
    pattern = json.loads(made.inputs("c-manifests-rule")["eventPattern"])
    assert pattern["detail"]["object"]["key"] == [{"prefix": "manifests/"}]
    target = made.inputs("c-manifests-target")
    assert json.loads(target["inputTransformer"]["inputTemplate"]) == {
        "Parameters": {"manifest": "s3://<bucket>/<key>"}
    }
    assert target["batchTarget"]["jobName"] == "aws-batch-manifest"
    given = json.loads(options.job_input("c", "q", "d"))
    assert given.pop("Parameters") == {"manifest": "s3://<bucket>/<key>"}
    assert set(given) == {"JobName", "JobQueue", "JobDefinition"}


def test_machines_of_a_job_ask_for_its_file_system() -> None:
    text = user_data(OF_JOB, {})
    assert '-d \'{"Name": "/slurm-stacks/aws-batch/file-system"}\'' in text
    assert 'mount_one "$source" /fsx lustre relatime,flock' in text
    assert allowed(
        policies.machine(SCOPE, OF_JOB),
        "ssm:GetParameter",
        f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/slurm-stacks/aws-batch/file-system",
    )
