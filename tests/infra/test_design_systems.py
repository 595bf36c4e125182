"""The designs of the five published systems' stack files."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from infra.additions import additions
from infra.config import parse
from infra.design import design
from infra.instance_types.catalog import catalog
from node.design import time_limits
from node.design.model import ClusterDesign
from tests.support import shipped
from tests.support.stack_values import FILLED_IN, filled_in, stack_file, values

FACTS = catalog()


def stack(name: str) -> ClusterDesign:
    """Return the design of a stack file with an example for each placeholder."""
    return design(parse(yaml.safe_load(filled_in(stack_file(name).read_text()))["config"], name), FACTS)


def test_s1_aws_cpu() -> None:
    cluster = stack("aws-cpu")
    assert [(p.name, p.instance_type, p.cpus, p.min, p.max) for p in cluster.partitions] == [
        ("compute", "m4.large", 2, 0, 10),
        ("c4", "c4.2xlarge", 8, 0, 10),
    ]
    (head,) = cluster.hosts
    assert (head.instance_type, head.tags) == ("m4.large", ("controller", "nfs", "login", "public"))
    assert (cluster.region, cluster.access.mode, cluster.access.key) == ("eu-central-1", "ssh", "slurm-key")
    assert cluster.login_hosts() == [head]
    assert [(m.path, m.kind, m.served_by, m.size_gib) for m in cluster.mounts] == [
        ("/home", "nfs", "controller", 50),
        ("/apps", "nfs", "controller", 50),
    ]


def test_s2_gcp_cpu() -> None:
    cluster = stack("gcp-cpu")
    assert (cluster.name, cluster.zone, cluster.region) == ("slurm10", "europe-west4-a", "europe-west4")
    assert [(h.name, h.instance_type) for h in cluster.hosts] == [
        ("controller", "n1-standard-2"),
        ("login-0", "n1-standard-2"),
    ]
    assert "login" not in cluster.controller().tags
    assert [h.name for h in cluster.login_hosts()] == ["login-0"]
    assert cluster.access.mode == "iap"
    assert cluster.partition("debug").nodes()[-1] == "debug-9"


@pytest.mark.parametrize(
    ("name", "partition", "nodes", "gpus"),
    [
        ("gcp-cpu", "debug", 4, 0),
        ("aws-cpu", "compute", 4, 0),
        ("gcp-gpu", "debug", 8, 1),
        ("aws-gpu", "compute", 8, 1),
        ("local", "debug", 4, 0),
    ],
)
def test_the_published_job_scripts_fit_the_shipped_stacks(
    name: str, partition: str, nodes: int, gpus: int
) -> None:
    """run_keras asks for `--partition=debug --nodes=4`, the one for GPUs for `--gres=gpu:1 --nodes=8`.

    The latter's partition is "debug on GCP, and compute on aws".
    """
    text = shipped.stack_files()[f"Pulumi.{name}.yaml"]
    its = design(parse(yaml.safe_load(text)["config"], name), FACTS).partition(partition)
    assert its.max >= nodes
    assert (its.accelerator.count if its.accelerator else 0) >= gpus


def test_s3_gpus_on_both_clouds() -> None:
    aws, gcp = stack("aws-gpu"), stack("gcp-gpu")
    compute, t4 = aws.partitions
    assert compute.accelerator is not None
    assert (compute.accelerator.type, compute.accelerator.count, compute.accelerator.gres) == (
        "v100",
        8,
        "gpu",
    )
    assert (compute.aws.efa, compute.placement, compute.exclusive, compute.time_limit) == (
        1,
        "cluster",
        True,
        "1-00:00:00",
    )
    # g4dn.xlarge always has its T4, and has no EFA.
    assert t4.accelerator is not None
    assert (t4.accelerator.type, t4.accelerator.count, t4.aws.efa) == ("t4", 1, 0)
    fsx = aws.mounts[-1]
    assert (fsx.path, fsx.kind, fsx.size_gib, fsx.deployment, fsx.storage_type, fsx.served_by) == (
        "/fsx",
        "fsx_lustre",
        1200,
        "SCRATCH_2",
        "SSD",
        None,
    )
    (debug,) = gcp.partitions
    assert debug.accelerator is not None
    assert (debug.accelerator.type, debug.accelerator.count) == ("v100", 1)
    assert debug.price_hour == pytest.approx(0.104584 + 2.604)


def test_s4_reference_architectures() -> None:
    """`test_architectures` compares the stacks with placeholders with the published tables, too."""
    trainium = stack("aws-trn1").partitions[0]
    assert trainium.accelerator is not None
    assert (trainium.accelerator.gres, trainium.accelerator.count, trainium.aws.efa) == ("neuron", 16, 8)


def test_s4_containers() -> None:
    """The published system installs Docker, Enroot and Pyxis by post-install scripts."""
    containers = stack("aws-p4de-containers")
    (gpu,) = containers.partitions
    assert (gpu.name, gpu.instance_type, gpu.min, gpu.max) == ("compute-gpu", "p4de.24xlarge", 4, 4)
    assert (gpu.aws.efa, gpu.placement, gpu.reservation, gpu.exclusive) == (4, "cluster", None, True)
    assert gpu.accelerator is not None
    assert (gpu.accelerator.type, gpu.accelerator.count, gpu.disk_gib) == ("a100", 8, 200)
    assert (containers.controller().instance_type, containers.controller().disk_gib) == ("m5.8xlarge", 200)
    assert {m.path: (m.kind, m.size_gib, m.throughput) for m in containers.mounts} == {
        "/home": ("nfs", 50, None),
        "/apps": ("nfs", 200, None),
        "/fsx": ("fsx_lustre", 4800, 250),
        "/local_scratch": ("nvme", None, None),
    }
    assert [(h.role, h.source, h.args, h.timeout) for h in containers.hooks] == [
        ("all", "examples/hooks/docker.sh", (), 600)
    ]
    # Slurm waits for a node at least as long as its script may take.
    without = dataclasses.replace(containers, hooks=())
    assert time_limits.boot(containers, gpu) == time_limits.boot(without, gpu) + 600
    assert containers.slurm.resume_timeout >= time_limits.boot(containers, gpu)
    assert containers.containers is not None
    assert (containers.containers.runtime, containers.containers.images) == ("pyxis", "/fsx/enroot")
    own = FILLED_IN["PLACEHOLDER_PYXIS_PACKAGE"]
    assert [package.source.rpartition("/")[2] for package in containers.containers.packages] == [
        "enroot_4.1.2-1_amd64.deb",
        "enroot+caps_4.1.2-1_amd64.deb",
        own.rpartition("/")[2],
    ]
    assert containers.fetched("compute", "s3://") == [own]
    assert additions(containers) == [
        {
            "name": "image",
            "what": "baked by the first up, which takes a quarter to half an hour, and about 10 minutes more "
            "for Slurm",
        },
        {"name": "slurm", "what": "built from debian-13's source package"},
        {"name": "containers", "what": "pyxis from 3 packages, images in /fsx/enroot"},
        {"name": "hooks", "what": "docker.sh on all"},
    ]


def test_s5_batch() -> None:
    cluster = stack("aws-batch")
    batch = cluster.batch
    assert batch is not None
    assert (cluster.scheduler, cluster.hosts) == ("batch", ())
    assert (batch.nodes, batch.min_vcpus, batch.desired_vcpus, batch.max_vcpus) == (20, 0, 0, 4096)
    assert (batch.container_vcpus, batch.container_memory_mib, batch.container_gpus) == (62, 424000, 8)
    assert (batch.compute_environment, batch.queue, batch.job_definition, batch.placement_group) == (
        "tensorflow-gpu-fsx-ce",
        "tf-queue",
        "mnptensorflow-gpu-mnp1",
        "tf-group",
    )
    assert batch.environment["MPI_GPUS"] == "160"
    assert batch.environment["BATCH_SIZE"] == "256"
    assert batch.volumes == {"/scratch": "/scratch", "/fsx": "/fsx"}
    assert batch.tags == {"Name": "tensorflow-gpu-fsx-processor"}
    (fsx,) = cluster.mounts
    assert (fsx.size_gib, fsx.deployment) == (3600, "SCRATCH_1")
    assert (fsx.s3_import, fsx.s3_export) == ("s3://imagenet-2012", "s3://imagenet-2012/results")
    (queue,) = cluster.partitions
    assert (queue.name, queue.min, queue.max, queue.disk_gib) == ("tf-queue", 0, 42, 500)
    assert queue.accelerator is not None
    assert (queue.accelerator.type, queue.accelerator.count) == ("v100", 8)
    assert (queue.placement, queue.exclusive) == ("cluster", True)
    assert (batch.container_image, batch.repository) == (None, "mnp-tensorflow")
    assert (batch.attempts, batch.job_role, cluster.image.bake) == (1, None, True)


def test_batch_as_a_stack_file_says() -> None:
    cluster = design(
        parse(
            values(
                "batch",
                {
                    "batch.attempts": 3,
                    "batch.timeout": 3600,
                    "batch.container.command": ["run", "--all"],
                    "batch.container.volumes": [{"source": "/fsx", "path": "/data"}],
                    "batch.vcpus": {"min": 97, "desired": 192, "max": 500},
                },
            ),
            "test",
        ),
        FACTS,
    )
    batch = cluster.batch
    assert batch is not None
    assert (batch.attempts, batch.timeout, batch.command) == (3, 3600, ("run", "--all"))
    assert batch.volumes == {"/fsx": "/data"}
    assert (batch.compute_environment, batch.queue, batch.job_definition) == (
        "batch-ce",
        "batch-queue",
        "batch-job",
    )
    # Batch takes whole machines: 97 vCPUs need two of 96, and 500 vCPUs hold five.
    assert (cluster.partitions[0].min, cluster.partitions[0].max) == (2, 5)
    assert cluster.partitions[0].placement == "none"
