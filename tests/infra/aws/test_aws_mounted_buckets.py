"""Machines that mount a bucket of S3 may do there what Mountpoint does for them, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from infra.aws import policies
from node.model import Backup, ClusterDesign, Mount
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
