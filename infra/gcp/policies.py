"""What each machine of a cluster may do: permissions, roles and conditions, as pure functions of names.

Google's own roles where they hold no more than is needed on the one resource they are granted on; a role of
the cluster's own for Compute Engine, whose roles are far too wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.node.elastic.drivers.gce_names import instance_of
from infra.node.model import ClusterDesign

INSTANCE, DISK = "compute.googleapis.com/Instance", "compute.googleapis.com/Disk"

EVERYBODY = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
"""Of the project: neither service has anything narrower to write to."""
SUBNETWORK = "roles/compute.networkUser"
ACT_AS = "roles/iam.serviceAccountUser"
READ_SECRET, WRITE_SECRET = "roles/secretmanager.secretAccessor", "roles/secretmanager.secretVersionAdder"
READ_OBJECTS, WRITE_OBJECTS = "roles/storage.objectViewer", "roles/storage.objectUser"

_LAUNCH = (
    # bulkInsert asks for what an instance is made with, one by one.
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
    """When a grant holds: an expression of IAM's (CEL), at most 12 logical operators."""

    title: str
    expression: str


def permissions(design: ClusterDesign) -> list[str]:
    """Of the controller's own role: what the elastic driver calls (`infra.node.elastic.drivers.gce*`)."""
    made = [*_LAUNCH, *_END, *_LOOK]
    if any(one.placement == "cluster" or one.placement_policy for one in design.partitions):
        made.append("compute.resourcePolicies.use")
    if design.image.bake or design.image.id or any(partition.image for partition in design.partitions):
        # Google's own images are everybody's.
        made.append("compute.images.useReadOnly")
    return sorted(made)


def nodes_only(cluster: str) -> Condition:
    """Of machines and disks those of the cluster's nodes, by their names; never the controller, nor a login
    machine, which are the cluster's too.

    What is asked of the project as a whole (lists, operations) has another type. A cluster whose name is this
    one's and a hyphen more is in reach as well: the driver tells machines by their labels.
    """
    name = "resource.name.extract('/instances/{name}')"
    controller, login = instance_of(cluster, "controller"), instance_of(cluster, "login-")
    own = [
        f"(resource.type == '{INSTANCE}' && {name}.startsWith('{cluster}-') "
        f"&& {name} != '{controller}' && !{name}.startsWith('{login}'))",
        f"(resource.type == '{DISK}' && resource.name.extract('/disks/{{name}}').startsWith('{cluster}-'))",
        f"(resource.type != '{INSTANCE}' && resource.type != '{DISK}')",
    ]
    return Condition(f"nodes of {cluster}", " || ".join(own))


def own_reports(bucket: str, role: str) -> Condition:
    """Where machines of a role write in the bucket: the boot reports of their kind.

    All nodes have one account, so each could write another's report.
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
    """Bucket and object of each script in Cloud Storage that machines of a role run."""
    sources = [hook.source for hook in design.hooks if hook.role in (role, "all")]
    found = [source.removeprefix("gs://") for source in sources if source.startswith("gs://")]
    parts = [address.partition("/") for address in dict.fromkeys(found)]
    return [(bucket, name) for bucket, _, name in parts]


def one_object(bucket: str, name: str) -> Condition:
    where = _quoted(f"projects/_/buckets/{bucket}/objects/{name}")
    return Condition("script of a hook", f"resource.name == {where}")


def _quoted(text: str) -> str:
    """A string of CEL's: an object may have quotes and backslashes in its name."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
