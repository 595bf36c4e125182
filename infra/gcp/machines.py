"""A cluster's machines as Compute Engine lists them by label: for the sweep, the audit, and the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from infra.clouds.cloud import Machine
from infra.errors import UserError
from infra.gcp.account import Account, GoogleError
from infra.gcp.audit import matching
from infra.node import words
from infra.node.bootstrap.vm.images import ROLE as IMAGE
from infra.node.elastic.drivers.gce_names import BUCKET, COMPUTE, HOST, ROLE, node_of, short

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
"""Compute Engine's words. TERMINATED is off, and can be started; what is deleted is not listed at all."""
WORKERS = 16
"""Deletions at once; each is a call of its own."""
BUSY = {"resourceNotReady", "resourceInUseByAnotherResource"}
"""Why a deletion is refused where one is under way already."""
WAITS = 10
"""For an operation; each takes two minutes at most, as Compute Engine's own wait goes."""


def listed(account: Account, cluster: str, **labels: str) -> list[dict[str, Any]]:
    """The instances of a cluster in every zone, every page, as the API has them.

    Args:
        labels: values of further labels: `role`, `host`.

    Raises:
        UserError: Google Cloud refuses, or a zone of it does not answer.
    """
    path = "projects/{project}/aggregated/instances"
    return list(account.pages("compute", path, "items", filter=matching(cluster, **labels)))


def machine(found: dict[str, Any], cluster: str, bucket: str | None = None) -> Machine:
    """An instance as the shared parts know machines.

    Args:
        bucket: the cluster's, where the machine's metadata does not say it.
    """
    labels = found.get("labels", {})
    interface: dict[str, Any] = next(iter(found.get("networkInterfaces", [])), {})
    public = (access.get("natIP") for access in interface.get("accessConfigs", []))
    name = str(found["name"])
    return Machine(
        id=name,
        name=labels.get(HOST) or node_of(cluster, name) or name,
        role=labels.get(ROLE, ""),
        state=STATES.get(str(found["status"]), "running"),
        launched=seconds(found.get("lastStartTimestamp") or found["creationTimestamp"]),
        private=interface.get("networkIP"),
        public=next((address for address in public if address), None),
        bucket=bucket_of(found) or bucket if HOST in labels else None,
        zone=short(str(found["zone"])),
    )


def bucket_of(found: dict[str, Any]) -> str | None:
    """The cluster's bucket by an instance's metadata; a node's has it not, nor one of an earlier release."""
    items = found.get("metadata", {}).get("items", [])
    return next((str(item["value"]) for item in items if item.get("key") == BUCKET), None)


def start(account: Account, machines: Sequence[Machine]) -> None:
    """Start machines that are stopped.

    Raises:
        UserError: Compute Engine has no capacity, a quota is used up, or it refuses otherwise. It says so at
            the operation's end only, so that is waited for.
    """
    for one in machines:
        path = f"projects/{{project}}/zones/{one.zone}/instances/{one.id}"
        # A machine that was suspended has its memory still; a start would be refused.
        now = account.call("GET", "compute", path).get("status")
        verb = "resume" if now == "SUSPENDED" else "start"
        operation = account.call("POST", "compute", f"{path}/{verb}")
        finish(account, operation, f"{one.id} cannot be started")


def end(account: Account, machines: Sequence[Machine]) -> None:
    """Delete machines; does not wait."""
    _delete(account, [f"zones/{one.zone}/instances/{one.id}" for one in machines])


def remove_loose(account: Account, cluster: str) -> None:
    """Disks that nodes have left behind: they cost, and nobody would find them."""
    _remove_disks(account, matching(cluster, role=COMPUTE))


def end_images(account: Account, cluster: str, say: Callable[[str], None]) -> None:
    """Delete the images of a cluster, and the machines and disks that became them."""
    builders = listed(account, cluster, role=IMAGE)
    mine = matching(cluster)
    images = list(account.pages("compute", "projects/{project}/global/images", "items", filter=mine))
    if images or builders:
        say(f"deleting {words.count(len(images), 'image')} of cluster {cluster}")
    for builder in builders:
        path = f"zones/{short(str(builder['zone']))}/instances/{builder['name']}"
        try:
            operation = account.call("DELETE", "compute", f"projects/{{project}}/{path}")
        except GoogleError as error:
            if error.status == 404:  # somebody else has just deleted it
                continue
            raise
        # A disk can be deleted when no machine has it.
        finish(account, operation, f"{builder['name']} cannot be deleted")
    _delete(account, [f"global/images/{image['name']}" for image in images])
    _remove_disks(account, matching(cluster, role=IMAGE))


def _remove_disks(account: Account, wanted: str) -> None:
    disks = account.pages("compute", "projects/{project}/aggregated/disks", "items", filter=wanted)
    loose = [disk for disk in disks if not disk.get("users")]
    _delete(account, [f"zones/{short(str(disk['zone']))}/disks/{disk['name']}" for disk in loose])


def finish(account: Account, operation: dict[str, Any], what: str) -> None:
    """Wait for an operation of a zone.

    Raises:
        UserError: it failed, in Google's words behind `what`, or takes longer than 20 minutes.
    """
    zone = short(str(operation.get("zone", "")))
    path = f"projects/{{project}}/zones/{zone}/operations/{operation['name']}/wait"
    for _ in range(WAITS):
        if operation.get("status") == "DONE":
            break
        operation = account.call("POST", "compute", path)
    errors = operation.get("error", {}).get("errors", [])
    if errors:
        said = "; ".join(f"{one.get('code', '')}: {one.get('message', '')}" for one in errors)
        raise UserError(f"{what}: {said}")
    if operation.get("status") != "DONE":
        raise UserError(f"{what}: Compute Engine is still at it, operation {operation['name']}")


def _delete(account: Account, paths: Sequence[str]) -> None:
    """Ask for deletions; that nothing is there any more, or is being deleted already, is fine.

    Raises:
        UserError: Google refuses one, and all others were asked for; or it does not answer.
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
        # To the end: an iterator of `map` that is left early cancels what has not begun.
        refused = [error for error in pool.map(one, paths) if error is not None]
    if refused:
        raise refused[0]


def seconds(stamp: str) -> float:
    """Of a time as Google writes it, RFC 3339."""
    return datetime.fromisoformat(stamp).timestamp()
