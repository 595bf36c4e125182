"""What each machine of a cluster may do: permissions, roles and conditions, as pure functions of names.

Google's own roles are used where they allow no more than is needed on the one resource that they are granted
on. For Compute Engine, whose roles are far too wide, the cluster has a role of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.design.model import ClusterDesign
from node.elastic.drivers.gce.names import instance_of

INSTANCE, DISK = "compute.googleapis.com/Instance", "compute.googleapis.com/Disk"

EVERYBODY = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
"""The roles of every machine on the project. Neither service has anything narrower to write to, and neither
role reads or changes anything else."""
SUBNETWORK = "roles/compute.networkUser"
ACT_AS = "roles/iam.serviceAccountUser"
READ_SECRET, WRITE_SECRET = "roles/secretmanager.secretAccessor", "roles/secretmanager.secretVersionAdder"
READ_OBJECTS, WRITE_OBJECTS = "roles/storage.objectViewer", "roles/storage.objectUser"

_LAUNCH = (
    # bulkInsert checks a permission for each thing that an instance is made with.
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.instanceTemplates.useReadOnly",
    "compute.instances.create",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
)
_END = ("compute.instances.delete",)
_LOOK = (
    "compute.instances.get",
    "compute.instances.list",
    "compute.projects.get",
    "compute.regions.get",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
)


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a grant: an IAM expression (CEL) with at most 12 logical operators."""

    title: str
    expression: str


def permissions(design: ClusterDesign) -> list[str]:
    """Return the permissions of the controller's own role.

    They are what the elastic driver calls (`node.elastic.drivers.gce`).
    """
    needed = [*_LAUNCH, *_END, *_LOOK]
    if any(
        partition.placement == "cluster" or partition.gcp.placement_policy for partition in design.partitions
    ):
        needed.append("compute.resourcePolicies.use")
    if any(partition.gcp.network_tags for partition in design.partitions):
        needed.append("compute.instances.setTags")
    if any("resource_manager_tags" in partition.overrides() for partition in design.partitions):
        # Besides, the tags' owner grants the controller's account the role of a tag user on them.
        needed.append("compute.instances.createTagBinding")
    if design.image.bake or design.image.id or any(partition.image for partition in design.partitions):
        # Google's own images are open to everybody.
        needed.append("compute.images.useReadOnly")
    return sorted(needed)


def nodes_only(cluster: str) -> Condition:
    """Limit a grant to the machines and disks of the cluster's nodes, by their names.

    The controller and the login machines, which are the cluster's as well, are left out. Requests about the
    project as a whole (lists, operations) have another type. Nodes of a cluster whose name begins with this
    one's and a hyphen are also included: the driver tells machines apart by their labels.
    """
    name = "resource.name.extract('/instances/{name}')"
    controller, login = instance_of(cluster, "controller"), instance_of(cluster, "login-")
    patterns = [
        f"(resource.type == '{INSTANCE}' && {name}.startsWith('{cluster}-') "
        f"&& {name} != '{controller}' && !{name}.startsWith('{login}'))",
        f"(resource.type == '{DISK}' && resource.name.extract('/disks/{{name}}').startsWith('{cluster}-'))",
        f"(resource.type != '{INSTANCE}' && resource.type != '{DISK}')",
    ]
    return Condition(f"nodes of {cluster}", " || ".join(patterns))


def own_reports(bucket: str, role: str) -> Condition:
    """Limit writes in the bucket to the boot reports of a role's machines.

    All nodes share one account, so each could write another's report. No program acts on nodes' reports in
    the bucket: people read them.
    """
    folder = f"projects/_/buckets/{bucket}/objects/boot/"
    controller, login, image = f"{folder}controller.json", f"{folder}login-", f"{folder}image-"
    expressions = {
        "controller": f"resource.name == '{controller}'",
        "login": f"resource.name.startsWith('{login}')",
        "image": f"resource.name.startsWith('{image}')",
        "compute": f"resource.name.startsWith('{folder}') && resource.name != '{controller}' "
        f"&& !resource.name.startsWith('{login}') && !resource.name.startsWith('{image}')",
    }
    return Condition(f"boot reports of {role}", expressions[role])


def hooks(design: ClusterDesign, role: str) -> list[tuple[str, str]]:
    """Return the bucket and the object of each hook and package that machines of a role fetch."""
    parts = [source.removeprefix("gs://").partition("/") for source in design.fetched(role, "gs://")]
    return [(bucket, name) for bucket, _, name in parts]


def buckets(design: ClusterDesign, role: str) -> list[tuple[str, str]]:
    """Return the bucket and the role on it for each bucket that machines of a role mount.

    Cloud Storage FUSE lists a bucket by its name alone, so a folder cannot limit the grant.
    """
    mounts = [mount for mount in design.mounts if mount.kind == "gcs" and role in mount.roles]
    changed = {mount.bucket()[0]: False for mount in mounts}
    changed |= {mount.bucket()[0]: True for mount in mounts if mount.writable}
    return [(name, WRITE_OBJECTS if writes else READ_OBJECTS) for name, writes in changed.items()]


def backups(design: ClusterDesign) -> tuple[str, Condition] | None:
    """Return the bucket of backups, and the limit of the controller's grants on it to this cluster's backups.

    Cloud Storage checks the permission to list on the bucket, so each grant is on the bucket's name, too.
    """
    if design.backup is None:
        return None
    address, prefix = design.backup.place()
    bucket = address.removeprefix("gs://")
    whole = f"projects/_/buckets/{bucket}"
    ours = _quoted(f"{whole}/objects/{prefix}{design.name}-")
    return bucket, Condition(
        f"backups of {design.name}",
        f"resource.name == {_quoted(whole)} || resource.name.startsWith({ours})",
    )


def one_object(bucket: str, name: str) -> Condition:
    """Limit a grant to one object of a bucket."""
    resource = _quoted(f"projects/_/buckets/{bucket}/objects/{name}")
    return Condition("script of a hook", f"resource.name == {resource}")


def _quoted(text: str) -> str:
    """Return a text as a CEL string. The name of an object may have quotes and backslashes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
