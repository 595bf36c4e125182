"""What each machine of a cluster may do, as IAM policy documents: pure functions of names and ARNs.

No action has a wildcard. `Resource: "*"` is there only where AWS accepts no other: to describe instances, for
the channels of Systems Manager, and for metrics, which are limited by their namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.aws.tags import reservation_group
from node.aws.api import domain
from node.bootstrap.vm.clouds.cloudwatch import namespace
from node.design.model import ClusterDesign
from node.elastic.drivers.ec2.names import CLUSTER, COMPUTE, ROLE

Document = dict[str, Any]
Statement = dict[str, Any]

VERSION = "2012-10-17"
LAUNCH = ["ec2:RunInstances"]
"""The actions of a launch by the driver (`node.elastic.drivers.ec2.launches`)."""
MADE = ("instance", "volume", "network-interface")
"""What a launch makes. It has the cluster's tag from the first moment."""
PUBLISHED = ("loader.py", "current.json", "code/*", "settings/*")
"""The objects of the cluster's bucket that machines read (`infra.bundle`)."""
BOOTS = "boot/"
"""The prefix of the keys of boot reports."""
KEY = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
SSM_SESSION = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ssm:UpdateInstanceInformation",
)
"""The fewest permissions that Session Manager needs (its user guide). AmazonSSMManagedInstanceCore would let
every machine read every parameter of the account's Parameter Store."""
SSM_MESSAGES = (
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
"""With these, beside `SSM_SESSION`, a machine receives and answers commands of Systems Manager. Image Builder
has no other way to a machine."""
SSM_MANAGED = (
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
"""With `SSM_SESSION` and `SSM_MESSAGES` these are AmazonSSMManagedInstanceCore, which Image Builder documents
for its machines, except for reading the account's Parameter Store."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What the documents name.

    Attributes:
        partition: aws, aws-cn or aws-us-gov: the partition of AWS, which every ARN begins with.
        bucket: The ARN of the cluster's bucket.
        secret: The ARN of the secret with the munge key.
        log_group: The ARN of the log group.
        compute_role: The ARN of the role of nodes.
        subnets: The ids of the subnets where nodes may start.
        groups: The ids of the security groups that nodes may have.
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
        """Return the ARN of a resource of EC2. The ARNs of images and snapshots have no owner."""
        return f"arn:{self.partition}:ec2:{self.region}:{self.account if owner else ''}:{kind}/{name}"


def trust(region: str) -> Document:
    """Return the trust policy: only EC2 machines may take this role.

    In China IAM knows EC2 by a name of its own; aws-parallelcluster writes it in the same way.
    """
    return _document(
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": f"ec2.{domain(region)}"},
        }
    )


def controller(scope: Scope, design: ClusterDesign) -> Document:
    """Let the controller launch and end this cluster's nodes, and keep the munge key.

    It reads no boot reports here: nodes send theirs to it (`node.bootstrap.report_server`).
    """
    return _document(
        _allow("Describe", _describe(design), "*"),
        *_launch(scope, design),
        *_encrypt(scope, design),
        _allow(
            "End",
            ["ec2:TerminateInstances"],
            scope.ec2("instance"),
            # The role tag is required as well, so that the controller cannot end itself or a login machine.
            StringEquals={f"aws:ResourceTag/{CLUSTER}": design.name, f"aws:ResourceTag/{ROLE}": COMPUTE},
        ),
        _allow("Secret", ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"], scope.secret),
        *_directory(design),
        *_backups(scope, design),
        *_member(scope, ["controller"]),
        *_common(scope, design, "controller"),
    )


def login(scope: Scope, design: ClusterDesign) -> Document:
    """Let a login machine boot, and no more.

    It gets the munge key from the controller, not with this role.
    """
    hosts = [host.name for host in design.hosts if host.role == "login"]
    return _document(*_member(scope, hosts), *_common(scope, design, "login"))


def compute(scope: Scope, design: ClusterDesign) -> Document:
    """Let a node boot, and no more. All nodes share one role, so each could write another's boot report.

    Root of every node can act with this role, and with `open_metadata` every process of a node. The role
    therefore gives no access to the munge key, and nothing follows from what nodes write into the bucket.
    """
    return _document(
        *_member(scope, [f"{partition.name}-*" for partition in design.partitions]),
        *_common(scope, design, "compute"),
    )


def image(scope: Scope, design: ClusterDesign) -> Document:
    """Let a machine that becomes an image fetch its code, boot, and do what Image Builder asks.

    It has no secret.
    """
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
        # These are Amazon's own buckets, with the program that runs the steps.
        _allow("Tools", ["s3:GetObject"], f"arn:{scope.partition}:s3:::ec2imagebuilder*"),
        _allow(
            "Logs",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            f"arn:{scope.partition}:logs:{place}:log-group:{image_log_group(design)}:*",
        ),
        _allow("Commands", [*SSM_SESSION, *SSM_MESSAGES, *SSM_MANAGED], "*"),
        *_fetched(scope, design, None),
        *_object_keys(scope, design, None),
    )


def image_log_group(design: ClusterDesign) -> str:
    """Return the log group of image builds. Image Builder writes below this prefix only."""
    return f"/aws/imagebuilder/{design.name}"


def tls_only(bucket: str) -> Document:
    """Return the policy of a bucket: nobody reads or writes without TLS."""
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
    """Launch from this cluster's templates only, into its subnets, with its tag and its nodes' role.

    What a launch uses is identified by its ARN or its tag, and what it makes by the tags of the request.
    Karpenter, which launches in the same way, has a policy of this form.
    """
    cluster_tag = {f"aws:ResourceTag/{CLUSTER}": design.name}
    given = {f"aws:RequestTag/{CLUSTER}": design.name}
    created = [scope.ec2(kind) for kind in MADE]
    from_template = {"ec2:LaunchTemplate": scope.ec2("launch-template")}
    spot = [scope.ec2("spot-instances-request")] if _spot(design) else []
    statements = [
        _allow("LaunchFrom", LAUNCH, scope.ec2("launch-template"), StringEquals=cluster_tag),
        _allow("LaunchInto", LAUNCH, _used(scope, design)),
        # A machine of this cluster without a template could be of any type, so a template is required here.
        _allow(
            "LaunchMachine",
            LAUNCH,
            created,
            StringEquals=given,
            ArnLike=from_template,
        ),
        # Images are not ours to tag, and their ids change. The template says which image it is.
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
            [*created, *spot],
            StringEquals={**given, "ec2:CreateAction": "RunInstances"},
        ),
        _allow(
            "PassRole",
            ["iam:PassRole"],
            scope.compute_role,
            # In China a launch may name either service; Karpenter's policy allows both.
            StringEquals={
                "iam:PassedToService": sorted({"ec2.amazonaws.com", f"ec2.{domain(scope.region)}"})
            },
        ),
    ]
    if spot:
        statements.append(_allow("LaunchSpot", LAUNCH, spot, StringEquals=given))
    if any(p.placement == "cluster" and p.aws.placement_group is None for p in design.partitions):
        group = scope.ec2("placement-group")
        statements.append(_allow("LaunchTogether", LAUNCH, group, StringEquals=cluster_tag))
    return statements


def _used(scope: Scope, design: ClusterDesign) -> list[str]:
    """Return the ARNs of what a launch uses that has no tag of the cluster."""
    return [
        *(scope.ec2("subnet", subnet) for subnet in scope.subnets),
        *(scope.ec2("security-group", group) for group in scope.groups),
        *_reserved(scope, design),
        *sorted(
            {
                scope.ec2("placement-group", p.aws.placement_group)
                for p in design.partitions
                if p.aws.placement_group
            }
        ),
        *([scope.ec2("key-pair", design.access.key)] if design.access.key else []),
        *_of_overrides(design),
    ]


def _of_overrides(design: ClusterDesign) -> list[str]:
    """Return the ARNs of licenses and groups of hosts that the stack file gives launch templates.

    RunInstances asks for them as for all that it uses (service authorization reference of EC2).
    """
    arns: set[str] = set()
    for overrides in (partition.overrides() for partition in design.partitions):
        arns |= {
            specification["license_configuration_arn"]
            for specification in overrides.get("license_specifications", ())
        }
        group = overrides.get("placement", {}).get("host_resource_group_arn")
        arns |= {group} if group else set()
    return sorted(arns)


def disk_keys(design: ClusterDesign) -> list[str]:
    """Return the customer's keys of disks: the cluster's, and those of volumes that overrides add."""
    volumes = [v for p in design.partitions for v in p.overrides().get("block_device_mappings", ())]
    keys = [design.aws.kms_key, *(volume.get("ebs", {}).get("kms_key_id") for volume in volumes)]
    return list(dict.fromkeys(key for key in keys if key is not None))


def _encrypt(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """Let EC2 use a customer's keys for the disks of machines that the controller launches, and no others.

    The actions are those of the EBS guide ("Permissions for IAM users").
    """
    keys = disk_keys(design)
    if not keys:
        return []
    named: str | list[str] = keys[0] if len(keys) == 1 else keys
    by_ec2 = {"kms:ViaService": f"ec2.{scope.region}.{domain(scope.region)}"}
    return [
        _allow("DisksKey", list(KEY), named, StringEquals=by_ec2),
        _allow(
            "DisksGrant",
            ["kms:CreateGrant"],
            named,
            StringEquals=by_ec2,
            Bool={"kms:GrantIsForAWSResource": "true"},
        ),
    ]


def _describe(design: ClusterDesign) -> list[str]:
    """Return the read actions of the driver. EC2 accepts no ARN for any of them."""
    calls = ["DescribeInstances", "DescribeInstanceStatus", "DescribeLaunchTemplateVersions"]
    spot = ["DescribeSpotInstanceRequests"] if _spot(design) else []
    near = ["DescribeInstanceTopology"] if any(p.topology for p in design.partitions) else []
    return [f"ec2:{call}" for call in [*calls, *spot, *near]]


def _spot(design: ClusterDesign) -> bool:
    return any(partition.spot for partition in design.partitions)


def _reserved(scope: Scope, design: ClusterDesign) -> list[str]:
    """Return the capacity reservations of the partitions, or a group of reservations and whatever is in it.

    Of a group that the stack makes the members are known. AWS adds characters to the ARN of a newer group.
    """
    names = {p.reservation for p in design.partitions if p.reservation}
    groups = {name for name in names if name.startswith("arn:")}
    # Reservations of the largest machines belong to AWS or another account and are shared. Their ARN has that
    # account.
    wanted = (names - groups) | ({"*"} if groups else set())
    place = f"arn:{scope.partition}:ec2:{scope.region}:*:capacity-reservation"
    group = f"arn:{scope.partition}:resource-groups:{scope.region}:{scope.account}:group"
    arns = {
        arn
        for p in design.partitions
        if p.reservations
        for name in [reservation_group(design.name, p.name)]
        for arn in (
            f"{group}/{name}",
            f"{group}/{name}/*",
            *(_reservation(scope, reservation) for reservation in p.reservations),
        )
    }
    return sorted(groups | arns | {f"{place}/{name}" for name in wanted})


def _reservation(scope: Scope, name: str) -> str:
    """Return the ARN of a member of a group: without an ARN in the stack file it is of this account."""
    return name if name.startswith("arn:") else scope.ec2("capacity-reservation", name)


def _member(scope: Scope, hosts: Sequence[str]) -> list[Statement]:
    """Return what every machine needs in order to boot.

    S3 says that an object is missing only to those who may list the bucket; to others it says that they may
    not read the object. So the boot never asks for an object that may be missing.
    """
    return [
        _allow("Bucket", ["s3:GetObject"], [f"{scope.bucket}/{part}" for part in PUBLISHED]),
        _report(scope, hosts),
    ]


def _report(scope: Scope, hosts: Sequence[str]) -> Statement:
    return _allow("Report", ["s3:PutObject"], [f"{scope.bucket}/{BOOTS}{host}.json" for host in hosts])


def _common(scope: Scope, design: ClusterDesign, role: str) -> list[Statement]:
    """Let a machine write log and metrics, and fetch hooks and packages in S3.

    Where users come in through Session Manager, it may use that too.

    Log streams are named after their machine. A machine writes into those of its own kind, so that no node
    can forge the controller's logs.
    """
    streams = [f"{scope.log_group}:log-stream:{host}/*" for host in _machines(design, role)]
    statements = [
        _allow("Logs", ["logs:CreateLogStream"], f"{scope.log_group}:*"),
        _allow("LogEvents", ["logs:PutLogEvents"], streams),
        _allow(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            "*",
            StringEquals={"cloudwatch:namespace": namespace(design.name)},
        ),
    ]
    statements += _fetched(scope, design, role)
    statements += _buckets(scope, design, role)
    statements += _object_keys(scope, design, role)
    # Whoever holds a channel can answer in the name of its machine. `up` reaches the controller and login
    # machines in this way (`operations.clouds.commands`), and people go on to nodes from there.
    if design.access.mode == "ssm" and role != "compute":
        statements.append(_allow("Session", list(SSM_SESSION), "*"))
    return statements


def _machines(design: ClusterDesign, role: str) -> list[str]:
    """Return the names of a role's machines; nodes by their partition."""
    if role == "compute":
        return [f"{partition.name}-*" for partition in design.partitions]
    return [host.name for host in design.hosts if host.role == role]


def _fetched(scope: Scope, design: ClusterDesign, role: str | None) -> list[Statement]:
    objects = [
        f"arn:{scope.partition}:s3:::{source.removeprefix('s3://')}"
        for source in design.fetched(role, "s3://")
    ]
    return [_allow("Hooks", ["s3:GetObject"], objects)] if objects else []


def _buckets(scope: Scope, design: ClusterDesign, role: str) -> list[Statement]:
    """Return what Mountpoint needs for the buckets that a role mounts.

    Its CONFIGURATION.md, "IAM permissions", has the list.
    """
    statements: list[Statement] = []
    mounts = [mount for mount in design.mounts if mount.kind == "s3" and role in mount.roles]
    for number, mount in enumerate(mounts):
        name, prefix = mount.bucket()
        arn = f"arn:{scope.partition}:s3:::{name}"
        below = {"StringLike": {"s3:prefix": [prefix, f"{prefix}*"]}} if prefix else {}
        change = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject"] if mount.writable else []
        statements.append(_allow(f"MountList{number}", ["s3:ListBucket"], arn, **below))
        statements.append(_allow(f"MountRead{number}", ["s3:GetObject", *change], f"{arn}/{prefix}*"))
    return statements


def _directory(design: ClusterDesign) -> list[Statement]:
    """Let the controller read the password with which machines ask the directory of users."""
    directory = design.access.directory
    if directory is None or directory.password_secret is None:
        return []
    return [_allow("Directory", ["secretsmanager:GetSecretValue"], directory.password_secret)]


def _backups(scope: Scope, design: ClusterDesign) -> list[Statement]:
    """Let the controller write, list, read and prune this cluster's backups, and nothing else there."""
    if design.backup is None:
        return []
    address, prefix = design.backup.place()
    arn = f"arn:{scope.partition}:s3:::{address.removeprefix('s3://')}"
    ours = f"{prefix}{design.name}-*"
    objects = ["s3:PutObject", "s3:GetObject", "s3:DeleteObject"]
    return [
        _allow("BackupList", ["s3:ListBucket"], arn, StringLike={"s3:prefix": [ours]}),
        _allow("Backup", objects, f"{arn}/{ours}"),
    ]


def _object_keys(scope: Scope, design: ClusterDesign, role: str | None) -> list[Statement]:
    """Let a role use the customer's keys of objects that it may read or write in the user's buckets.

    Nobody names these keys in the stack file. S3 tells KMS the object, or the bucket where that has a bucket
    key. So the grant is on these alone, and for what S3 asks in this role's name. The key's policy decides,
    too.
    """
    mounts = [mount for mount in design.mounts if mount.kind == "s3" and role in mount.roles]
    places = [(*mount.bucket(), mount.writable) for mount in mounts]
    if design.backup is not None and role == "controller":
        address, prefix = design.backup.place()
        places.append((address.removeprefix("s3://"), f"{prefix}{design.name}-", True))
    objects = [source.removeprefix("s3://").partition("/") for source in design.fetched(role, "s3://")]
    wanted = {
        "ObjectsKey": [
            *(text for name, prefix, _ in places for text in (name, f"{name}/{prefix}*")),
            *(text for name, _, key in objects for text in (name, f"{name}/{key}")),
        ],
        "WrittenKey": [
            text for name, prefix, writes in places if writes for text in (name, f"{name}/{prefix}*")
        ],
    }
    actions = {"ObjectsKey": "kms:Decrypt", "WrittenKey": "kms:GenerateDataKey"}
    return [
        _allow(
            sid,
            [actions[sid]],
            f"arn:{scope.partition}:kms:{scope.region}:{scope.account}:key/*",
            StringEquals={"kms:ViaService": f"s3.{scope.region}.{domain(scope.region)}"},
            StringLike={
                "kms:EncryptionContext:aws:s3:arn": [
                    f"arn:{scope.partition}:s3:::{text}" for text in dict.fromkeys(texts)
                ]
            },
        )
        for sid, texts in wanted.items()
        if texts
    ]


def _document(*statements: Statement) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}


def _allow(
    sid: str, actions: list[str], resources: str | list[str], **conditions: dict[str, Any]
) -> Statement:
    statement: Statement = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}
    return {**statement, "Condition": conditions} if conditions else statement
