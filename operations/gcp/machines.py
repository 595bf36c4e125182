"""A cluster's Compute Engine machines by label, for termination, the report of leftovers, and SSH access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from infra.errors import UserError
from node.bootstrap.vm.images import ROLE as IMAGE
from node.elastic.drivers.gce.names import BUCKET, CLUSTER, COMPUTE, HOST, ROLE, SLURM, STACK, node_of, short
from node.system import plurals
from operations.clouds.cloud import Machine, TaggedMachine
from operations.gcp.account import Account, GoogleError
from operations.gcp.leftovers import matching

STATES = {
    "PENDING": "pending",
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "REPAIRING": "running",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "SUSPENDING": "stopping",
    "SUSPENDED": "stopped",
    "TERMINATED": "stopped",
    "DEPROVISIONING": "ending",
}
"""The values of `Machine.state` for Compute Engine's states. A TERMINATED machine is off and can be started;
a deleted one is not listed at all."""
WORKERS = 16
"""The number of simultaneous deletions; each is a call of its own."""
BUSY = {"resourceNotReady", "resourceInUseByAnotherResource"}
"""The reasons for which a deletion is refused while one is already under way."""
WAITS = 10
"""The number of waits for an operation; Compute Engine's own wait takes two minutes at most."""


def listed(account: Account, cluster: str, **labels: str) -> list[dict[str, Any]]:
    """Return a cluster's instances in every zone, from every page of the list, as the API has them.

    Args:
        labels: Values of further labels: `role`, `host`.

    Raises:
        UserError: Google Cloud refuses, or a zone does not answer.
    """
    path = "projects/{project}/aggregated/instances"
    return list(account.pages("compute", path, "items", filter=matching(cluster, **labels)))


def tagged(account: Account) -> list[TaggedMachine]:
    """Return the instances of all clusters in the account's region that have not ended.

    Raises:
        UserError: Google Cloud refuses, or a zone of the region does not answer.
    """
    path = "projects/{project}/aggregated/instances"
    described = account.pages("compute", path, "items", filter=f"labels.{CLUSTER}:*")
    machines = []
    for instance in described:
        labels, state = instance["labels"], STATES.get(str(instance["status"]), "running")
        zone = short(str(instance["zone"]))
        if state == "ending" or zone.rpartition("-")[0] != account.region:
            continue
        gpus = next(iter(instance.get("guestAccelerators", [])), None)
        machines.append(
            TaggedMachine(
                cluster=labels[CLUSTER],
                stack=labels.get(STACK),
                node=labels.get(ROLE) == COMPUTE,
                running=state in ("pending", "running"),
                instance_type=short(str(instance["machineType"])),
                launched=seconds(instance.get("lastStartTimestamp") or instance["creationTimestamp"]),
                accelerator=gpus and (short(str(gpus["acceleratorType"])), int(gpus["acceleratorCount"])),
            )
        )
    return machines


def machine(found: dict[str, Any], cluster: str) -> Machine:
    """Return the `Machine` for an instance."""
    labels = found.get("labels", {})
    interface: dict[str, Any] = next(iter(found.get("networkInterfaces", [])), {})
    public = (access.get("natIP") for access in interface.get("accessConfigs", []))
    items = found.get("metadata", {}).get("items", [])
    name = str(found["name"])
    return Machine(
        id=name,
        name=labels.get(HOST) or node_of(cluster, name) or name,
        role=labels.get(ROLE, ""),
        state=STATES.get(str(found["status"]), "running"),
        launched=seconds(found.get("lastStartTimestamp") or found["creationTimestamp"]),
        private=interface.get("networkIP"),
        public=next((address for address in public if address), None),
        bucket=next((str(item["value"]) for item in items if item.get("key") == BUCKET), None),
        zone=short(str(found["zone"])),
        stack=labels.get(STACK),
    )


def failure(account: Account, instance: Machine) -> str | None:
    """Return what Compute Engine finds wrong with a machine; `None` if it finds nothing.

    A machine is REPAIRING while Compute Engine replaces a host that has failed.
    """
    described = account.call(
        "GET", "compute", f"projects/{{project}}/zones/{instance.zone}/instances/{instance.id}"
    )
    return "it is REPAIRING, because its host has failed" if described.get("status") == "REPAIRING" else None


def has_disk(account: Account, zone: str, name: str) -> bool:
    """Whether a zone has a disk of this name."""
    try:
        account.call("GET", "compute", f"projects/{{project}}/zones/{zone}/disks/{name}")
    except GoogleError as error:
        if error.status == 404:
            return False
        raise
    return True


def image_slurm(account: Account, image: str) -> str | None:
    """Return the release of Slurm in the labels of an image; `None` if they name none, or it is not there.

    Args:
        image: A name in the account's project, or an address: `projects/P/global/images/NAME`.
    """
    path = image.rpartition("/compute/v1/")[2] if "/" in image else f"global/images/{image}"
    path = path if path.startswith("projects/") else f"projects/{{project}}/{path}"
    try:
        labels = account.call("GET", "compute", path).get("labels", {})
    except GoogleError as error:
        if error.status in (403, 404):
            return None
        raise
    label = labels.get(SLURM)
    return str(label).replace("-", ".") if label is not None else None


def start(account: Account, machines: Sequence[Machine]) -> None:
    """Start machines that are stopped.

    Raises:
        UserError: Compute Engine has no capacity, a quota is used up, or it refuses otherwise. It reports
            that only at the operation's end, so this function waits for it.
    """
    for instance in machines:
        path = f"projects/{{project}}/zones/{instance.zone}/instances/{instance.id}"
        # Compute Engine refuses to start a suspended machine, because it still has its memory.
        now = account.call("GET", "compute", path).get("status")
        verb = "resume" if now == "SUSPENDED" else "start"
        operation = account.call("POST", "compute", f"{path}/{verb}")
        finish(account, operation, f"{instance.id} cannot be started")


def end(account: Account, machines: Sequence[Machine]) -> None:
    """Delete machines, without waiting."""
    _delete(account, [f"zones/{instance.zone}/instances/{instance.id}" for instance in machines])


def remove_loose(account: Account, cluster: str) -> None:
    """Delete disks that nodes have left behind: they cost money, and nobody would find them."""
    _remove_disks(account, matching(cluster, role=COMPUTE))


def end_images(account: Account, cluster: str, say: Callable[[str], None]) -> None:
    """Delete the images of a cluster, and the machines and disks from which they were made."""
    builders = listed(account, cluster, role=IMAGE)
    selector = matching(cluster)
    images = list(account.pages("compute", "projects/{project}/global/images", "items", filter=selector))
    if images or builders:
        say(f"deleting {plurals.count(len(images), 'image')} of cluster {cluster}")
    for builder in builders:
        path = f"zones/{short(str(builder['zone']))}/instances/{builder['name']}"
        try:
            operation = account.call("DELETE", "compute", f"projects/{{project}}/{path}")
        except GoogleError as error:
            if error.status == 404:  # somebody else has just deleted it
                continue
            raise
        # A disk can be deleted only when no machine uses it.
        finish(account, operation, f"{builder['name']} cannot be deleted")
    _delete(account, [f"global/images/{image['name']}" for image in images])
    _remove_disks(account, matching(cluster, role=IMAGE))


def _remove_disks(account: Account, wanted: str) -> None:
    disks = account.pages("compute", "projects/{project}/aggregated/disks", "items", filter=wanted)
    loose = [disk for disk in disks if not disk.get("users")]
    _delete(account, [f"zones/{short(str(disk['zone']))}/disks/{disk['name']}" for disk in loose])


def finish(account: Account, operation: dict[str, Any], what: str) -> None:
    """Wait for an operation of a zone.

    Args:
        what: The beginning of the error's message.

    Raises:
        UserError: The operation failed, or takes longer than 20 minutes; the message has Google's words.
    """
    zone = short(str(operation.get("zone", "")))
    path = f"projects/{{project}}/zones/{zone}/operations/{operation['name']}/wait"
    for _ in range(WAITS):
        if operation.get("status") == "DONE":
            break
        operation = account.call("POST", "compute", path)
    errors = operation.get("error", {}).get("errors", [])
    if errors:
        messages = "; ".join(f"{error.get('code', '')}: {error.get('message', '')}" for error in errors)
        raise UserError(f"{what}: {messages}", code="gcp.operation-failed")
    if operation.get("status") != "DONE":
        raise UserError(
            f"{what}: Compute Engine has not finished operation {operation['name']}",
            code="gcp.operation-unfinished",
        )


def _delete(account: Account, paths: Sequence[str]) -> None:
    """Request deletions. A resource that no longer exists or is already being deleted is no error.

    Raises:
        UserError: Google refuses a deletion (all others were requested), or does not answer.
    """

    def one(path: str) -> GoogleError | None:
        try:
            account.call("DELETE", "compute", f"projects/{{project}}/{path}")
        except GoogleError as error:
            return error if error.status != 404 and error.reason not in BUSY else None
        return None

    if not paths:
        return
    with ThreadPoolExecutor(WORKERS) as pool:
        # The list is completed: leaving the iterator of `map` early cancels calls that have not begun.
        refused = [error for error in pool.map(one, paths) if error is not None]
    if refused:
        raise refused[0]


def seconds(stamp: str) -> float:
    """Seconds since the epoch for a time in Google's format, RFC 3339."""
    return datetime.fromisoformat(stamp).timestamp()
