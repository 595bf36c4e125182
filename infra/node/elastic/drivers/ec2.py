"""The driver of Amazon EC2: nodes are instances of a launch template, found again by their tags.

Runs on the controller, which has boto3 beside the node code; it is imported at the first call, for it costs
seconds and much memory. Credentials are the machine's role; the client finds them itself.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from infra.node.elastic.driver import LAUNCH_THREADS, LaunchGroup, LaunchResult, Machine, MachineState, Room
from infra.node.elastic.drivers import ec2_names
from infra.node.elastic.drivers.boot_reports import Boots, with_boots
from infra.node.elastic.drivers.ec2_boots import Ec2Boots
from infra.node.elastic.drivers.ec2_errors import error_of, words
from infra.node.elastic.drivers.ec2_launch import Ec2Launches, Place, end
from infra.node.elastic.drivers.ec2_notices import Ec2Notices
from infra.node.elastic.view import log
from infra.node.model import Settings

PAGE = 1000
CONNECT_SECONDS = 5.0
TEMPLATE, TEMPLATE_VERSION = "aws:ec2launchtemplate:id", "aws:ec2launchtemplate:version"
"""Tags that EC2 itself gives to what is launched from a template."""
READ_SECONDS = 60.0
"""A launch of hundreds of instances is answered only when all are placed."""
_STATES = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    # Stopped by hand it would keep its disk for ever: as a machine whose boot failed it is ended.
    "stopped": MachineState.RUNNING,
    "stopping": MachineState.STOPPING,
    "shutting-down": MachineState.STOPPING,
    "terminated": MachineState.TERMINATED,
}


class Ec2Driver:
    """Settings of the site: `region`, `cluster` (the tag's value), `subnets` (JSON: zone -> a subnet's id, or
    several), `templates` (JSON: partition -> launch template id), `bucket` (its name).

    Args:
        connect: makes the EC2 client.
        boots: what machines tell of themselves; by default from the reports in the cluster's bucket.
    """

    launch_threads = LAUNCH_THREADS

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Any] | None = None,
        boots: Boots | None = None,
    ) -> None:
        site, design = settings.site.driver, settings.design
        self._design = design
        self._cluster = site["cluster"]
        self._connect = connect or functools.partial(aws_client, "ec2", site["region"])
        self._boots = boots or Ec2Boots(
            functools.cache(functools.partial(aws_client, "s3", site["region"])),
            site["bucket"].removeprefix("s3://"),
        )
        self._lock = threading.Lock()
        self._made: Any = None
        self._notices = Ec2Notices(self._client, refusals, spot=any(p.spot for p in design.partitions))
        self._launches = Ec2Launches(
            design,
            self._cluster,
            self._client,
            refusals,
            places(json.loads(site["subnets"])),
            json.loads(site["templates"]),
        )

    def launch(self, group: LaunchGroup) -> LaunchResult:
        return self._launches.launch(group)

    def terminate(self, ids: Sequence[str]) -> None:
        """Raises:
        Ec2Error: EC2 refuses, or does not answer; all batches were tried.
        """
        try:
            end(self._client(), refusals(), ids)
        except refusals() as error:
            raise error_of(error) from error

    def list(self) -> builtins.list[Machine]:
        """Raises:
        Ec2Error: EC2 refuses, or does not answer: half a list is none.
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

    def room(self, partition: str, zone: str | None, count: int) -> Room | None:
        """None: EC2 tells only by launching.

        Its capacity is not published. A quota counts the vCPUs of many families and of whoever else uses the
        account, so it would allow what the launch then refuses; and DryRun checks permissions only.
        """
        return None

    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            return self._made

    def _with_templates(
        self, machines: builtins.list[Machine], instances: Mapping[str, Mapping[str, Any]]
    ) -> builtins.list[Machine]:
        """Those that were made from another template than their partition has now, by EC2's own tags."""
        found = []
        newest: dict[str, tuple[str, str] | None] = {}
        for machine in machines:
            tags = {tag["Key"]: tag["Value"] for tag in instances[machine.id].get("Tags", [])}
            made = tags.get(TEMPLATE), tags.get(TEMPLATE_VERSION)
            partition = self._design.partition_of(machine.node) if machine.node else None
            now = None
            if partition is not None and all(made) and machine.state is MachineState.RUNNING:
                if partition.name not in newest:
                    newest[partition.name] = self._newest(partition.name)
                now = newest[partition.name]
            outdated = now is not None and now != made
            found.append(dataclasses.replace(machine, outdated=True) if outdated else machine)
        return found

    def _newest(self, partition: str) -> tuple[str, str] | None:
        try:
            return self._launches.newest(partition)
        except refusals() as error:  # a listing must not depend on it
            log(f"launch template of {partition}: {error!r}")
            return None


def aws_client(service: str, region: str, **options: Any) -> Any:
    """A client of boto3's, which calls once: what is busy is classified and asked again by the launcher.

    Args:
        options: further ones of `boto3.client`.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        tcp_keepalive=True,
    )
    # A session of its own: the default one is shared, and not safe to make clients from in several threads.
    return boto3.session.Session().client(service, region_name=region, config=config, **options)


def refusals() -> tuple[type[Exception], ...]:
    """What the client raises: EC2's answer, or its own word that there was none."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    # The last is of neither kind: a load balancer's page in place of an answer.
    return (ClientError, BotoCoreError, ResponseParserError)


def places(subnets: Mapping[str, str | Sequence[str]]) -> builtins.list[Place]:
    """Zone -> its subnet or subnets, as places in that order."""
    return [
        (zone, subnet)
        for zone, of_zone in subnets.items()
        for subnet in ([of_zone] if isinstance(of_zone, str) else of_zone)
    ]


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
    )
