"""The driver of Amazon EC2: nodes are instances of a launch template and are recognised by their tags.

It runs on the controller, which has boto3 beside the node code. boto3 is imported at the first call, because
that takes seconds and much memory. The client itself finds the credentials of the machine's role.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import threading
import time
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
from node.elastic.drivers.ec2.errors import error_of, failure_of, words
from node.elastic.drivers.ec2.launches import Ec2Launches, end
from node.elastic.view import log
from node.slurm.topology import Place

# Where EC2 says that instances are in its network (DescribeInstanceTopology).

TOPOLOGY_IDS = 100
"""The largest number of ids that a call takes. A page size may not stand beside ids."""


def places(client: Any, machines: Sequence[Machine]) -> dict[str, Place]:
    """Return node -> its network nodes, the widest first.

    Partitions share network nodes, whose ids are the account's. Nodes are left out whose instance type has no
    topology, or whose instance does not run any more.

    Raises:
        ClientError, BotoCoreError: EC2 refuses, or does not answer.
    """
    nodes = {machine.id: machine.node for machine in machines if machine.node is not None}
    ids, found = list(nodes), {}
    for first in range(0, len(ids), TOPOLOGY_IDS):
        pages = client.get_paginator("describe_instance_topology").paginate(
            InstanceIds=ids[first : first + TOPOLOGY_IDS]
        )
        for instance in (instance for page in pages for instance in page["Instances"]):
            if place := tuple(instance.get("NetworkNodes", ())):
                found[nodes[instance["InstanceId"]]] = place
    return found


# What EC2 announces to the account: spot interruptions, and scheduled events that end a machine.
#
# Both calls return announcements only, so they cost the same for ten nodes and for a thousand.

NOTICES_SECONDS = 20.0
"""The shortest pause between two queries. A spot interruption is announced two minutes ahead."""
EVENTS_PAGE = 1000
"""Results of one page, the most that EC2 returns."""
SPOT_SECONDS = 120.0
"""How long after its announcement a spot interruption happens."""
EVENT_LEAD_SECONDS = 900.0
"""Only events within this time count. They are announced days ahead, and many jobs end before that."""
EVENTS = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot")
"""Events that end what runs on the machine."""
SPOT = ("marked-for-termination", "marked-for-stop")
"""Status codes of spot requests whose instance will be interrupted."""
_OVER = ("[Completed]", "[Canceled]")
"""Prefixes of the descriptions of events that are over."""


class Ec2Notices:
    """EC2's announcements, which are asked for now and then.

    Args:
        client: Returns the EC2 client.
        refusals: Returns the exceptions that the client's calls raise.
        spot: Whether some partition uses spot capacity.
        clock: Returns seconds since the epoch.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        refusals: Callable[[], tuple[type[Exception], ...]],
        *,
        spot: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._refusals = refusals
        self._spot = spot
        self._clock = clock
        self._query_lock = threading.Lock()
        self._asked: float | None = None
        self._events: Mapping[str, float] = {}
        self._interruptions: Mapping[str, float] = {}
        self._last_error = ""

    def all(self) -> Mapping[str, float]:
        """Return instance -> when it will be taken, in seconds since the epoch.

        Other clusters' instances may be included. Never raises: without an answer the last one counts,
        because a listing must not depend on notices.
        """
        # Only one thread asks. The others do not wait for a cloud that may take a minute to fail.
        if self._query_lock.acquire(blocking=False):
            try:
                now = self._clock()
                if self._asked is None or not 0 <= now - self._asked < NOTICES_SECONDS:
                    self._asked = now
                    self._ask(now)
            finally:
                self._query_lock.release()
        found = dict(self._events)
        for identity, at in self._interruptions.items():
            _note(found, identity, at)
        return found

    def _ask(self, now: float) -> None:
        """Ask for events and interruptions separately: if one query fails, the other may still succeed."""
        errors = []
        try:
            self._events = self._ask_events(now)
        except self._refusals() as error:
            errors.append(failure_of(error).sentence())
        if self._spot:
            try:
                self._interruptions = self._ask_interruptions()
            except self._refusals() as error:
                errors.append(failure_of(error).sentence())
        text = ", ".join(dict.fromkeys(errors))
        if text and text != self._last_error:
            log(f"interruptions and events are unknown: {text}")
        self._last_error = text

    def _ask_events(self, now: float) -> dict[str, float]:
        found: dict[str, float] = {}
        filters = [{"Name": "event.code", "Values": list(EVENTS)}]
        for page in self._pages("describe_instance_status", filters):
            for status in page["InstanceStatuses"]:
                for event in status.get("Events", []):
                    if event["Code"] in EVENTS and not event.get("Description", "").startswith(_OVER):
                        _note(found, status["InstanceId"], event["NotBefore"].timestamp())
        return {identity: at for identity, at in found.items() if at - now < EVENT_LEAD_SECONDS}

    def _ask_interruptions(self) -> dict[str, float]:
        found: dict[str, float] = {}
        filters = [{"Name": "status-code", "Values": list(SPOT)}]
        for page in self._pages("describe_spot_instance_requests", filters):
            for request in page["SpotInstanceRequests"]:
                status = request.get("Status", {})
                if status.get("Code") in SPOT and "InstanceId" in request:
                    announced = status["UpdateTime"].timestamp()
                    _note(found, request["InstanceId"], announced + SPOT_SECONDS)
        return found

    def _pages(self, call: str, filters: list[dict[str, Any]]) -> Any:
        """Return all pages. Without a page size EC2 decides how many results a page has, and may time out."""
        paginator = self._client().get_paginator(call)
        return paginator.paginate(Filters=filters, PaginationConfig={"PageSize": EVENTS_PAGE})


def _note(found: dict[str, float], identity: str, at: float) -> None:
    found[identity] = min(at, found.get(identity, at))


PAGE = 1000
"""Instances of one page of a listing."""
CONNECT_SECONDS = 5.0
"""How long a connection to EC2 may take."""
TEMPLATE, TEMPLATE_VERSION = "aws:ec2launchtemplate:id", "aws:ec2launchtemplate:version"
"""Tags that EC2 itself sets on what is launched from a template."""
READ_SECONDS = 60.0
"""How long EC2 may take to answer: a launch of hundreds of instances is answered only when all are placed."""
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
        found = []
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
            found.append(dataclasses.replace(machine, outdated=True) if outdated else machine)
        return found

    def _newest_template(self, partition: str) -> tuple[str, str] | None:
        try:
            return self._launches.newest(partition)
        except refusals() as error:  # a listing must not depend on this
            log(f"launch template of {partition}: {error!r}")
            return None


def aws_client(service: str, region: str, **options: Any) -> Any:
    """Make a client of boto3 that does not retry: the launcher classifies errors and repeats calls.

    Args:
        service: The service's name, such as `ec2`.
        region: The region.
        options: Further options of `boto3.client`.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        tcp_keepalive=True,
    )
    # Each client has its own session: the default session is shared and not safe to use in several threads.
    return boto3.session.Session().client(service, region_name=region, config=config, **options)


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions of the client: EC2's refusals, and its own errors if there was no answer."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    # ResponseParserError is neither: it is raised when a load balancer's page comes in place of an answer.
    return (ClientError, BotoCoreError, ResponseParserError)


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
