"""A cluster's EC2 resources by tag, for termination, the report of leftovers, and SSH access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from infra.aws.tags import BUCKET, CLUSTER, COMPUTE, HOST, ROLE, STACK
from infra.errors import UserError
from node.elastic.drivers.ec2.errors import code_of
from node.elastic.drivers.ec2.launches import end
from node.elastic.drivers.ec2.names import node_of, nodes_in
from operations.aws.account import explained
from operations.aws.kept import is_kept
from operations.clouds.cloud import ALIVE, ENDING, Machine, TaggedMachine

BATCH = 500
"""The number of instances in one TerminateInstances call."""
STATES = {"shutting-down": "ending", "terminated": "gone"}
"""The values of `Machine.state` for those states that EC2 names differently."""

CHECKS = {"SystemStatus": "the system", "InstanceStatus": "the instance", "AttachedEbsStatus": "the disks"}
"""EC2's status checks, by their key in DescribeInstanceStatus."""


def instances(ec2: Any, cluster: str, *states: str, **more: str) -> list[Machine]:
    """Return the instances of a cluster, from every page of the list.

    Args:
        states: Values of `Machine.state`; without any, instances in every state.
        more: Values of further tags: `role`, `host`.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    filters += [{"Name": f"tag:slurm-stacks:{key}", "Values": [value]} for key, value in more.items()]
    if states:
        ec2_states = {ours: word for word, ours in STATES.items()}
        filters.append(
            {"Name": "instance-state-name", "Values": [ec2_states.get(state, state) for state in states]}
        )
    with explained():
        pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return [
            _instance(instance)
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]


def tagged(ec2: Any) -> list[TaggedMachine]:
    """Return the instances of all clusters in a region that have not ended, from every page of the list.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    ec2_states = {ours: word for word, ours in STATES.items()}
    filters = [
        {"Name": "tag-key", "Values": [CLUSTER]},
        {"Name": "instance-state-name", "Values": [ec2_states.get(state, state) for state in ALIVE]},
    ]
    with explained():
        pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
        described = [
            instance for page in pages for group in page["Reservations"] for instance in group["Instances"]
        ]
    machines = []
    for instance in described:
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        machines.append(
            TaggedMachine(
                cluster=tags[CLUSTER],
                stack=tags.get(STACK),
                node=tags.get(ROLE) == COMPUTE,
                running=instance["State"]["Name"] in ("pending", "running"),
                instance_type=instance["InstanceType"],
                launched=instance["LaunchTime"].timestamp(),
            )
        )
    return machines


def failed_checks(ec2: Any, identity: str) -> str | None:
    """Return which of EC2's status checks fail for an instance, and since when; `None` if none does.

    The check of the system is of the host and its network, that of the instance is of its kernel, and that of
    EBS is of its disks. A check that has no result yet does not fail.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    with explained():
        (status,) = ec2.describe_instance_status(InstanceIds=[identity])["InstanceStatuses"] or [{}]
    failed = []
    for key, name in CHECKS.items():
        for detail in status.get(key, {}).get("Details", []):
            if detail["Status"] == "failed":
                since = detail.get("ImpairedSince")
                failed.append(name + (f" (since {since:%Y-%m-%d %H:%M} UTC)" if since else ""))
    return f"its check of {', '.join(failed)} fails" if failed else None


def networks(ec2: Any) -> set[str]:
    """Return the clusters that have a network or a security group in a region, with and without machines.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    filters = [
        {"Name": "key", "Values": [CLUSTER]},
        {"Name": "resource-type", "Values": ["vpc", "security-group"]},
    ]
    with explained():
        pages = ec2.get_paginator("describe_tags").paginate(Filters=filters)
        return {tag["Value"] for page in pages for tag in page["Tags"]}


def leftovers(ec2: Any, cluster: str) -> list[str]:
    """One line for each instance, volume, network interface, address and NAT gateway of a cluster.

    Raises:
        UserError: AWS refuses, or does not answer.
    """
    present = instances(ec2, cluster, *ALIVE, *ENDING)
    remains = [f"instance {machine.id} ({machine.name}, {machine.state})" for machine in present]
    gone = {machine.id for machine in present}
    for volume in _tagged(ec2, "describe_volumes", "Volumes", cluster):
        if is_kept(volume.get("Tags", [])):
            continue
        if not gone & {part.get("InstanceId") for part in volume.get("Attachments", [])}:
            remains.append(f"volume {volume['VolumeId']} ({volume['Size']} GiB, {volume['State']})")
    for interface in _tagged(ec2, "describe_network_interfaces", "NetworkInterfaces", cluster):
        if interface.get("Attachment", {}).get("InstanceId") not in gone:
            remains.append(f"network interface {interface['NetworkInterfaceId']} ({interface['Status']})")
    with explained():
        addresses = ec2.describe_addresses(Filters=[{"Name": f"tag:{CLUSTER}", "Values": [cluster]}])
    remains += [f"public address {address['PublicIp']}" for address in addresses["Addresses"]]
    for gateway in _tagged(ec2, "describe_nat_gateways", "NatGateways", cluster):
        # EC2 lists deleted gateways for an hour.
        if gateway["State"] not in ("deleted", "failed"):
            remains.append(f"NAT gateway {gateway['NatGatewayId']} ({gateway['State']})")
    return remains


def remove_loose(ec2: Any, cluster: str) -> None:
    """Remove network interfaces and volumes that nodes left behind: an interface blocks a subnet's deletion.

    Raises:
        UserError: AWS refuses, or does not answer. All others of the kind were requested to be deleted.
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
    """Terminate instances; one that no longer exists is no error.

    Raises:
        UserError: AWS refuses, or does not answer. The termination of all others was requested.
    """
    from botocore.exceptions import ClientError

    batches = (ids[first : first + BATCH] for first in range(0, len(ids), BATCH))
    _each(
        partial(end, lambda some: ec2.terminate_instances(InstanceIds=some), (ClientError,), batch)
        for batch in batches
    )


def _each(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, and then raise the first error, so that one failure does not prevent the others."""
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
        # The end of a machine deletes what belongs to it, sometimes only later.
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
        stack=tags.get(STACK),
    )


def _node(nodes: str | None, index: int) -> str | None:
    try:
        return None if nodes is None else node_of(nodes, index)
    except ValueError:
        return None
