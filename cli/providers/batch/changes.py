"""Finds the files and jobs that an `up` would delete on a Batch stack that is up.

The engine replaces a resource without a question. No controller has published a design that the stack file
could be compared with, so AWS is asked what is there.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

from cli.hints import hint
from cli.providers.aws.changes import SHARED
from cli.providers.batch import teardown
from infra import addresses
from infra.aws.batch import access
from infra.aws.tags import CLUSTER, STACK
from infra.clouds.commands import ClusterRef
from infra.errors import EXIT_REFUSED, UserError
from node.design.batch import Batch
from node.design.model import ClusterDesign
from node.design.storage import Mount
from node.system import plurals
from operations.aws.account import explained
from operations.aws.batch import shutdown
from operations.aws.batch.service import Client
from operations.aws.batch.settling import GONE

# The names that a stack file gives in AWS Batch, and that something in the account may have already.
#
# They are the stack file's own (`tf-queue`), so two stacks with different cluster names may have the same
# ones.


def refuse_taken(client: Client, design: ClusterDesign) -> None:
    """Refuse names that something else in the account and region has.

    Raises:
        UserError: Exit 3; the message names each key, its value and whose it is.
    """
    if lines := list(taken(client, design)):
        listed = "\n".join(f"  {line}" for line in lines)
        raise UserError(
            f"nothing was made: these names are taken in {design.region}\n{listed}\n"
            f"Write others into Pulumi.{design.stack}.yaml.",
            EXIT_REFUSED,
            code="batch.names-taken",
        )


def taken(client: Client, design: ClusterDesign) -> Iterator[str]:
    """One line for each name that something has which is not of this cluster."""
    config, batch = access.of(design), client("batch")
    with explained():
        environments = batch.describe_compute_environments(computeEnvironments=[config.compute_environment])
        queues = batch.describe_job_queues(jobQueues=[config.queue])
    by_key: dict[str, tuple[str, list[Mapping[str, Any]]]] = {
        "compute_environment": (config.compute_environment, environments["computeEnvironments"]),
        "queue": (config.queue, queues["jobQueues"]),
    }
    for key, (name, resources) in by_key.items():
        for resource in resources:
            tags = resource.get("tags") or {}
            if resource.get("status") not in GONE and tags.get(CLUSTER) != design.name:
                whose = f"cluster {tags[CLUSTER]}" if CLUSTER in tags else "something that is not made here"
                yield f"slurm-stacks:cluster.batch.{key}: {name} is of {whose}"


def stacks(client: Client, cluster: str) -> set[str]:
    """Return the stacks that the tags of a cluster's environments name."""
    with explained():
        pages = client("batch").get_paginator("describe_compute_environments").paginate()
        tag_sets = [
            environment.get("tags") or {} for page in pages for environment in page["computeEnvironments"]
        ]
    return {str(tags[STACK]) for tags in tag_sets if tags.get(CLUSTER) == cluster and STACK in tags}


def check(client: Client, design: ClusterDesign, running: ClusterRef) -> None:
    """Refuse what would delete files or end jobs.

    Args:
        running: The cluster that is up.

    Raises:
        UserError: Exit 3; the message names each, and what to do.
    """
    other = running != ClusterRef.of(design) or design.batch is None
    network = "" if other else _network(client, design, running.cluster)
    lines = [
        *_files(client, design, running.cluster, network, other=other),
        *_jobs(client, design, running.cluster, network, other=other),
    ]
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise UserError(
            f"nothing was changed: this `up` would delete files or end jobs\n{listed}\n"
            f"`{hint('down', design.stack)}` asks first, and exports files to S3; "
            f"`{hint('up', design.stack, '--replace')}` makes the change without a question. To keep the "
            "files, put the old values back, or see docs/storage.md.",
            EXIT_REFUSED,
            code="batch.change-ends-files",
        )


def refuse_shared_addresses(client: Client, design: ClusterDesign, running: ClusterRef) -> None:
    """Refuse subnets that AWS could not make beside the cluster's own, whatever the user wants.

    Raises:
        UserError: Exit 3; the message names both networks.
    """
    network = design.network
    if network.vpc is not None or running != ClusterRef.of(design):
        return
    with explained():
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [running.cluster]}]
        vpcs = client("ec2").describe_vpcs(Filters=filters)["Vpcs"]
        subnets = client("ec2").describe_subnets(Filters=filters)["Subnets"] if vpcs else []
    if not vpcs or str(vpcs[0]["CidrBlock"]) != network.cidr:
        return  # another network is made
    stay = [str(network.public_cidr), *addresses.private_parts(str(network.private_cidr))]
    go = [cidr for subnet in subnets if (cidr := str(subnet["CidrBlock"])) not in stay]
    if overlap := addresses.shared(go, [str(network.public_cidr), str(network.private_cidr)]):
        raise UserError(
            "nothing was changed: slurm-stacks:cluster.network.public_cidr or private_cidr is not possible: "
            f"{SHARED.format(*overlap)}",
            EXIT_REFUSED,
            code="batch.network-shared",
        )


def _network(client: Client, design: ClusterDesign, cluster: str) -> str:
    """Say how the cluster's own network differs from the stack file's; empty if it does not."""
    filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]
    with explained():
        vpcs = client("ec2").describe_vpcs(Filters=filters)["Vpcs"]
    if not vpcs:
        return ""
    cidr, network = str(vpcs[0]["CidrBlock"]), design.network
    if network.vpc is not None:
        return f"network.aws {vpcs[0]['VpcId']} → {network.vpc}"
    return "" if cidr == network.cidr else f"network.cidr {cidr} → {network.cidr}"


def _files(
    client: Client, design: ClusterDesign, cluster: str, network: str, *, other: bool
) -> Iterator[str]:
    """Yield the file systems that would be replaced or deleted.

    FSx cannot give a file system other security groups, and those go with their network.
    """
    of_job = design.batch is not None and access.of(design).file_system == "job"
    wanted = {
        f"{design.name}-{mount.path.strip('/').replace('/', '-')}": mount
        for mount in design.mounts
        if mount.kind == "fsx_lustre" and mount.existing is None and not of_job
    }
    for system in shutdown.systems(client("fsx"), cluster):
        tags = {tag["Key"]: tag["Value"] for tag in system.get("Tags", [])}
        name, identity = tags.get("Name", ""), str(system["FileSystemId"])
        if name == f"{cluster}-job" or any(key.endswith(":keep") for key in tags):
            continue
        mount = None if other else wanted.get(name)
        size = f"{name}, {system.get('StorageCapacity', 0)} GiB"
        if other:
            why = f"is of the cluster that is up, {cluster}"
            yield f"{identity} ({size}) {why}, and is deleted with its files"
        elif mount is None:
            yield f"{identity} ({size}) is not in the stack file any more, and is deleted with its files"
        else:
            of_vpc = network or _other_vpc(system, design)
            if differs := ", ".join([*_differences(system, mount), *([of_vpc] if of_vpc else [])]):
                yield f"{identity} at {mount.path} is replaced by an empty one: {differs}"
            elif subnet := _other_subnet(client, system, design):
                yield (
                    f"{identity} at {mount.path} stays in its subnet {subnet}, which then cannot be deleted: "
                    f"network.private_cidr is {design.network.private_cidr}; put the old value back"
                )


def _other_vpc(system: Mapping[str, Any], design: ClusterDesign) -> str:
    """How the VPC of a file system differs from somebody's own VPC in the stack file."""
    vpc, wanted = system.get("VpcId"), design.network.vpc
    return f"network.aws {vpc} → {wanted}" if wanted and vpc and vpc != wanted else ""


def _other_subnet(client: Client, system: Mapping[str, Any], design: ClusterDesign) -> str:
    """Return the addresses of a file system's subnet if `network.private_cidr` moves them; else empty."""
    if design.network.vpc is not None or not system.get("SubnetIds"):
        return ""
    with explained():
        subnets = client("ec2").describe_subnets(SubnetIds=system["SubnetIds"])["Subnets"]
    whole = ipaddress.IPv4Network(str(design.network.private_cidr))
    for cidr in (ipaddress.IPv4Network(str(subnet["CidrBlock"])) for subnet in subnets):
        if not cidr.subnet_of(whole) or cidr.prefixlen != addresses.subnet_prefix(whole.prefixlen):
            return str(cidr)
    return ""


def _differences(system: Mapping[str, Any], mount: Mount) -> Iterator[str]:
    """Yield the differences that need a new file system: UpdateFileSystem cannot change them."""
    lustre = system.get("LustreConfiguration", {})
    linked = lustre.get("DataRepositoryConfiguration", {})
    pairs: dict[str, tuple[Any, Any]] = {
        "deployment": (lustre.get("DeploymentType"), mount.deployment),
        "storage_type": (system.get("StorageType"), mount.storage_type),
    }
    size = int(system.get("StorageCapacity", 0))
    if mount.deployment == "SCRATCH_1" or size > (mount.size_gib or 0):
        pairs["size_gib"] = (size, mount.size_gib)
    if mount.deployment == "SCRATCH_1":
        pairs["s3_import"] = (linked.get("ImportPath"), mount.s3_import)
        if mount.s3_export is not None or shutdown.asked_for(linked):
            pairs["s3_export"] = (linked.get("ExportPath"), mount.s3_export)
    for key, (current, wanted) in pairs.items():
        if current != wanted:
            yield f"{key} {current or 'nothing'} → {wanted or 'nothing'}"


def _jobs(client: Client, design: ClusterDesign, cluster: str, network: str, *, other: bool) -> Iterator[str]:
    """Yield the jobs of queues that would be deleted, and those whose machines are in a network that goes.

    A queue is deleted that has another name, or another environment.
    """
    batch = client("batch")
    batch_names = None if other else access.of(design)
    with explained():
        anew = [] if batch_names is None else list(_anew(batch, cluster, batch_names))
    for queue in teardown.queues(client, cluster):
        deleted = batch_names is None or queue != batch_names.queue or bool(anew)
        if (deleted or network) and (jobs := shutdown.unfinished_jobs(batch, queue)):
            goes_on = plurals.count(len(jobs), "job")
            if deleted:
                why = f": {', '.join(anew)}" if anew else ""
                yield f"queue {queue} is deleted, and with it {goes_on} that go on{why}"
            else:
                yield f"the machines of {goes_on} in {queue} are in the network that goes: {network}"


def _anew(batch: Any, cluster: str, config: Batch) -> Iterator[str]:
    """How the cluster's environments differ in what makes them anew."""
    for environment in teardown.described(batch, cluster):
        for key, path in access.ANEW.items():
            value: Any = environment
            for step in path.split("."):
                value = (value or {}).get(step)
            if (value or None) != (wanted := getattr(config, key)):
                yield f"batch.{key} {value or 'nothing'} → {wanted or 'nothing'}"
