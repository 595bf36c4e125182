"""The driver of Amazon EC2: nodes are instances of a launch template and are recognised by their tags.

It runs on the controller, which has boto3 beside the node code. boto3 is imported at the first call, because
that takes seconds and much memory. The client itself finds the credentials of the machine's role.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.design.model import Settings
from node.design.sites import AwsSite
from node.elastic.driver import (
    LAUNCH_THREADS,
    AvailableCapacity,
    LaunchGroup,
    LaunchResult,
    Machine,
    MachineState,
)
from node.elastic.drivers.boot_reports import BootReports, BootStatusReader, with_boots
from node.elastic.drivers.ec2 import names as ec2_names
from node.elastic.drivers.ec2.client import aws_client, refusals
from node.elastic.drivers.ec2.errors import error_of, words
from node.elastic.drivers.ec2.launches import Ec2Launches, end
from node.elastic.drivers.ec2.names import TEMPLATE, TEMPLATE_VERSION
from node.elastic.drivers.ec2.notices import Ec2Notices
from node.elastic.view import log
from node.slurm.topology import Place

TOPOLOGY_IDS = 100
"""The largest number of ids that a call takes. A page size may not stand beside ids."""


def places(client: Any, machines: Sequence[Machine]) -> dict[str, Place]:
    """Return node -> its network nodes (DescribeInstanceTopology), the widest first.

    Partitions share network nodes, whose ids are the account's. Nodes are left out whose instance type has no
    topology, or whose instance does not run any more.

    Raises:
        ClientError, BotoCoreError: EC2 refuses, or does not answer.
    """
    nodes = {machine.id: machine.node for machine in machines if machine.node is not None}
    ids, place_of = list(nodes), {}
    for first in range(0, len(ids), TOPOLOGY_IDS):
        pages = client.get_paginator("describe_instance_topology").paginate(
            InstanceIds=ids[first : first + TOPOLOGY_IDS]
        )
        for instance in (instance for page in pages for instance in page["Instances"]):
            if place := tuple(instance.get("NetworkNodes", ())):
                place_of[nodes[instance["InstanceId"]]] = place
    return place_of


PAGE = 1000
"""Instances of one page of a listing."""
_STATES = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    # A stopped instance would keep its disk forever. It is treated as a machine whose boot failed, and ended.
    "stopped": MachineState.RUNNING,
    "stopping": MachineState.STOPPING,
    "shutting-down": MachineState.STOPPING,
    "terminated": MachineState.TERMINATED,
}


class Ec2Driver:
    """The driver that launches nodes as EC2 instances.

    Args:
        settings: The design, and the site as an `AwsSite`.
        connect: Makes the EC2 client.
        boots: What machines report of their boots; by default what the controller's server has taken.
    """

    launch_threads = LAUNCH_THREADS

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Any] | None = None,
        boots: BootStatusReader | None = None,
    ) -> None:
        site, design = settings.site.of(AwsSite), settings.design
        self._design = design
        self._cluster = site.cluster
        self._connect = connect or functools.partial(aws_client, "ec2", site.region)
        # EC2 itself tells of interruptions and events (`notices`).
        self._boots = boots or BootReports.of(settings, notices=False)
        self._lock = threading.Lock()
        self._cached_client: Any = None
        self._notices = Ec2Notices(self._client, refusals, spot=any(p.spot for p in design.partitions))
        self._launches = Ec2Launches(
            design,
            self._cluster,
            self._client,
            refusals,
            list(site.subnets.items()),
            site.templates,
        )

    def launch(self, group: LaunchGroup) -> LaunchResult:
        return self._launches.launch(group)

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances.

        Raises:
            Ec2Error: EC2 refuses, or does not answer. All batches were tried.
        """
        try:
            end(self._client(), refusals(), ids)
        except refusals() as error:
            raise error_of(error) from error

    def list(self) -> builtins.list[Machine]:
        """List all instances of the cluster.

        Raises:
            Ec2Error: EC2 refuses, or does not answer. A partial list is never returned.
        """
        filters = {ec2_names.CLUSTER: self._cluster, ec2_names.ROLE: ec2_names.COMPUTE}
        try:
            pages = (
                self._client()
                .get_paginator("describe_instances")
                .paginate(
                    Filters=[{"Name": f"tag:{key}", "Values": [value]} for key, value in filters.items()],
                    PaginationConfig={"PageSize": PAGE},
                )
            )
            instances = {
                instance["InstanceId"]: instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            }
        except refusals() as error:
            raise error_of(error) from error
        notices = self._notices.all() if instances else {}
        machines = [_machine(instance, notices) for instance in instances.values()]
        return self._with_templates(with_boots(machines, self._boots), instances)

    def available_capacity(self, partition: str, zone: str | None, count: int) -> AvailableCapacity | None:
        """Return `None`: EC2 tells its capacity only by launching.

        Its capacity is not published. A quota counts the vCPUs of many families, and those of everyone who
        uses the account, so it would allow what the launch then refuses. DryRun checks permissions only.
        """
        return None

    def places(self, machines: Sequence[Machine]) -> dict[str, Place]:
        """Return where instances are in EC2's network.

        Raises:
            Ec2Error: EC2 refuses, or does not answer.
        """
        try:
            return places(self._client(), machines)
        except refusals() as error:
            raise error_of(error) from error

    def _client(self) -> Any:
        with self._lock:
            if self._cached_client is None:
                self._cached_client = self._connect()
            return self._cached_client

    def _with_templates(
        self, machines: builtins.list[Machine], instances: Mapping[str, Mapping[str, Any]]
    ) -> builtins.list[Machine]:
        """Mark machines whose template is not their partition's present one, by EC2's own tags."""
        marked = []
        newest: dict[str, tuple[str, str] | None] = {}
        for machine in machines:
            tags = {tag["Key"]: tag["Value"] for tag in instances[machine.id].get("Tags", [])}
            template = tags.get(TEMPLATE), tags.get(TEMPLATE_VERSION)
            partition = self._design.partition_of(machine.node) if machine.node else None
            now = None
            if partition is not None and all(template) and machine.state is MachineState.RUNNING:
                if partition.name not in newest:
                    newest[partition.name] = self._newest_template(partition.name)
                now = newest[partition.name]
            outdated = now is not None and now != template
            marked.append(dataclasses.replace(machine, outdated=True) if outdated else machine)
        return marked

    def _newest_template(self, partition: str) -> tuple[str, str] | None:
        try:
            return self._launches.newest(partition)
        except refusals() as error:  # a listing must not depend on this
            log(f"launch template of {partition}: {error!r}")
            return None


def _machine(instance: Mapping[str, Any], notices: Mapping[str, float]) -> Machine:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    try:
        node = ec2_names.node_of(ec2_names.nodes_in(tags.get) or "", instance["AmiLaunchIndex"])
    except (KeyError, ValueError):
        node = None
    state = instance["State"]["Name"]
    reason = instance.get("StateReason", {})
    ended = state != "pending" and state != "running"
    return Machine(
        instance["InstanceId"],
        node,
        _STATES.get(state, MachineState.PENDING),
        instance["LaunchTime"].timestamp(),
        words(f"the instance is {state}: {reason.get('Message') or 'no reason given'}") if ended else None,
        instance.get("Placement", {}).get("AvailabilityZone"),
        notices.get(instance["InstanceId"]) if not ended else None,
        addresses=_addresses(instance),
    )


def _addresses(instance: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the private addresses of an instance. All its interfaces are in one VPC."""
    first = [instance["PrivateIpAddress"]] if instance.get("PrivateIpAddress") else []
    others = [
        address["PrivateIpAddress"]
        for interface in instance.get("NetworkInterfaces", [])
        for address in interface.get("PrivateIpAddresses", [])
    ]
    return tuple(dict.fromkeys([*first, *others]))
