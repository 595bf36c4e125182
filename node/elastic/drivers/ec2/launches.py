"""Launches on EC2: whole jobs or as many nodes as possible, one subnet after another.

This uses RunInstances and not CreateFleet. With MinCount = MaxCount EC2 itself launches all or nothing, the
instances' numbers in their launch (`ami-launch-index`) name the nodes without a call for each node, and
errors are returned as errors. A fleet promises neither the numbers nor that it is never left half launched.
Its advantage, several subnets in one call, is a loop here, which costs an extra call only where a zone is
full.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from node.design.model import ClusterDesign
from node.elastic.driver import LaunchGroup, LaunchResult
from node.elastic.drivers.ec2 import names as ec2_names
from node.elastic.drivers.ec2.answers import Instance, TemplateVersion
from node.elastic.drivers.ec2.client import CallError, Ec2Client
from node.elastic.drivers.ec2.errors import classify, code_of, failure_of, not_found, protected, words
from node.elastic.drivers.failures import NEXT_ZONE_HELPS, config_failure, of_zones
from node.elastic.failures import API_FAILURES, Failure
from node.elastic.view import log
from node.slurm.hostlist import fold
from node.system.plurals import count

ZoneSubnet = tuple[str, str]
"""A zone and one of its subnets."""

CALL_NODES = 500
"""The largest number of instances of one RunInstances call."""
TERMINATE_IDS = 1000
"""The largest number of instances of one TerminateInstances call."""
PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between tries, where giving up would waste machines that were already launched."""
TOKENS_USED = ("IdempotentInstanceTerminated", "IdempotentParameterMismatch")
"""Codes that mean that the token belongs to an earlier launch, so that the request needs another token."""
TEMPLATE_SECONDS = 60.0
"""For how long a template's newest version is remembered."""
REQUEST_SECONDS = 1800.0
"""After this time no try of a request follows another: six calls with their pauses, in each of several zones.
"""


class Ec2Launches:
    """The launches of nodes with RunInstances.

    Args:
        design: The cluster's design.
        cluster: The value of the cluster's tag.
        client: Returns the EC2 client, which is made at the first call.
        zone_subnets: Every zone's subnets, in the order of the tries.
        templates: Partition -> launch template id.
        sleep: Waits for some seconds.
    """

    def __init__(
        self,
        design: ClusterDesign,
        cluster: str,
        client: Callable[[], Ec2Client],
        zone_subnets: Sequence[ZoneSubnet],
        templates: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._design = design
        self._cluster = cluster
        self._client = client
        self._zone_subnets = tuple(zone_subnets)
        self._templates = templates
        self._sleep = sleep
        self._lock = threading.Lock()
        self._read: dict[str, tuple[float, TemplateVersion]] = {}
        self._attempts: dict[str, int] = {}
        self._template_of_request: dict[str, tuple[float, TemplateVersion]] = {}

    def launch(self, group: LaunchGroup) -> LaunchResult:
        """Launch in the group's zone, or without one in the first subnet that has capacity."""
        zone_subnets = [
            zone_subnet for zone_subnet in self._zone_subnets if group.zone in (None, zone_subnet[0])
        ]
        if group.partition not in self._templates:
            return config_failure(group, "NoTemplate", f"partition {group.partition} has no launch template")
        if not zone_subnets:
            known = ", ".join(sorted({zone for zone, _ in self._zone_subnets})) or "none"
            return config_failure(
                group, "NoSubnet", f"no subnet lies in zone {group.zone}; with one: {known}"
            )
        launched: dict[str, str] = {}
        left = group.nodes
        zone_failures: list[tuple[str | None, Failure]] = []
        for zone, subnet in zone_subnets:
            attempt = self._whole if group.all_or_nothing else self._some
            identities, failure = attempt(group, left, subnet)
            launched |= identities
            left = tuple(node for node in left if node not in identities)
            if failure is None:
                return LaunchResult(launched)
            zone_failures.append((zone, failure))
            if failure.kind not in NEXT_ZONE_HELPS:
                break
        return LaunchResult(launched, (of_zones(zone_failures, left),))

    def _whole(
        self, group: LaunchGroup, nodes: tuple[str, ...], subnet: str
    ) -> tuple[dict[str, str], Failure | None]:
        """Launch all nodes in one subnet, or none: if a call fails, earlier calls are undone."""
        launched: dict[str, str] = {}
        for call in ec2_names.calls(nodes, CALL_NODES):
            try:
                part = self._run(group, call, subnet, len(call), retry=bool(launched))
            except CallError as error:
                failure = failure_of(error, nodes)
            else:
                launched |= part.launched
                if not part.failures:
                    continue
                failure = part.failures[0]
            self._undo(group, launched)
            return {}, failure
        return launched, None

    def _some(
        self, group: LaunchGroup, nodes: tuple[str, ...], subnet: str
    ) -> tuple[dict[str, str], Failure | None]:
        """Launch as many nodes as the subnet gives.

        EC2 does not say why it launched fewer than asked for, so the rest is asked for again.
        """
        launched: dict[str, str] = {}
        for call in ec2_names.calls(nodes, CALL_NODES):
            rest, short = call, None
            for _ in range(2):
                try:
                    part = self._run(group, rest, subnet, 1, retry=bool(launched))
                except CallError as error:
                    return launched, failure_of(error)
                launched |= part.launched
                rest = tuple(node for node in rest if node not in launched)
                short = part.failures[0] if part.failures else None
                if not rest:
                    break
            if short is not None:
                return launched, short
        return launched, None

    def _run(
        self, group: LaunchGroup, nodes: Sequence[str], subnet: str, least: int, *, retry: bool
    ) -> LaunchResult:
        """Make one RunInstances call.

        Args:
            group: What is launched.
            nodes: The nodes, in the order of `ec2_names.calls`.
            subnet: The subnet's id.
            least: The smallest number of instances that is of use.
            retry: Whether to ask a busy cloud again before giving up.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        pauses = list(PAUSES) if retry else []
        fresh_tokens = 3
        while True:
            try:
                instances = self._client().run_instances(self._request(group, nodes, subnet, least))
            except CallError as error:
                if code_of(error) in TOKENS_USED and fresh_tokens:
                    fresh_tokens -= 1
                    self._renew_token(group)
                elif failure_of(error).kind in API_FAILURES and pauses:
                    self._sleep(pauses.pop(0))
                else:
                    raise
                continue
            return _result(nodes, instances)

    def _request(self, group: LaunchGroup, nodes: Sequence[str], subnet: str, least: int) -> dict[str, Any]:
        partition, identity = self._design.partition(group.partition), self._templates[group.partition]
        template = self._template_of(group, identity)
        tags = {
            **self._design.tags,
            "Name": f"{self._cluster}-{partition.name}",
            ec2_names.CLUSTER: self._cluster,
            ec2_names.STACK: self._design.stack,
            ec2_names.ROLE: ec2_names.COMPUTE,
            ec2_names.PARTITION: partition.name,
            **ec2_names.tags_of(nodes),
        }
        kinds = ["instance", "volume", "network-interface"]
        if partition.spot:
            kinds.append("spot-instances-request")
        labels = [{"Key": key, "Value": value} for key, value in tags.items()]
        request = {
            "MinCount": least,
            "MaxCount": len(nodes),
            "LaunchTemplate": {"LaunchTemplateId": identity, "Version": template.number},
            "TagSpecifications": [{"ResourceType": kind, "Tags": labels} for kind in kinds],
        }
        # EC2 accepts no subnet beside a template's interfaces. They are repeated, each with the subnet in it.
        if template.interfaces:
            request["NetworkInterfaces"] = [
                {**interface, "SubnetId": subnet} for interface in template.interfaces
            ]
        else:
            request["SubnetId"] = subnet
        # The token covers the whole request, so that one token never stands for two different requests.
        content = [group.token, self._attempts.get(group.token, 0), request]
        token = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return {**request, "ClientToken": token}

    def newest(self, partition: str) -> tuple[str, str] | None:
        """Return the launch template's id and version from which nodes of a partition are made now.

        Raises:
            CallError: EC2 refuses, or does not answer.
        """
        identity = self._templates.get(partition)
        return None if identity is None else (identity, self._template(identity).number)

    def _template_of(self, group: LaunchGroup, identity: str) -> TemplateVersion:
        """Return the same template version for all tries of a request.

        If an answer is lost, a different request would launch the nodes twice.
        """
        now = time.monotonic()
        with self._lock:
            self._template_of_request = {
                token: entry
                for token, entry in self._template_of_request.items()
                if now - entry[0] < REQUEST_SECONDS
            }
            known = self._template_of_request.get(group.token)
        if known is not None:
            return known[1]
        template = self._template(identity)
        with self._lock:
            return self._template_of_request.setdefault(group.token, (now, template))[1]

    def _template(self, identity: str) -> TemplateVersion:
        """Return the newest version of a template, by its number."""
        now = time.monotonic()
        with self._lock:
            at, known = self._read.get(identity, (0.0, None))
        if known is not None and now - at < TEMPLATE_SECONDS:
            return known
        template = self._client().newest_version(identity)
        with self._lock:
            self._read[identity] = (now, template)
        return template

    def _undo(self, group: LaunchGroup, launched: Mapping[str, str]) -> None:
        """End the instances of a group that cannot be launched as a whole.

        The reconciler ends what is left, because no node uses it.
        """
        if not launched:
            return
        self._renew_token(group)
        left = set(launched.values())
        for pause in (*PAUSES, None):
            try:
                # EC2 may not know such young instances yet: not found does not mean ended.
                left = end(self._client().terminate_instances, (CallError,), left)
            except CallError as error:
                log(f"{fold(launched)}: not ended yet: {failure_of(error).sentence()}")
            if not left or pause is None:
                return
            self._sleep(pause)

    def _renew_token(self, group: LaunchGroup) -> None:
        """Give the next try of this request another token: EC2 would answer with the ended instances."""
        with self._lock:
            self._attempts[group.token] = self._attempts.get(group.token, 0) + 1


def end(
    terminate: Callable[[Sequence[str]], object], refusals: tuple[type[Exception], ...], ids: Iterable[str]
) -> set[str]:
    """Terminate instances, except those that EC2 does not know or may not end.

    EC2 terminates none of a call's instances if it refuses one, and its error names those. Each call has as
    many instances as EC2 accepts, and all calls are made even if one fails.

    Args:
        terminate: Makes a call (TerminateInstances).
        refusals: The exceptions that it raises.
        ids: The instances.

    Returns:
        The unknown instances.

    Raises:
        Exception: EC2 refuses, or does not answer; or some instances are protected from
            termination, and the others are ended.
    """
    wanted, unknown = sorted(set(ids)), set[str]()
    failed: Exception | None = None
    for first in range(0, len(wanted), TERMINATE_IDS):
        try:
            unknown |= _end(terminate, refusals, wanted[first : first + TERMINATE_IDS])
        except refusals as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return unknown


def _end(
    terminate: Callable[[Sequence[str]], object], refusals: tuple[type[Exception], ...], ids: Sequence[str]
) -> set[str]:
    left, unknown = list(ids), set[str]()
    kept: Exception | None = None
    while left:
        try:
            terminate(left)
            break
        except refusals as error:
            gone, spared = not_found(error) & set(left), protected(error) & set(left)
            if not gone and not spared:
                raise
            kept = kept or (error if spared else None)
            unknown |= gone
            left = [identity for identity in left if identity not in gone | spared]
    if kept is not None:
        raise kept
    return unknown


def _result(nodes: Sequence[str], instances: Sequence[Instance]) -> LaunchResult:
    """Return what one answer of EC2 launched. Instances may be missing, or have ended before it was sent."""
    launched, ended = {}, []
    for instance in instances:
        if instance.state in ("pending", "running") and instance.launch_index is not None:
            launched[nodes[instance.launch_index]] = instance.id
        elif instance.reason_code or instance.reason:
            ended.append(instance)
    lost = tuple(node for node in nodes if node not in launched)
    if not lost:
        return LaunchResult(launched)
    code, message = (ended[0].reason_code, ended[0].reason) if ended else ("", "")
    code = code or "InsufficientInstanceCapacity"
    message = message or f"EC2 gave {len(launched)} of {count(len(nodes), 'machine')}"
    return LaunchResult(launched, (Failure(lost, classify(code, None, message), code, words(message)),))
