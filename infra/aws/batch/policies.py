"""What the machines, the jobs and the services of a Batch stack may do, as IAM policy documents.

As in `infra.aws.policies` no action has a wildcard, but for what FSx asks of a bucket (`LINKED_BUCKET`).
`Resource: "*"` is there only where AWS takes no other: ECR's token, the agent's question for its endpoint,
and the actions that describe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from infra.aws.batch import access
from infra.aws.policies import VERSION, Document, Statement
from node.design.model import ClusterDesign
from node.elastic.drivers.ec2.names import CLUSTER

PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
OF_CLUSTER = (
    "ecs:DeregisterContainerInstance",
    "ecs:RegisterContainerInstance",
    "ecs:SubmitAttachmentStateChanges",
    "ecs:SubmitContainerStateChange",
    "ecs:SubmitTaskStateChange",
)
LINKED_BUCKET = ("s3:Get*", "s3:List*", "s3:PutObject")
"""What FSx asks of whoever makes a file system that is linked to a bucket. These are the words of its own
refusal, which names no single actions, and so does aws-parallelcluster's policy."""
OF_MACHINE = ("ecs:Poll", "ecs:StartTelemetrySession", "ecs:UpdateContainerInstancesState")
"""The ECS agent's actions on a cluster and on a machine (service authorization reference). Together with
`PULL` and the logs they are what AmazonEC2ContainerServiceforEC2Role allows on everything."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the documents name.

    Attributes:
        partition: aws, aws-cn or aws-us-gov: the partition of AWS, which every ARN begins with.
        log_group: The ARN of the log group.
        repository: The ARN of the stack's repository; `None` if the image is somebody else's.
        bucket: The ARN of the bucket with manifests; `None` without one.
    """

    partition: str
    region: str
    account: str
    log_group: str
    repository: str | None = None
    bucket: str | None = None

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of this account and region."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


def trust(service: str, **conditions: dict[str, Any]) -> Document:
    """Return a trust policy: only this service may take the role."""
    statement: Statement = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": f"{service}.amazonaws.com"},
    }
    return document({**statement, "Condition": conditions} if conditions else statement)


def machine(scope: Scope, design: ClusterDesign) -> Document:
    """Let a machine register with the environment's ECS cluster, pull the image, and write its jobs' logs.

    Batch names the ECS cluster after the environment: `AWSBatch-<environment>-<id>`, formerly
    `<environment>_Batch_<id>`.
    """
    batch = access.of(design)
    names = (f"AWSBatch-{batch.compute_environment}-*", f"{batch.compute_environment}_Batch_*")
    clusters = [scope.arn("ecs", f"cluster/{name}") for name in names]
    statements = [
        allow("Cluster", list(OF_CLUSTER), clusters),
        allow(
            "Machine", list(OF_MACHINE), [scope.arn("ecs", f"container-instance/{name}/*") for name in names]
        ),
        allow("Endpoint", ["ecs:DiscoverPollEndpoint"], "*"),
        allow("Logs", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{scope.log_group}:*"),
    ]
    statements += pull(scope, design)
    if batch.file_system == "job":
        statements.append(allow("FileSystem", ["ssm:GetParameter"], parameter(scope, design)))
    return document(*statements)


def pull(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """Let a machine pull the container image. One that is in no repository of ECR needs nothing of AWS."""
    image = scope.repository or _repository(access.of(design).container_image)
    if image is None:
        return []
    return [allow("Token", ["ecr:GetAuthorizationToken"], "*"), allow("Pull", list(PULL), image)]


def job(scope: Scope) -> Document | None:
    """Let a job read manifests. It needs nothing else of AWS: FSx reads and writes S3 itself.

    Returns:
        `None` if there is nothing to allow.
    """
    if scope.bucket is None:
        return None
    return document(allow("Manifest", ["s3:GetObject"], f"{scope.bucket}/{access.MANIFESTS}*"))


def submit(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """Let a role submit this stack's job to this stack's queue."""
    batch = access.of(design)
    definition = scope.arn("batch", f"job-definition/{batch.job_definition}")
    queue = scope.arn("batch", f"job-queue/{batch.queue}")
    return [allow("Submit", ["batch:SubmitJob"], [definition, f"{definition}:*", queue])]


def rule(scope: Scope, design: ClusterDesign) -> Document:
    """Let a rule submit the job."""
    return document(*submit(scope, design))


def start(machine: str) -> Document:
    """Let a rule start a state machine."""
    return document(allow("Start", ["states:StartExecution"], machine))


def budget(scope: Scope, design: ClusterDesign) -> Document:
    """Let the budget's state machine see what is up, count it, and close the queue.

    With `cancel` it may end jobs and environment too.
    """
    batch = access.of(design)
    queue = scope.arn("batch", f"job-queue/{batch.queue}")
    environment = scope.arn("batch", f"compute-environment/{batch.compute_environment}")
    statements = [
        allow("See", ["batch:DescribeComputeEnvironments"], "*"),
        allow("Count", ["dynamodb:UpdateItem"], scope.arn("dynamodb", f"table/{access.ledger(design.name)}")),
        allow("Close", ["batch:UpdateJobQueue"], queue),
    ]
    if design.budget.running_jobs == "cancel":
        statements += [
            allow("List", ["batch:ListJobs"], "*"),
            allow("Stop", ["batch:UpdateComputeEnvironment"], environment),
            allow("End", ["batch:TerminateJob"], scope.arn("batch", "job/*")),
        ]
    return document(*statements)


def file_systems(scope: Scope, design: ClusterDesign) -> Document:
    """Let a job's state machine make and delete a file system of this cluster, and run this stack's job."""
    systems, tasks = scope.arn("fsx", "file-system/*"), scope.arn("fsx", "task/*")
    given = {"StringEquals": {f"aws:RequestTag/{CLUSTER}": design.name}}
    linked = "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/*"
    events = scope.arn("events", "rule/StepFunctionsGetEventsForBatchJobsRule")
    return document(
        allow("Make", ["fsx:CreateFileSystem", "fsx:TagResource"], systems, **given),
        # These two have no resource in the service authorization reference, so no ARN would allow them.
        allow("Look", ["fsx:DescribeDataRepositoryTasks", "fsx:DescribeFileSystems"], "*"),
        allow("LinkedBucket", list(LINKED_BUCKET), _linked(scope, design)),
        allow("Delete", ["fsx:CreateDataRepositoryTask", "fsx:DeleteFileSystem"], systems, **tagged(design)),
        allow("Export", ["fsx:CreateDataRepositoryTask"], tasks),
        # FSx reads and writes S3 with a service-linked role for each file system.
        allow(
            "Linked",
            ["iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy"],
            f"arn:{scope.partition}:iam::{scope.account}:role/{linked}",
        ),
        allow("Tell", ["ssm:DeleteParameter", "ssm:PutParameter"], parameter(scope, design)),
        *submit(scope, design),
        allow("Wait", ["batch:DescribeJobs"], "*"),
        allow("End", ["batch:TerminateJob"], scope.arn("batch", "job/*")),
        # Step Functions waits for a job by a rule of its own (its developer guide, "AWS Batch").
        allow("Events", ["events:DescribeRule", "events:PutRule", "events:PutTargets"], events),
    )


def _linked(scope: Scope, design: ClusterDesign) -> list[str]:
    """Return the ARNs of the buckets that a job's file system is linked to, and of their objects."""
    addresses = [
        address for mount in design.mounts for address in (mount.s3_import, mount.s3_export) if address
    ]
    names = dict.fromkeys(address.removeprefix("s3://").partition("/")[0] for address in addresses)
    return [f"arn:{scope.partition}:s3:::{name}{part}" for name in names for part in ("", "/*")]


def tagged(design: ClusterDesign) -> dict[str, Any]:
    """Return the condition that a resource has this cluster's tag."""
    return {"StringEquals": {f"aws:ResourceTag/{CLUSTER}": design.name}}


def document(*statements: Statement) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def allow(
    sid: str, actions: list[str], resources: str | list[str], **conditions: dict[str, Any]
) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": conditions} if conditions else statement


def parameter(scope: Scope, design: ClusterDesign) -> str:
    """Return the ARN of the parameter with the address of a job's file system."""
    return scope.arn("ssm", f"parameter{access.parameter(design.name)}")


def _repository(image: str | None) -> str | None:
    """Return the ARN of an image's repository in ECR, by its address; `None` if the image is elsewhere."""
    host, _, path = (image or "").partition("/")
    parts = host.split(".")
    if len(parts) < 6 or parts[1:3] != ["dkr", "ecr"]:
        return None
    china = parts[-1] == "cn"
    name = path.partition("@")[0].partition(":")[0]
    return f"arn:{'aws-cn' if china else 'aws'}:ecr:{parts[3]}:{parts[0]}:repository/{name}"
