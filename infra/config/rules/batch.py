"""Rules of AWS Batch: what its API and its jobs do not take, before any machine is up and paid for."""

from __future__ import annotations

from infra.config.jobs import BatchConfig
from infra.config.rules.batch_container import check_container
from infra.config.rules.context import CLUSTER, MISSING, Context
from infra.config.rules.instance_types import check_instance_type
from infra.instance_types.catalog import GRES, InstanceType
from node.system import plurals

MOUNTED = ("fsx_lustre", "efs")
"""The kinds of storage that machines without a controller can mount."""
RESERVED_TAGS = ("aws:", "slurm-stacks:")
WITHOUT_SLURM = {
    "controller": "AWS Batch has no controller: remove it",
    "login": "AWS Batch has no login machine: remove it",
    "hooks": "what they do belongs into the container, or into an image of your own (image.id)",
    "slurm": "Batch starts and ends the machines itself: remove it",
}


def check_batch(c: Context) -> None:
    cluster, at = c.cluster, (*CLUSTER, "batch")
    if cluster.scheduler == "slurm":
        if cluster.batch is not None:
            c.add(
                "batch.needs-scheduler",
                (*CLUSTER, "scheduler"),
                "slurm",
                "batch, where a section `batch` is given",
                "or remove batch:",
            )
        return
    if c.provider != "aws":
        c.add(
            "batch.needs-aws",
            (*CLUSTER, "scheduler"),
            "batch",
            f"slurm on {c.provider}",
            "batch is AWS Batch",
        )
        return
    if (c.region or "").startswith("cn-"):
        c.add(
            "batch.china",
            ("aws:region",),
            c.region,
            "scheduler batch in regions outside of China",
            "AWS's services have other names there: take Slurm, or another region",
        )
    if cluster.partitions:
        c.add(
            "batch.no-partitions",
            (*CLUSTER, "partitions"),
            "nothing that applies",
            "no partitions with scheduler batch",
            "remove them",
        )
    if cluster.batch is None:
        c.add(
            "batch.section-missing",
            at,
            MISSING,
            "the section `batch`",
            "nodes, instance_types, vcpus and container are needed",
        )
        return
    for key, instead in WITHOUT_SLURM.items():
        if key in cluster.model_fields_set and getattr(cluster, key):
            c.add(
                "batch.no-slurm",
                (*CLUSTER, key),
                "nothing that applies",
                f"no {key} with scheduler batch",
                instead,
            )
    _batch(c, cluster.batch)
    check_container(c, cluster.batch)
    _storage(c, cluster.batch)


def _batch(c: Context, batch: BatchConfig) -> None:
    at = (*CLUSTER, "batch")
    for index, name in enumerate(batch.instance_types):
        check_instance_type(c, (*at, "instance_types", index), name)
    low, desired, high = batch.vcpus.min, batch.vcpus.desired, batch.vcpus.max
    if not low <= desired <= high:
        given = {"min": low, "desired": desired, "max": high}
        c.add("batch.vcpus-order", (*at, "vcpus"), given, "min up to desired up to max")
    for name in sorted(batch.tags):
        if name.startswith(RESERVED_TAGS):
            allowed = "names that do not start with aws: or slurm-stacks:, by which `down` finds machines"
            c.add("batch.tag-reserved", (*at, "tags", name), batch.tags[name], allowed, "rename it")
    machine = c.instance_type(batch.instance_types[0])
    if machine is None:
        return
    name = batch.instance_types[0]
    if batch.container.vcpus > machine.vcpus:
        c.add(
            "batch.container-vcpus",
            (*at, "container", "vcpus"),
            batch.container.vcpus,
            f"at most {machine.vcpus} on {name}",
        )
    if batch.container.memory_mib >= machine.memory_mib:
        given_mib = batch.container.memory_mib
        allowed = f"less than the {machine.memory_mib} MiB of {name}: the system needs some"
        c.add("batch.container-memory", (*at, "container", "memory_mib"), given_mib, allowed)
    if batch.nodes * machine.vcpus > high:
        needed = batch.nodes * machine.vcpus
        c.add(
            "batch.vcpus-too-few",
            (*at, "vcpus", "max"),
            high,
            f"{needed} or more: {plurals.count(batch.nodes, 'node')} of {name}",
            "no job could start",
        )
    if machine.accelerator and machine.accelerator.type in GRES:
        allowed = "machines with NVIDIA's GPUs, or without accelerators: containers here get no other devices"
        c.add(
            "batch.accelerator",
            (*at, "instance_types", 0),
            name,
            allowed,
            f"{machine.accelerator.type} is for Slurm's stacks",
        )
        return
    _fabric(c, batch, machine)
    own_image = c.cluster.image.id is not None or c.cluster.image.bake
    if machine.accelerator and machine.accelerator.type == "v100" and not own_image:
        # The GPU images of AWS Batch do not support P3, so V100 has no driver there (botocore, batch:
        # Ec2Configuration).
        c.add(
            "batch.v100-needs-image",
            (*CLUSTER, "image", "id"),
            MISSING,
            "an ECS image of your own with V100s: those of Batch have no driver for them",
            "write image: {bake: true}, which builds one with driver 580, or image: {id: ami-…} with one of "
            "yours",
        )


def _fabric(c: Context, batch: BatchConfig, machine: InstanceType) -> None:
    """Check that EFA has machines with it, close together (Batch user guide, "Elastic Fabric Adapter")."""
    at = (*CLUSTER, "batch", "efa")
    if batch.efa and not machine.efa:
        c.add(
            "batch.no-efa",
            at,
            True,
            f"false: {batch.instance_types[0]} has no Elastic Fabric Adapter",
            "write efa: false",
        )
    elif batch.efa and batch.placement_group is None:
        allowed = "true only with a placement group, which EFA asks for"
        c.add("batch.efa-needs-placement-group", at, True, allowed, "write placement_group: NAME")


def _storage(c: Context, batch: BatchConfig) -> None:
    """Check storage: without a controller, Batch's machines mount file system services only."""
    at, storage = (*CLUSTER, "storage"), c.cluster.storage
    for name in ("home", "apps", "scratch"):
        part = getattr(storage, name)
        if part is not None and part.kind not in MOUNTED:
            allowed = f"{' or '.join(MOUNTED)} with scheduler batch: no controller exports directories"
            c.add("batch.storage-kind", (*at, name, "kind"), part.kind, allowed)
    if storage.buckets:
        allowed = "nothing with scheduler batch: FSx shows what is in a bucket (scratch.s3_import)"
        c.add("batch.no-buckets", (*at, "buckets"), "nothing that applies", allowed, "remove it")
    if storage.local_scratch is not None:
        allowed = "nothing with scheduler batch: containers get folders of the root disk by `batch.volumes`"
        c.add(
            "batch.no-local-scratch",
            (*at, "local_scratch"),
            "nothing that applies",
            allowed,
            "remove it, and raise batch.disk_gib",
        )
    if batch.file_system != "job":
        return
    where, scratch = (*CLUSTER, "batch", "file_system"), storage.scratch
    if scratch is None or scratch.kind != "fsx_lustre" or scratch.s3_import is None:
        allowed = "job only where storage.scratch is fsx_lustre with s3_import"
        c.add(
            "batch.job-file-system-needs-import",
            where,
            "job",
            allowed,
            "a file system that begins empty and ends with its job keeps nothing",
        )
    elif not scratch.lustre_deployment().startswith("SCRATCH_"):
        allowed = "SCRATCH_1 or SCRATCH_2 where each job has a file system of its own"
        c.add(
            "batch.job-file-system-deployment",
            (*at, "scratch", "deployment"),
            scratch.deployment,
            allowed,
            "it lives as long as its job",
        )
