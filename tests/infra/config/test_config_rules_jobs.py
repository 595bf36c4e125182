"""Impossible local settings, budgets, AWS Batch stacks and benchmarks: one mistake each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.stack_parts import (
    Refused,
    check_refusal,
    check_sentences,
    each_refusal,
    ours,
)
from tests.support.stack_values import CLUSTER, REMOVE, mistakes, values

# stack, changes, path and code of the one mistake
REFUSED: list[Refused] = [
    # local, login
    ("local", {"login.count": 1}, "login.count", "local.login-needs-container"),
    ("aws", {"local": {"boot_delay": 1.0}}, "local", "provider.other-settings"),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.quota_nodes": 2},
        "local.quota_nodes",
        "local.quota-nodes",
    ),
    (
        "local",
        {
            "partitions[0].accelerator": {"type": "v100", "count": 4},
            "partitions[0].nodes.min": 2,
            "local.quota_gpus": 7,
        },
        "local.quota_gpus",
        "local.quota-gpus",
    ),
    ("local", {"local.capacity": {"debig": 2}}, "local.capacity.debig", "local.pool-unknown"),
    (
        "local",
        {"partitions[0].zones": ["a", "b"], "local.capacity": {"debug/c": 2}},
        'local.capacity["debug/c"]',
        "local.pool-unknown",
    ),
    (
        "local",
        {"partitions[0].nodes.min": 3, "local.capacity": {"debug": 2}},
        "local.capacity.debug",
        "local.pool-capacity",
    ),
    (
        "local",
        {
            "partitions[0].zones": ["a", "b"],
            "partitions[0].nodes.min": 3,
            "local.capacity": {"debug/a": 1, "debug/b": 1},
        },
        "local.capacity",
        "local.zones-capacity",
    ),
    # budgets with unknown prices, and budgets that nothing watches
    (
        "aws",
        {"partitions[0].instance_type": "t8i.medium", "budget.max_usd": 100},
        "budget.max_usd",
        "budget.no-price",
    ),
    (
        "aws",
        {
            "partitions[0].instance_type": "t8i.medium",
            "slurm": {"accounting": True, "accept_unmaintained": "2026-11-26"},
            "accounts": [{"name": "research"}, {"name": "rest", "budget": {"max_usd": 100}}],
        },
        "accounts[1].budget.max_usd",
        "budget.no-price",
    ),
    ("local", {"local.isolation": "namespace"}, "local.isolation", "value.choice"),
    ("local", {"local.suite": "trixie"}, "local.suite", "local.suite-needs-container"),
    # AWS Batch
    ("batch", {"@enabled": False, "slurm.prolog": {"source": "a.sh"}}, "slurm", "batch.no-slurm"),
    ("aws", {"batch": values("batch")[CLUSTER]["batch"]}, "scheduler", "batch.needs-scheduler"),
    ("batch", {"batch": REMOVE}, "batch", "batch.section-missing"),
    ("batch", {"aws:region": "cn-north-1"}, "aws:region", "batch.china"),
    ("gcp", {"scheduler": "batch", "@enabled": False}, "scheduler", "batch.needs-aws"),
    (
        "batch",
        {"partitions": [{"name": "cpu", "instance_type": "m5.large"}]},
        "partitions",
        "batch.no-partitions",
    ),
    ("batch", {"batch.instance_types": ["p3.16xlarge"]}, "batch.instance_types[0]", "instance-type.retired"),
    ("batch", {"batch.vcpus.desired": 5000}, "batch.vcpus", "batch.vcpus-order"),
    ("batch", {"batch.vcpus.max": 200}, "batch.vcpus.max", "batch.vcpus-too-few"),
    ("batch", {"batch.container.vcpus": 97}, "batch.container.vcpus", "batch.container-vcpus"),
    ("batch", {"batch.container.memory_mib": 786432}, "batch.container.memory_mib", "batch.container-memory"),
    ("batch", {"batch.container.gpus": 9}, "batch.container.gpus", "batch.gpus"),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 160}},
        "batch.container.environment.MPI_GPUS",
        "batch.mpi-gpus",
    ),
    (
        "batch",
        {"batch.container.environment": {"AWS_BATCH_X": "1"}},
        "batch.container.environment.AWS_BATCH_X",
        "batch.variable-reserved",
    ),
    ("batch", {"image": REMOVE}, "image.id", "batch.v100-needs-image"),
    ("batch", {"batch.efa": True}, "batch.efa", "batch.efa-needs-placement-group"),
    (
        "batch",
        {
            "batch.efa": True,
            "batch.placement_group": "g",
            "batch.instance_types": ["g4dn.xlarge"],
            "batch.container": {"image": "train", "vcpus": 4, "memory_mib": 8000},
        },
        "batch.efa",
        "batch.no-efa",
    ),
    (
        "batch",
        {"batch.container.repository": "own"},
        "batch.container.repository",
        "batch.repository-and-image",
    ),
    ("batch", {"batch.container.repository": "Own"}, "batch.container.repository", "value.form"),
    (
        "batch",
        {"batch.container.command": ["a", "Ref::manifest"]},
        "batch.container.command",
        "batch.manifest-needs-start",
    ),
    (
        "batch",
        {"batch.container.command": ["train", "--lr", "Ref::lr"]},
        "batch.container.command",
        "batch.parameter-unknown",
    ),
    (
        "batch",
        {"batch.container.command": ["train"], "batch.parameters": {"lr": 0.1}},
        "batch.parameters.lr",
        "batch.parameter-unused",
    ),
    ("batch", {"batch.instance_types": ["p3"]}, "batch.instance_types[0]", "instance-type.family"),
    ("batch", {"batch.instance_types": ["optimal"]}, "batch.instance_types[0]", "instance-type.family"),
    (
        "batch",
        {"batch.container.environment": {"LONG": "x" * 24600}},
        "batch.container.environment",
        "batch.definition-too-long",
    ),
    ("batch", {"hooks": [{"role": "all", "script": "#!/bin/sh"}]}, "hooks", "batch.no-slurm"),
    ("batch", {"login": {"count": 1}}, "login", "batch.no-slurm"),
    ("batch", {"storage.home": {"kind": "nfs"}}, "storage.home.kind", "batch.storage-kind"),
    ("batch", {"storage.local_scratch": {}}, "storage.local_scratch", "batch.no-local-scratch"),
    ("batch", {"batch.file_system": "job"}, "batch.file_system", "batch.job-file-system-needs-import"),
    (
        "batch",
        {"storage.buckets": [{"bucket": "s3://abc", "path": "/b"}]},
        "storage.buckets",
        "batch.no-buckets",
    ),
    ("batch", {"batch.instance_types": ["trn1.32xlarge"]}, "batch.instance_types[0]", "batch.accelerator"),
    (
        "batch",
        {"batch.tags": {"aws:x": "1"}},
        "slurm-stacks:cluster.batch.tags.aws:x",
        "batch.tag-reserved",
    ),
    (
        "batch",
        {"batch.container.shared_memory_mib": 424001},
        "batch.container.shared_memory_mib",
        "batch.shared-memory",
    ),
    (
        "batch",
        {"batch.container.environment": {"A B": "1"}},
        'batch.container.environment["A B"]',
        "batch.variable-name",
    ),
    (
        "batch",
        {"batch.container.volumes": [{"source": "/a"}, {"source": "/b", "path": "/a"}]},
        "batch.container.volumes[1].path",
        "batch.volume-twice",
    ),
    (
        "batch",
        {"batch.instance_types": ["r5.24xlarge"], "batch.container.environment": {"MPI_GPUS": 4}},
        "batch.container.environment.MPI_GPUS",
        "batch.mpi-gpus-without-gpus",
    ),
    (
        "batch",
        {"batch.container.environment": {"MPI_GPUS": 33, "SLURM_STACKS_LAUNCH": "mpi"}},
        "batch.container.environment.MPI_GPUS",
        "batch.mpi-gpus",
    ),
    *(
        ("batch", ours(**variables), f"batch.container.{path}", code)
        for variables, path, code in (
            ({"JOB_DIR": None}, "environment.JOB_DIR", "batch.folder-missing"),
            ({"JOB_DIR": "/scratch/x"}, "environment.JOB_DIR", "batch.folder-not-shared"),
            ({"SCRATCH_DIR": "x"}, "environment.SCRATCH_DIR", "batch.folder-relative"),
            ({"BATCH_SIZE": 0}, "environment.BATCH_SIZE", "batch.batch-size"),
            ({"SLURM_STACKS_LAUNCH": "srun"}, "environment.SLURM_STACKS_LAUNCH", "batch.launch"),
            ({"SLURM_STACKS_LAUNCH": "mpi"}, "command", "batch.mpi-needs-command"),
        )
    ),
    (
        "batch",
        {"batch.parameters": {"learning rate": 1}},
        'batch.parameters["learning rate"]',
        "batch.parameter-name",
    ),
    ("batch", {"batch.container.cached": True}, "batch.container.cached", "batch.cache-needs-bake"),
    (
        "batch",
        {"batch.container.cached": True, "image": {"bake": True}, "batch.disk_gib": 40},
        "batch.disk_gib",
        "batch.cache-disk-size",
    ),
    (
        "batch",
        {
            "batch.file_system": "job",
            "storage.scratch": {
                "kind": "fsx_lustre",
                "size_gib": 1200,
                "deployment": "PERSISTENT_2",
                "throughput": 125,
                "s3_import": "s3://data/train",
            },
        },
        "storage.scratch.deployment",
        "batch.job-file-system-deployment",
    ),
    ("batch", {"@enabled": True}, "@enabled", "benchmark.not-with-batch"),
    # benchmark
    ("local", {"@partition": "gpu"}, "@partition", "benchmark.partition-unknown"),
    ("local", {"@nodes": 5}, "@nodes", "benchmark.too-many-nodes"),
    ("local", {"local.quota_nodes": 1}, "@nodes", "benchmark.over-quota"),
    # a training that would run on the CPUs of Trainium's or Inferentia's machines
    (
        "aws",
        {"partitions[0].instance_type": "trn1.32xlarge"},
        "@partition",
        "benchmark.accelerator-unused",
    ),
    (
        "aws",
        {"partitions[0].instance_type": "inf2.xlarge", "@partition": "cpu"},
        "@partition",
        "benchmark.accelerator-unused",
    ),
    (
        "local",
        {"partitions[0].accelerator": {"type": "v100"}, "@gpus_per_node": 1},
        "@gpus_per_node",
        "benchmark.gpus-simulated",
    ),
    ("gcp", {"@gpus_per_node": 2}, "@gpus_per_node", "benchmark.too-many-gpus"),
    ("aws", {"@gpus_per_node": 1}, "@gpus_per_node", "benchmark.too-many-gpus"),
    (
        "aws",
        {"partitions[1].default": True, "@gpus_per_node": 9},
        "@gpus_per_node",
        "benchmark.too-many-gpus",
    ),
]


@each_refusal(REFUSED)
def test_refused(stack: str, changes: dict[str, Any], path: str, code: str) -> None:
    check_refusal(stack, changes, path, code)


def test_a_mistake_of_the_benchmark_hides_no_other() -> None:
    told = mistakes(values("local", {"@partition": "gpu", "@nodes": 5, "local.quota_nodes": 1}))
    assert {m.code for m in told} == {"benchmark.partition-unknown", "benchmark.over-quota"}
    changes = {"partitions[0].instance_type": "trn1.32xlarge", "@gpus_per_node": 2, "@nodes": 9000}
    told = mistakes(values("aws", changes))
    assert {m.code for m in told} == {
        "benchmark.accelerator-unused",
        "benchmark.too-many-gpus",
        "benchmark.too-many-nodes",
    }


def test_the_sentences(pytestconfig: pytest.Config) -> None:
    check_sentences(pytestconfig, __file__, REFUSED)
