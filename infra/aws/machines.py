"""A cluster's machines as EC2 lists them by tag: for the sweep, the audit, and the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from infra.aws.account import explained
from infra.aws.tags import BUCKET, CLUSTER, COMPUTE, HOST, ROLE
from infra.clouds.cloud import ALIVE, ENDING, Machine
from infra.errors import UserError
from infra.node.elastic.drivers.ec2_errors import code_of
from infra.node.elastic.drivers.ec2_launch import end
from infra.node.elastic.drivers.ec2_names import node_of, nodes_in

BATCH = 500
"""Instances of one TerminateInstances call."""
STATES = {"shutting-down": "ending", "terminated": "gone"}
"""EC2's words that are others than `Machine.state`'s."""


def instances(ec2: Any, cluster: str, *states: str, **more: str) -> list[Machine]:
    """The instances of a cluster, every page.

    Args:
        states: of `Machine.state`; none for every state.
        more: values of further tags: `role`, `host`.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    filters += [{"Name": f"tag:slurm-stacks:{key}", "Values": [value]} for key, value in more.items()]
    if states:
        theirs = {ours: word for word, ours in STATES.items()}
        filters.append(
            {"Name": "instance-state-name", "Values": [theirs.get(state, state) for state in states]}
        )
    with explained():
        pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return [
            _instance(found)
            for page in pages
            for reservation in page["Reservations"]
            for found in reservation["Instances"]
        ]


def leftovers(ec2: Any, cluster: str) -> list[str]:
    """What of a cluster EC2 still has, a line each: instances, volumes, network interfaces, addresses, NAT
    gateways.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    there = instances(ec2, cluster, *ALIVE, *ENDING)
    found = [f"instance {machine.id} ({machine.name}, {machine.state})" for machine in there]
    gone = {machine.id for machine in there}
    for volume in _tagged(ec2, "describe_volumes", "Volumes", cluster):
        if not gone & {part.get("InstanceId") for part in volume.get("Attachments", [])}:
            found.append(f"volume {volume['VolumeId']} ({volume['Size']} GiB, {volume['State']})")
    for interface in _tagged(ec2, "describe_network_interfaces", "NetworkInterfaces", cluster):
        if interface.get("Attachment", {}).get("InstanceId") not in gone:
            found.append(f"network interface {interface['NetworkInterfaceId']} ({interface['Status']})")
    with explained():
        addresses = ec2.describe_addresses(Filters=[{"Name": f"tag:{CLUSTER}", "Values": [cluster]}])
    found += [f"public address {address['PublicIp']}" for address in addresses["Addresses"]]
    for gateway in _tagged(ec2, "describe_nat_gateways", "NatGateways", cluster):
        # EC2 goes on listing those that are gone, for an hour.
        if gateway["State"] not in ("deleted", "failed"):
            found.append(f"NAT gateway {gateway['NatGatewayId']} ({gateway['State']})")
    return found


def remove_loose(ec2: Any, cluster: str) -> None:
    """Interfaces and volumes that nodes have left behind: a subnet with one cannot be destroyed.

    Raises:
        UserError: AWS refuses, or does not answer; all others of the kind were asked for.
    """
    loose = [
        (
            "describe_network_interfaces",
            "NetworkInterfaces",
            "NetworkInterfaceId",
            ec2.delete_network_interface,
        ),
        ("describe_volumes", "Volumes", "VolumeId", ec2.delete_volume),
    ]
    for listing, key, name, delete in loose:
        parts = _tagged(ec2, listing, key, cluster, role=COMPUTE, status="available")
        _each(partial(_remove, delete, **{name: part[name]}) for part in parts)


def terminate(ec2: Any, ids: Sequence[str]) -> None:
    """End instances; that one is not there any more is fine.

    Raises:
        UserError: AWS refuses, or does not answer; all others were asked for.
    """
    from botocore.exceptions import ClientError

    batches = (ids[first : first + BATCH] for first in range(0, len(ids), BATCH))
    _each(partial(end, ec2, (ClientError,), batch) for batch in batches)


def _each(calls: Iterable[Callable[[], object]]) -> None:
    """All of them, and then the first refusal: one thing that cannot go keeps no other here."""
    failed: UserError | None = None
    for call in calls:
        try:
            with explained():
                call()
        except UserError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _remove(delete: Callable[..., object], **which: str) -> None:
    from botocore.exceptions import ClientError

    try:
        delete(**which)
    except ClientError as error:
        # What a machine has left goes with it, if only later.
        if not code_of(error).endswith(".NotFound"):
            raise


def _tagged(
    ec2: Any, listing: str, key: str, cluster: str, role: str | None = None, status: str | None = None
) -> Iterable[dict[str, Any]]:
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    if role is not None:
        filters.append({"Name": f"tag:{ROLE}", "Values": [role]})
    if status is not None:
        filters.append({"Name": "status", "Values": [status]})
    with explained():
        pages = ec2.get_paginator(listing).paginate(Filters=filters)
        return [part for page in pages for part in page[key]]


def _instance(found: dict[str, Any]) -> Machine:
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}
    launched: datetime = found["LaunchTime"]
    node = _node(nodes_in(tags.get), found.get("AmiLaunchIndex", 0))
    return Machine(
        id=found["InstanceId"],
        name=tags.get(HOST) or node or found["InstanceId"],
        role=tags.get(ROLE, ""),
        state=STATES.get(found["State"]["Name"], found["State"]["Name"]),
        launched=launched.timestamp(),
        private=found.get("PrivateIpAddress"),
        public=found.get("PublicIpAddress"),
        bucket=tags.get(BUCKET),
        zone=found.get("Placement", {}).get("AvailabilityZone"),
    )


def _node(nodes: str | None, index: int) -> str | None:
    try:
        return None if nodes is None else node_of(nodes, index)
    except ValueError:
        return None
