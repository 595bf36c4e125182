"""What each machine of a cluster may do, as IAM policy documents: pure functions of names and ARNs.

No action has a wildcard. `Resource: "*"` stands only where AWS takes no other: to describe instances, for the
channels of Systems Manager, and for metrics, which their namespace bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.node.bootstrap.vm.logs import namespace
from infra.node.elastic.drivers.ec2_names import CLUSTER, COMPUTE, ROLE
from infra.node.model import ClusterDesign

Document = dict[str, Any]
Statement = dict[str, Any]

VERSION = "2012-10-17"
LAUNCH = ["ec2:RunInstances"]
"""All that the driver launches with (`infra.node.elastic.drivers.ec2_launch`)."""
MADE = ("instance", "volume", "network-interface")
"""What a launch makes: it carries the cluster's tag from the first moment."""
PUBLISHED = ("loader.py", "current.json", "code/*", "settings/*")
"""What machines read of the cluster's bucket (`infra.bundle`)."""
BOOTS = "boot/"
"""Below which their boot reports lie."""
SESSION = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ssm:UpdateInstanceInformation",
)
"""The least that Session Manager needs (its user guide). AmazonSSMManagedInstanceCore would let every machine
read every parameter of the account's Parameter Store."""

MESSAGES = (
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
"""Beside `SESSION`, how commands of Systems Manager come and are answered: Image Builder has no other way."""

MANAGED = (
    "ssm:DescribeAssociation",
    "ssm:DescribeDocument",
    "ssm:GetDeployablePatchSnapshotForInstance",
    "ssm:GetDocument",
    "ssm:GetManifest",
    "ssm:ListAssociations",
    "ssm:ListInstanceAssociations",
    "ssm:PutComplianceItems",
    "ssm:PutConfigurePackageResult",
    "ssm:PutInventory",
    "ssm:UpdateAssociationStatus",
    "ssm:UpdateInstanceAssociationStatus",
)
"""With `SESSION` and `MESSAGES` all of AmazonSSMManagedInstanceCore, which Image Builder documents for its
machines, but for reading the account's Parameter Store."""
KEY = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What the documents name.

    Attributes:
        partition: aws, aws-cn or aws-us-gov: the first part of every ARN.
        bucket: the cluster's bucket, as all below by its ARN.
        secret: of the munge key.
        compute_role: what nodes run as.
        subnets: ids of those where nodes may start.
        groups: ids of the security groups that nodes may have.
    """

    partition: str
    region: str
    account: str
    bucket: str
    secret: str
    log_group: str
    compute_role: str
    subnets: Sequence[str]
    groups: Sequence[str]

    def ec2(self, kind: str, name: str = "*", *, owner: bool = True) -> str:
        """An ARN of EC2's; images and snapshots have no owner in theirs."""
        return f"arn:{self.partition}:ec2:{self.region}:{self.account if owner else ''}:{kind}/{name}"


def trust() -> Document:
    """EC2's machines, and nobody else, may be this role."""
    return _document(
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "ec2.amazonaws.com"},
        }
    )


def controller(scope: Scope, design: ClusterDesign) -> Document:
    """The head: launches and ends this cluster's nodes, keeps the munge key, reads every boot report."""
    return _document(
        _allow("Describe", _describe(design), "*"),
        *_launch(scope, design),
        *_encrypt(scope, design),
        _allow(
            "End",
            ["ec2:TerminateInstances"],
            scope.ec2("instance"),
            # Of its own role too: it must not end itself, nor a login machine.
            StringEquals={f"aws:ResourceTag/{CLUSTER}": design.name, f"aws:ResourceTag/{ROLE}": COMPUTE},
        ),
        _allow("Secret", ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"], scope.secret),
        _allow("Bucket", ["s3:GetObject"], [f"{scope.bucket}/{part}" for part in (*PUBLISHED, f"{BOOTS}*")]),
        # The driver finds in the list which reports are new.
        _allow("List", ["s3:ListBucket"], scope.bucket, StringEquals={"s3:prefix": BOOTS}),
        _report(scope, ["controller"]),
        *_common(scope, design, "controller"),
    )


def login(scope: Scope, design: ClusterDesign) -> Document:
    """A login machine: its own boot. The munge key comes from the controller, not with this identity."""
    hosts = [host.name for host in design.hosts if host.role == "login"]
    return _document(*_member(scope, hosts), *_common(scope, design, "login"))


def compute(scope: Scope, design: ClusterDesign) -> Document:
    """A node: its own boot. All nodes have one role, so each could write another's report.

    Every process of a node, of any user, can act with this role: it gives no way to the munge key.
    """
    return _document(
        *_member(scope, [f"{partition.name}-*" for partition in design.partitions]),
        *_common(scope, design, "compute"),
    )


def image(scope: Scope, design: ClusterDesign) -> Document:
    """A machine that becomes an image: the code and its boot, what Image Builder has it do, and no secret."""
    place = f"{scope.region}:{scope.account}"
    parts = ("loader.py", "image.json", "code/*", "settings/*")
    return _document(
        _allow("Bucket", ["s3:GetObject"], [f"{scope.bucket}/{part}" for part in parts]),
        _report(scope, ["image-*"]),
        _allow(
            "Steps",
            ["imagebuilder:GetComponent"],
            f"arn:{scope.partition}:imagebuilder:{place}:component/{design.name}-*",
        ),
        # Amazon's own buckets, with the program that runs the steps.
        _allow("Tools", ["s3:GetObject"], f"arn:{scope.partition}:s3:::ec2imagebuilder*"),
        _allow(
            "Logs",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            f"arn:{scope.partition}:logs:{place}:log-group:{image_log_group(design)}:*",
        ),
        _allow("Commands", [*SESSION, *MESSAGES, *MANAGED], "*"),
    )


def image_log_group(design: ClusterDesign) -> str:
    """Where images' builds log: Image Builder writes below this prefix only."""
    return f"/aws/imagebuilder/{design.name}"


def tls_only(bucket: str) -> Document:
    """A bucket's own policy: nobody reads or writes in clear."""
    return _document(
        {
            "Sid": "TlsOnly",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": [bucket, f"{bucket}/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    )


def _launch(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """From this cluster's launch templates only, into its subnets, with its tag and its nodes' role.

    What is used is told by its ARN or its tag, what is made by the tags that the request gives it: the form
    of Karpenter's policy, which launches in the same way.
    """
    ours = {f"aws:ResourceTag/{CLUSTER}": design.name}
    given = {f"aws:RequestTag/{CLUSTER}": design.name}
    made = [scope.ec2(kind) for kind in MADE]
    from_template = {"ec2:LaunchTemplate": scope.ec2("launch-template")}
    spot = [scope.ec2("spot-instances-request")] if _spot(design) else []
    statements = [
        _allow("LaunchFrom", LAUNCH, scope.ec2("launch-template"), StringEquals=ours),
        _allow("LaunchInto", LAUNCH, _used(scope, design)),
        # A machine of this cluster's without a template could be of any shape, so EC2 asks for one here.
        _allow(
            "LaunchMachine",
            LAUNCH,
            made,
            StringEquals=given,
            ArnLike=from_template,
        ),
        # Images are not ours to tag, and their ids change: the template says which one it is.
        _allow(
            "LaunchImage",
            LAUNCH,
            [scope.ec2("image", owner=False), scope.ec2("snapshot", owner=False)],
            ArnLike=from_template,
            Bool={"ec2:IsLaunchTemplateResource": "true"},
        ),
        _allow(
            "TagAtLaunch",
            ["ec2:CreateTags"],
            [*made, *spot],
            StringEquals={**given, "ec2:CreateAction": "RunInstances"},
        ),
        _allow(
            "PassRole",
            ["iam:PassRole"],
            scope.compute_role,
            StringEquals={"iam:PassedToService": "ec2.amazonaws.com"},
        ),
    ]
    if spot:
        statements.append(_allow("LaunchSpot", LAUNCH, spot, StringEquals=given))
    if any(p.placement == "cluster" and p.placement_group is None for p in design.partitions):
        group = scope.ec2("placement-group")
        statements.append(_allow("LaunchTogether", LAUNCH, group, StringEquals=ours))
    return statements


def _used(scope: Scope, design: ClusterDesign) -> list[str]:
    """What a launch uses and has no tag of the cluster's."""
    return [
        *(scope.ec2("subnet", subnet) for subnet in scope.subnets),
        *(scope.ec2("security-group", group) for group in scope.groups),
        *_reserved(scope, design),
        *sorted(
            {scope.ec2("placement-group", p.placement_group) for p in design.partitions if p.placement_group}
        ),
        *([scope.ec2("key-pair", design.access.key)] if design.access.key else []),
    ]


def _encrypt(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """With a customer's key: who launches a machine lets EC2 use it for the machine's disks, and that alone.

    The actions are those of the EBS guide ("Permissions for IAM users").
    """
    if design.kms_key is None:
        return []
    suffix = ".cn" if scope.partition == "aws-cn" else ""
    by_ec2 = {"kms:ViaService": f"ec2.{scope.region}.amazonaws.com{suffix}"}
    return [
        _allow("DisksKey", list(KEY), design.kms_key, StringEquals=by_ec2),
        _allow(
            "DisksGrant",
            ["kms:CreateGrant"],
            design.kms_key,
            StringEquals=by_ec2,
            Bool={"kms:GrantIsForAWSResource": "true"},
        ),
    ]


def _describe(design: ClusterDesign) -> list[str]:
    """What the driver reads; EC2 takes no ARN for any of it."""
    calls = ["DescribeInstances", "DescribeInstanceStatus", "DescribeLaunchTemplateVersions"]
    return [f"ec2:{call}" for call in [*calls, *(["DescribeSpotInstanceRequests"] if _spot(design) else [])]]


def _spot(design: ClusterDesign) -> bool:
    return any(partition.spot for partition in design.partitions)


def _reserved(scope: Scope, design: ClusterDesign) -> list[str]:
    """The capacity reservations that partitions aim at, or a group of them and whatever is in it."""
    names = {p.reservation for p in design.partitions if p.reservation}
    groups = {name for name in names if name.startswith("arn:")}
    # Those for the largest machines are AWS's or another account's, and shared: that account is in their ARN.
    wanted = (names - groups) | ({"*"} if groups else set())
    place = f"arn:{scope.partition}:ec2:{scope.region}:*:capacity-reservation"
    return sorted(groups | {f"{place}/{name}" for name in wanted})


def _member(scope: Scope, hosts: Sequence[str]) -> list[Statement]:
    """What every machine needs to become one of the cluster's.

    S3 tells only who may list that an object is not there, and others that it may not be read: nothing here
    asks for what may be missing.
    """
    return [
        _allow("Bucket", ["s3:GetObject"], [f"{scope.bucket}/{part}" for part in PUBLISHED]),
        _report(scope, hosts),
    ]


def _report(scope: Scope, hosts: Sequence[str]) -> Statement:
    return _allow("Report", ["s3:PutObject"], [f"{scope.bucket}/{BOOTS}{host}.json" for host in hosts])


def _common(scope: Scope, design: ClusterDesign, role: str) -> list[Statement]:
    """Logs and metrics; hooks that lie in S3; Session Manager where it is the way in."""
    made = [
        _allow("Logs", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{scope.log_group}:*"),
        _allow(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            "*",
            StringEquals={"cloudwatch:namespace": namespace(design.name)},
        ),
    ]
    sources = [h.source for h in design.hooks if h.role in (role, "all") and h.source.startswith("s3://")]
    if sources:
        objects = [f"arn:{scope.partition}:s3:::{source.removeprefix('s3://')}" for source in sources]
        made.append(_allow("Hooks", ["s3:GetObject"], list(dict.fromkeys(objects))))
    if design.access.mode == "ssm":
        made.append(_allow("Session", list(SESSION), "*"))
    return made


def _document(*statements: Statement) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(
    sid: str, actions: list[str], resources: str | list[str], **conditions: dict[str, Any]
) -> Statement:
    made: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**made, "Condition": conditions} if conditions else made
