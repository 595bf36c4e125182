"""Machines that mount a bucket of S3 may do there what Mountpoint does for them, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from infra.aws import policies
from node.design.directory import Directory
from node.design.model import Backup, ClusterDesign, Hook
from node.design.storage import Mount
from tests.support.aws_mocks import ACCOUNT, CONTROLLER, LOGIN, NFS, REGION, aws_design
from tests.support.iam import allowed

SCOPE = policies.Scope(
    partition="aws",
    region=REGION,
    account=ACCOUNT,
    bucket="arn:aws:s3:::store",
    secret="secret",
    log_group="group",
    compute_role="role",
    subnets=(),
    groups=(),
)
READ = Mount("/data", "s3", ("login", "compute"), existing="s3://lab-data/train", options="ro")
WRITE = dataclasses.replace(READ, path="/out", existing="s3://lab-out", options="rw")
DESIGN = aws_design(mounts=(*NFS, READ, WRITE), hosts=(CONTROLLER, LOGIN))
TRAIN, OUT = "arn:aws:s3:::lab-data", "arn:aws:s3:::lab-out"


def may(action: str, resource: str, prefix: str | None = None, design: ClusterDesign = DESIGN) -> bool:
    context = {} if prefix is None else {"s3:prefix": prefix}
    return allowed(policies.compute(SCOPE, design), action, resource, context)


@pytest.mark.parametrize(
    ("action", "resource", "prefix", "wanted"),
    [
        ("s3:GetObject", f"{TRAIN}/train/a.tar", None, True),
        ("s3:GetObject", f"{TRAIN}/secret/a.tar", None, False),
        ("s3:GetObject", f"{TRAIN}/training/a.tar", None, False),
        ("s3:ListBucket", TRAIN, "train/", True),
        ("s3:ListBucket", TRAIN, "train/deeper/", True),
        ("s3:ListBucket", TRAIN, "secret/", False),
        ("s3:PutObject", f"{TRAIN}/train/a.tar", None, False),
        ("s3:DeleteObject", f"{TRAIN}/train/a.tar", None, False),
        ("s3:ListBucket", OUT, "", True),
        ("s3:PutObject", f"{OUT}/a.tar", None, True),
        ("s3:AbortMultipartUpload", f"{OUT}/a.tar", None, True),
        ("s3:DeleteObject", f"{OUT}/a.tar", None, True),
        ("s3:DeleteBucket", OUT, None, False),
        ("s3:GetObject", "arn:aws:s3:::lab-out-other/a.tar", None, False),
    ],
)
def test_a_node_may_what_its_mounts_do(action: str, resource: str, prefix: str | None, wanted: bool) -> None:
    assert may(action, resource, prefix) is wanted
    assert not may(action, resource, prefix, aws_design()), "without the mounts nobody may"


def test_only_roles_that_mount_it_may_read_it() -> None:
    for document, wanted in (
        (policies.login(SCOPE, DESIGN), True),
        (policies.controller(SCOPE, DESIGN), False),
    ):
        assert allowed(document, "s3:GetObject", f"{TRAIN}/train/a.tar") is wanted


@pytest.mark.parametrize(
    ("action", "resource", "prefix", "wanted"),
    [
        ("s3:PutObject", "arn:aws:s3:::lab-backups/slurm/c-20261126T000000Z.backup.tar", None, True),
        ("s3:GetObject", "arn:aws:s3:::lab-backups/slurm/c-20261126T000000Z.backup.tar", None, True),
        ("s3:DeleteObject", "arn:aws:s3:::lab-backups/slurm/c-20261126T000000Z.backup.tar", None, True),
        ("s3:ListBucket", "arn:aws:s3:::lab-backups", "slurm/c-", True),
        ("s3:ListBucket", "arn:aws:s3:::lab-backups", "", False),
        ("s3:GetObject", "arn:aws:s3:::lab-backups/slurm/other-20261126T000000Z.backup.tar", None, False),
        ("s3:DeleteObject", "arn:aws:s3:::lab-backups/c-20261126T000000Z.backup.tar", None, False),
    ],
)
def test_the_controller_alone_may_keep_this_clusters_backups(
    action: str, resource: str, prefix: str | None, wanted: bool
) -> None:
    design = aws_design(
        name="c", hosts=(CONTROLLER, LOGIN), backup=Backup("s3://lab-backups/slurm/"), mounts=NFS
    )
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert allowed(policies.controller(SCOPE, design), action, resource, context) is wanted
    for others in (policies.compute, policies.login):
        assert not allowed(others(SCOPE, design), action, resource, context)
    without = dataclasses.replace(design, backup=None)
    assert not allowed(policies.controller(SCOPE, without), action, resource, context)


def test_the_controller_alone_reads_the_password_of_the_directory() -> None:
    secret = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:reader-AbCdEf"
    directory = Directory("corp", ("ldaps://a",), "dc=a", bind_dn="cn=r", password_secret=secret)
    design = aws_design(hosts=(CONTROLLER, LOGIN), mounts=NFS)
    design = dataclasses.replace(design, access=dataclasses.replace(design.access, directory=directory))
    read, write = "secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"
    assert allowed(policies.controller(SCOPE, design), read, secret)
    assert not allowed(policies.controller(SCOPE, design), write, secret)
    for others in (policies.compute, policies.login):
        assert not allowed(others(SCOPE, design), read, secret)


KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/theirs"
HOOK = Hook("compute", "s3://lab-hooks/a.sh")


def uses_key(
    role: str, action: str, of: str, design: ClusterDesign, service: str = f"s3.{REGION}.amazonaws.com"
) -> bool:
    context = {"kms:ViaService": service, "kms:EncryptionContext:aws:s3:arn": f"arn:aws:s3:::{of}"}
    return allowed(getattr(policies, role)(SCOPE, design), f"kms:{action}", KEY, context)


@pytest.mark.parametrize(
    ("role", "action", "of", "wanted"),
    [
        # S3 names the object, or the bucket where that has a key of its own.
        ("compute", "Decrypt", "lab-data/train/a.tar", True),
        ("compute", "Decrypt", "lab-data", True),
        ("compute", "Decrypt", "lab-data/secret/a.tar", False),
        ("compute", "GenerateDataKey", "lab-data/train/a.tar", False),
        ("compute", "GenerateDataKey", "lab-out/a.tar", True),
        ("compute", "Decrypt", "lab-out/a.tar", True),
        ("compute", "Decrypt", "lab-hooks/a.sh", True),
        ("compute", "Decrypt", "lab-hooks/b.sh", False),
        ("compute", "Decrypt", "lab-backups/c-1.backup.tar", False),
        ("login", "Decrypt", "lab-data/train/a.tar", True),
        ("login", "Decrypt", "lab-hooks/a.sh", False),
        ("controller", "Decrypt", "lab-data/train/a.tar", False),
        ("controller", "GenerateDataKey", "lab-backups/c-1.backup.tar", True),
        ("controller", "Decrypt", "lab-backups/c-1.backup.tar", True),
        ("controller", "Decrypt", "lab-backups/other-1.backup.tar", False),
        ("controller", "CreateGrant", "lab-backups/c-1.backup.tar", False),
    ],
)
def test_a_customers_key_is_used_for_what_a_role_may_read_or_write(
    role: str, action: str, of: str, wanted: bool
) -> None:
    design = dataclasses.replace(DESIGN, name="c", backup=Backup("s3://lab-backups/"), hooks=(HOOK,))
    assert uses_key(role, action, of, design) is wanted
    assert not uses_key(role, action, of, design, f"ec2.{REGION}.amazonaws.com"), "S3 alone asks"
    assert not allowed(getattr(policies, role)(SCOPE, design), f"kms:{action}", KEY, {})
    assert not uses_key(role, action, of, aws_design()), "nothing is named"
