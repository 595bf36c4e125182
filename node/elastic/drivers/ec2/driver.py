"""The driver of Amazon EC2: nodes are instances of a launch template and are recognised by their tags.

It runs on the controller, whose role may launch and end them.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence

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
from node.elastic.drivers.ec2.answers import Instance
from node.elastic.drivers.ec2.client import CallError, Ec2Client
from node.elastic.drivers.ec2.errors import error_of, words
from node.elastic.drivers.ec2.launches import Ec2Launches, end
from node.elastic.drivers.ec2.names import TEMPLATE, TEMPLATE_VERSION
from node.elastic.drivers.ec2.notices import Ec2Notices
from node.elastic.view import log
from node.slurm.topology import Place

TOPOLOGY_IDS = 100
"""The largest number of ids that a call takes. A page size may not stand beside ids."""


def places(client: Ec2Client, machines: Sequence[Machine]) -> dict[str, Place]:
    """Return node -> its network nodes (DescribeInstanceTopology), the widest first.

    Partitions share network nodes, whose ids are the account's. Nodes are left out whose instance type has no
    topology, or whose instance does not run any more.

    Raises:
        CallError: EC2 refuses, or does not answer.
    """
    nodes = {machine.id: machine.node for machine in machines if machine.node is not None}
    ids, place_of = list(nodes), {}
    for first in range(0, len(ids), TOPOLOGY_IDS):
        for identity, place in client.network_nodes(ids[first : first + TOPOLOGY_IDS]).items():
            if place:
                place_of[nodes[identity]] = place
    return place_of


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
        connect: Callable[[], Ec2Client] | None = None,
        boots: BootStatusReader | None = None,
    ) -> None:
        site, design = settings.site.of(AwsSite), settings.design
        self._design = design
        self._cluster = site.cluster
        self._connect = connect or functools.partial(Ec2Client, site.region)
        # EC2 itself tells of interruptions and events (`notices`).
        self._boots = boots or BootReports.of(settings, notices=False)
        self._lock = threading.Lock()
        self._cached_client: Ec2Client | None = None
        self._notices = Ec2Notices(self._client, spot=any(p.spot for p in design.partitions))
        self._launches = Ec2Launches(
            design,
            self._cluster,
            self._client,
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
            end(self._client().terminate_instances, (CallError,), ids)
        except CallError as error:
            raise error_of(error) from error

    def list(self) -> builtins.list[Machine]:
        """List all instances of the cluster.

        Raises:
            Ec2Error: EC2 refuses, or does not answer. A partial list is never returned.
        """
        tags = {ec2_names.CLUSTER: self._cluster, ec2_names.ROLE: ec2_names.COMPUTE}
        try:
            instances = {instance.id: instance for instance in self._client().instances(tags)}
        except CallError as error:
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
        except CallError as error:
            raise error_of(error) from error

    def _client(self) -> Ec2Client:
        with self._lock:
            if self._cached_client is None:
                self._cached_client = self._connect()
            return self._cached_client

    def _with_templates(
        self, machines: builtins.list[Machine], instances: Mapping[str, Instance]
    ) -> builtins.list[Machine]:
        """Mark machines whose template is not their partition's present one, by EC2's own tags."""
        marked = []
        newest: dict[str, tuple[str, str] | None] = {}
        for machine in machines:
            tags = instances[machine.id].tags
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
        except CallError as error:  # a listing must not depend on this
            log(f"launch template of {partition}: {error!r}")
            return None


def _machine(instance: Instance, notices: Mapping[str, float]) -> Machine:
    state = instance.state
    ended = state not in ("pending", "running")
    return Machine(
        instance.id,
        _node(instance),
        _STATES.get(state, MachineState.PENDING),
        instance.launched,
        words(f"the instance is {state}: {instance.reason or 'no reason given'}") if ended else None,
        instance.zone,
        notices.get(instance.id) if not ended else None,
        addresses=instance.addresses,
    )


def _node(instance: Instance) -> str | None:
    if instance.launch_index is None:
        return None
    try:
        return ec2_names.node_of(ec2_names.nodes_in(instance.tags.get) or "", instance.launch_index)
    except ValueError:
        return None
